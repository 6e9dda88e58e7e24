"""The quantized weights of an ONNX model, whatever tool wrote them, noted before any pass turns them into floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.mnn.carry import readers
from graphkit.mnn.carry.grid import LEAST_BYTES, looks_quantized, read_grid
from graphkit.mnn.carry.parts import Parts
from graphkit.model import Model
from graphkit.node import Node
from graphkit.passes import _dequantize
from graphkit.passes._cleanup_weights import free_initializers
from graphkit.passes._dequantize import DEQUANTIZE, QUANTIZE, VIEWS
from graphkit.passes._quantized_params import unsound
from graphkit.passes.inline_functions import InlineFunctions
from graphkit.weights import Weight

_DEPTH = 16  # nodes between a stored constant and where it is used
_MOST_FORMS = 16


@dataclass(frozen=True)
class Use:
    """A node that computes with a weight, or a graph output that shows it (op ""). rank: of the stored codes."""

    op: str
    node: str
    index: int
    rank: int
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Form:
    """One shape in which a weight stands in the graph: behind `nodes`, which only move numbers.

    start: the node that dequantizes it or computes with it; None for a weight that is stored as floats.
    """

    start: Node | None
    nodes: tuple[Node, ...] = ()


@dataclass(eq=False)
class Lifted:
    """One quantized weight.

    name: of the stored codes; node: label of the first node that dequantizes them or computes with them. shape: of
    the codes. stored: bytes of codes, scales and zero points in the ONNX file. forms: shapes in which it is used.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    stored: int
    graph: Graph = field(repr=False)
    forms: list[Form] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many weights there are."""
        return math.prod(self.shape)

    @property
    def float_bytes(self) -> int:
        """Bytes that they take as float32."""
        return 4 * self.count

    @property
    def quantized(self) -> bool:
        """True when the ONNX file has codes; False when it has floats on a grid."""
        return any(form.start is not None for form in self.forms)

    @property
    def groups(self) -> tuple[int, ...]:
        """Groups of the ConvTransposes that use it, each number once."""
        return tuple(dict.fromkeys(use.groups for use in self.uses if use.op == "ConvTranspose"))

    def parts(self, form: Form) -> Parts | str:
        """Codes, scales and zero points in one of its forms, read now; a reason when they cannot be carried.

        Raises ModelError for damaged tensors.
        """
        found = self._stored(form)
        for node in form.nodes:
            if isinstance(found, str):
                break
            constants = [_dequantize.constant(node.graph, value) for value in node.inputs[1:] if value]
            moved = found.through(node, [array for array in constants if array is not None])
            found = moved if moved is not None else f"a {node.op} makes other numbers of it"
        return found

    def _stored(self, form: Form) -> Parts | str:
        if form.start is None:
            return read_grid(self.graph, self.name)
        found = readers.read(form.start.graph, form.start)
        _forget(form.start.graph, form.start)
        return found


def lift(model: Model) -> list[Lifted]:
    """All quantized weights of a model: constants of two dims or more behind DequantizeLinear, of MatMulNBits and
    GatherBlockQuantized, and of the operators that multiply codes; and large float weights all of whose numbers are
    on a grid (see `grid`). Little is read.

    Raises ModelError when the graph is not valid.
    """
    graph = Graph.of(model)
    if graph.functions:
        InlineFunctions().run(graph)
    free_initializers(graph, all_versions=True)  # MNN has no inputs with defaults: they are constants
    found: dict[tuple[object, ...], Lifted] = {}
    for inner in graph.walk():
        for op in readers.READ:
            for node in inner.by_op(op):
                _note(inner, node, found)
    known = {weight.name for weight in found.values()}
    return [*found.values(), *(weight for weight in _on_grid(graph) if weight.name not in known)]


def _on_grid(graph: Graph) -> Iterator[Lifted]:
    """Float weights that somebody quantized and stored as floats again."""
    for inner in graph.walk():
        for name, weight in inner.initializers.items():
            if weight.data_type == TensorProto.FLOAT and weight.nbytes >= LEAST_BYTES and looks_quantized(weight):
                found = Lifted(name, name, weight.dims, weight.nbytes, inner)
                for nodes, value in _moved(inner, name):
                    found.forms.append(Form(None, nodes))
                    found.uses += _uses(inner, value, len(weight.dims))
                yield found


def _note(graph: Graph, node: Node, found: dict[tuple[object, ...], Lifted]) -> None:
    """Add what a node has of quantized weights; the same weight at another node counts as one."""
    if unsound(graph, node):
        return  # passes refuse it and name it
    place = readers.places(node)
    params = [node.input(index) for index in (place.codes, place.scale, place.zero) if index is not None]
    roots = [_root(graph, value) for value in params if value]
    if not roots or any(root is None for root in roots):
        return
    weights = [weight for weight in roots if weight is not None]
    shape = weights[0].dims
    if len(shape) < 2:
        return  # a bias
    key = (graph, *params, node.attr("axis"), node.attr("block_size"), node.attr("bits"))
    if key not in found:
        shape = (int(node.attr("N", 0)), int(node.attr("K", 0))) if node.op == readers.PACKED else shape
        if node.op == readers.TABLE and weights[0].data_type == TensorProto.UINT8:
            shape = (*shape[:-1], shape[-1] * 8 // int(node.attr("bits", 4)))
        stored = sum(weight.nbytes for weight in weights)
        found[key] = Lifted(weights[0].name, node.label, shape, stored, graph)
    lifted = found[key]
    if node.op not in DEQUANTIZE:
        lifted.forms.append(Form(node))
        op = "Gather" if node.op == readers.TABLE else node.op
        lifted.uses.append(Use(op, node.label, place.codes, len(shape)))
        return
    for nodes, value in _moved(graph, node.outputs[0]):
        lifted.forms.append(Form(node, nodes))
        lifted.uses += _uses(graph, value, len(shape))


def _root(graph: Graph, value: str) -> Weight | None:
    """The stored constant behind nodes that move or quantize constants; None when something is computed."""
    for _ in range(_DEPTH):
        weight = graph.weight(value)
        if weight is not None:
            return weight
        node = graph.producer(value)
        if node is None:
            return None
        if node.op == "Constant":
            return _constant_weight(graph, node)
        if node.op not in VIEWS + QUANTIZE or not all(_is_known(graph, name) for name in node.inputs[1:] if name):
            return None
        value = node.inputs[0]
    return None


def _constant_weight(graph: Graph, node: Node) -> Weight | None:
    value = node.attr("value")
    return Weight(value, graph.store) if value is not None else None


def _is_known(graph: Graph, value: str) -> bool:
    return graph.is_constant(value) or _root(graph, value) is not None


def _moved(graph: Graph, value: str) -> Iterator[tuple[tuple[Node, ...], str]]:
    """A value, and all that nodes which only move numbers make of it: those nodes, and its name then."""
    waiting: list[tuple[tuple[Node, ...], str]] = [((), value)]
    for _ in range(_MOST_FORMS):
        if not waiting:
            return
        nodes, name = waiting.pop()
        yield nodes, name
        waiting += [((*nodes, user), user.outputs[0]) for user in graph.consumers(name) if _moves(graph, user, name)]


def _moves(graph: Graph, node: Node, value: str) -> bool:
    """True for a node that only moves the numbers of a value, in a way that is known."""
    if node.op not in VIEWS or node.graph is not graph or node.inputs[0] != value:
        return False
    return all(graph.is_constant(name) and name != value for name in node.inputs[1:] if name)


def _uses(graph: Graph, value: str, rank: int) -> list[Use]:
    uses = [
        Use(node.op, node.label, node.inputs.index(value) if value in node.inputs else -1, rank, node.attr("group", 1))
        for node in graph.consumers(value)
        if not _moves(graph, node, value)
    ]
    return [*uses, Use("", value, 0, rank)] if graph.is_output(value) else uses


def _forget(graph: Graph, node: Node) -> None:
    """Drop what reading codes of less than a byte has unpacked: the graph would keep it."""
    for value in node.inputs:
        weight = graph.initializers.get(value)
        if weight is not None and weight.array().nbytes > weight.nbytes:
            graph.put_initializer(value, Weight(weight.proto, weight.store))
