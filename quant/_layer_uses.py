"""How one node uses constants: as a weight that can be quantized, or as one that cannot, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from onnx import TensorProto

from graphkit.graph import Graph, Node
from graphkit.quant._views import home_of
from graphkit.weights import tensor_nbytes

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_VIEWS = ("Identity", "Transpose")
_RECURRENT = ("LSTM", "GRU", "RNN")
_DEPTH = 8  # Identity and Transpose nodes between a constant and the layer


@dataclass(frozen=True)
class Stored:
    """A float constant as it is stored. flipped: a Transpose of its two axes stands between it and the node."""

    name: str
    shape: tuple[int, ...]
    dtype: int
    flipped: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return tensor_nbytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Use:
    """One use of a stored constant by a node; `reason` says why it must stay float, and is empty when it need not.

    way: "linear" or "table". layout: as `graphkit.quant.layers.Layer`.
    """

    node: Node
    stored: Stored
    reason: str = ""
    way: str = "linear"
    layout: str = "rows"
    rows: int = 0
    kernel: int = 1
    groups: int = 1

    @property
    def home(self) -> Graph:
        """The graph that defines the constant."""
        return home_of(self.node.graph, self.stored.name)

    @property
    def key(self) -> tuple[Graph, str, str, str, int, int]:
        """Uses with equal keys can share codes."""
        return self.home, self.stored.name, self.way, self.layout, self.rows, self.groups


def uses_of(graph: Graph, node: Node) -> Iterator[Use]:
    """What a node does with constants of two or more dimensions. Nodes of other operators yield nothing."""
    reader = _READERS.get(node.op)
    if reader is not None:
        yield from reader(graph, node)


def stored_constant(graph: Graph, value: str, depth: int = _DEPTH) -> Stored | str:
    """The float constant that `value` is, perhaps through Identity and Transpose; else why it is none ("" if plain).

    A text is given only for what looks like a constant: one that a graph input can override, that is quantized
    already, or that other nodes compute from constants.
    """
    if graph.is_constant(value):
        return _of_constant(graph, value)
    owner = home_of(graph, value)
    if value in owner.initializers:
        return "a graph input of the same name can override it: run cleanup first (freeze_defaults=true if it stays)"
    node = owner.producer(value)
    if node is None or not depth:
        return ""
    if node.op_type == "DequantizeLinear" and _is_constant(owner, node.inputs[0]):
        return "is quantized already"
    if node.op in _VIEWS:
        return _through_view(owner, node, depth)
    if _is_constant(owner, value, depth):
        return f"{node.op} computes it from constants: run fold-constants first"
    return ""


def _through_view(graph: Graph, node: Node, depth: int) -> Stored | str:
    found = stored_constant(graph, node.inputs[0], depth - 1)
    if isinstance(found, str) or node.op == "Identity":
        return found
    rank = len(found.shape)
    perm = list(node.attr("perm") or range(rank - 1, -1, -1))
    if perm == list(range(rank)):
        return found
    if rank == 2:
        return replace(found, flipped=not found.flipped)
    return "Transpose computes it from constants: run fold-constants first"


def _of_constant(graph: Graph, value: str) -> Stored | str:
    weight = graph.weight(value)
    if weight is not None:
        return Stored(value, weight.dims, weight.data_type) if weight.data_type in FLOATS else ""
    array = graph.constant(value)
    if array is None:
        return ""
    dtype = _DTYPES.get(array.dtype.name, 0)
    return Stored(value, tuple(array.shape), dtype) if dtype else ""


_DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
}


def _is_constant(graph: Graph, value: str, depth: int = _DEPTH) -> bool:
    """True for constants and for what nodes without subgraphs compute from them."""
    if graph.is_constant(value):
        return True
    node = home_of(graph, value).producer(value)
    if node is None or not depth or node.subgraphs or not any(node.inputs):
        return False
    return all(_is_constant(node.graph, name, depth - 1) for name in node.inputs if name)


def _found(graph: Graph, node: Node, index: int) -> Iterator[Use]:
    """A use of one input: complete but for layout and rows, or with the reason why it cannot be quantized."""
    value = node.input(index)
    stored = stored_constant(graph, value) if value else ""
    if isinstance(stored, Stored):
        yield Use(node, stored)
    elif stored:
        yield Use(node, _outline(graph, value), stored)


def _outline(graph: Graph, value: str) -> Stored:
    """What is known of a weight that is not a plain constant: its bytes as far as its shape is known."""
    home = home_of(graph, value)
    weight = home.initializers.get(value)
    if weight is not None:
        return Stored(value, weight.dims, weight.data_type)
    node = home.producer(value)
    inner = node.inputs[0] if node is not None and node.inputs else value
    source = graph.weight(inner)
    if source is not None:
        return Stored(inner, source.dims, source.data_type)
    type_ = graph.type(value)
    shape = type_.shape if type_ is not None and type_.static else None
    dims = tuple(int(dim) for dim in shape or () if isinstance(dim, int))
    return Stored(value, dims, type_.dtype if type_ is not None and dims else 0)


def _convolution(graph: Graph, node: Node) -> Iterator[Use]:
    for use in _found(graph, node, 1):
        shape = use.stored.shape
        reason = use.reason or _convolution_reason(use.stored)
        if reason:
            yield replace(use, reason=reason)
            continue
        groups = int(node.attr("group", 1))
        deconvolution = node.op == "ConvTranspose"
        rows = shape[1] * groups if deconvolution else shape[0]
        if groups < 1 or shape[0] % groups:
            yield replace(use, reason=f"{shape[0]} channels cannot be split into {groups} groups")
            continue
        layout = "transposed-convolution" if deconvolution else "rows"
        yield replace(use, layout=layout, rows=rows, kernel=math.prod(shape[2:]), groups=groups)


def _convolution_reason(stored: Stored) -> str:
    if stored.flipped or len(stored.shape) < 3:
        return f"a convolution's weight of shape {list(stored.shape)} behind a Transpose: run fold-constants first"
    if len(stored.shape) > 4:
        return f"MNN does not run {len(stored.shape) - 2}-D convolutions"
    return "" if math.prod(stored.shape) else "has no elements"


def _product(graph: Graph, node: Node) -> Iterator[Use]:
    """MatMul and Gemm: the right factor [in, out] is a layer; a constant left factor is not."""
    for use in _found(graph, node, 0):
        yield replace(use, reason=use.reason or "is the left factor of a product, which MNN keeps as floats")
    for use in _found(graph, node, 1):
        shape = use.stored.shape
        reason = use.reason
        if not reason and len(shape) != 2:
            reason = "is a vector" if len(shape) < 2 else "is a stack of matrices, which MNN keeps as floats"
        if not reason and not math.prod(shape):
            reason = "has no elements"
        if reason:
            yield replace(use, reason=reason)
            continue
        by_rows = use.stored.flipped != (node.op == "Gemm" and bool(node.attr("transB", 0)))
        yield replace(use, layout="rows" if by_rows else "columns", rows=shape[0] if by_rows else shape[1])


def _table(graph: Graph, node: Node) -> Iterator[Use]:
    for use in _found(graph, node, 0):
        shape = use.stored.shape
        reason = use.reason
        if not reason and (len(shape) != 2 or use.stored.flipped or int(node.attr("axis", 0)) not in (0, -2)):
            reason = "is a table that is not read by whole rows of a matrix"
        if not reason and not math.prod(shape):
            reason = "has no elements"
        yield replace(use, reason=reason) if reason else replace(use, way="table", rows=shape[0])


def _recurrent(graph: Graph, node: Node) -> Iterator[Use]:
    for index in (1, 2):
        for use in _found(graph, node, index):
            reason = f"is a weight of {node.op}: errors add up from step to step, and MNN cuts it up under other names"
            yield replace(use, reason=use.reason or reason)


def _einsum(graph: Graph, node: Node) -> Iterator[Use]:
    for index in range(len(node.inputs)):
        for use in _found(graph, node, index):
            yield replace(use, reason=use.reason or f"is a factor of {node.op}, which MNN keeps as floats")


def reason_of(graph: Graph, value: str) -> tuple[str, str, str]:
    """Label and operator of the node that reads a constant which is no weight of a layer, and why it stays float."""
    for node in graph.consumers(value):
        for sub in node.subgraphs.values():
            if value in sub.captures():
                return reason_of(sub, value)
        if node.op in _READERS:
            return node.label, node.op, f"is a bias of {node.op}"
        return node.label, node.op, f"is read by {node.op}, which has no quantized form"
    return value, "output", "is an output"


_READERS: dict[str, Callable[[Graph, Node], Iterator[Use]]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _product,
    "MatMul": _product,
    "Gather": _table,
    "Einsum": _einsum,
    **dict.fromkeys(_RECURRENT, _recurrent),
}
