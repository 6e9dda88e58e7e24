"""A node of the graph and the type of a value: thin, typed views of the protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, NodeProto, TypeProto, ValueInfoProto

if TYPE_CHECKING:
    from graphkit.graph import Graph

Dim = int | str | None
GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
WITH_GRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})  # in ONNX's own domain; elsewhere any may


@dataclass(frozen=True)
class TensorType:
    """Element type (ONNX enum, 0 unknown) and shape of a value.

    In `shape` an int is a known size, a str a symbolic size (equal names are equal sizes), None an unknown
    one; `shape` itself is None when even the rank is unknown.
    """

    dtype: int
    shape: tuple[Dim, ...] | None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None when unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def static(self) -> bool:
        """True when every dimension is a known number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        dtype = onnx.TensorProto.DataType.Name(self.dtype).lower() if self.dtype else "?"
        if self.shape is None:
            return f"{dtype}[…]"
        return f"{dtype}[{','.join('?' if dim is None else str(dim) for dim in self.shape)}]"


def type_of_info(info: ValueInfoProto) -> TensorType | None:
    """The tensor type that a ValueInfoProto declares, None for sequences, optionals and no type at all."""
    if not info.type.HasField("tensor_type"):
        return None
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
        for dim in tensor.shape.dim
    )
    return TensorType(tensor.elem_type, dims)


def renamed_info(info: ValueInfoProto, old: str, new: str) -> ValueInfoProto:
    """The same declaration for a value that was called `old` and is called `new`; others as they are."""
    if info.name != old:
        return info
    copy = ValueInfoProto()
    copy.CopyFrom(info)
    copy.name = new
    return copy


def make_info(name: str, type_: TensorType) -> ValueInfoProto:
    """The ValueInfoProto that declares `type_` for the value `name`."""
    return onnx.helper.make_tensor_value_info(name, type_.dtype, type_.shape)


@lru_cache(maxsize=4096)
def type_proto(type_: TensorType) -> TypeProto:
    """The TypeProto of a tensor type; shared, so copy it."""
    return make_info("", type_).type


def normal_domain(domain: str) -> str:
    """The two spellings of ONNX's own domain as one."""
    return "" if domain == "ai.onnx" else domain


class Node:
    """One node. Its `proto` is never changed in place: a change gives the node a new one.

    `inputs` and `outputs` are value names, "" for an omitted optional one; `subgraphs` maps the names of
    graph attributes to their indexed graphs (`then_branch`, `body`, …; lists of graphs as `name[0]`, …).
    `op` is the operator with its domain, the domain left out when it is ONNX's own.
    """

    __slots__ = (
        "_next",
        "_prev",
        "_value",
        "alive",
        "domain",
        "graph",
        "inputs",
        "op",
        "op_type",
        "outputs",
        "proto",
        "subgraphs",
    )

    def __init__(self, proto: NodeProto, graph: Graph) -> None:
        domain: str = proto.domain
        self.proto = proto
        self.graph = graph
        self.op_type: str = proto.op_type
        self.domain = "" if domain == "ai.onnx" else domain
        self.op: str = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        self.inputs: tuple[str, ...] = tuple(proto.input)
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self.subgraphs: dict[str, Graph] = {}
        self.alive = True  # False once it was removed from its graph
        self._prev: Node | None = None
        self._next: Node | None = None
        self._value: Any = None  # cached value of a Constant node

    @property
    def name(self) -> str:
        """The node's own name, often empty."""
        return self.proto.name

    @property
    def label(self) -> str:
        """What messages call this node: its name, else its first output."""
        return self.proto.name or next((out for out in self.outputs if out), self.op_type)

    def input(self, index: int) -> str:
        """Name of an input, "" when it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def attr(self, name: str, default: Any = None) -> Any:
        """Value of an attribute (int, float, str, bytes, list, TensorProto), or `default`."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                return attribute_value(attribute)
        return default

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes that are not graphs, by name."""
        return {a.name: attribute_value(a) for a in self.proto.attribute if a.type not in GRAPH_KINDS}

    def __repr__(self) -> str:
        return f"<{self.op} {self.label!r}: {list(self.inputs)} -> {list(self.outputs)}>"


def with_inputs(proto: NodeProto, inputs: list[str]) -> NodeProto:
    """A copy of a node that reads these values."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    del copy.input[:]
    copy.input.extend(inputs)
    return copy


def with_outputs(proto: NodeProto, outputs: list[str]) -> NodeProto:
    """A copy of a node that makes these values."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    del copy.output[:]
    copy.output.extend(outputs)
    return copy


def attribute_value(attribute: AttributeProto) -> Any:
    """An attribute as a Python value; strings are decoded where they are valid UTF-8."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return _text(attribute.s)
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.STRINGS:
        return [_text(item) for item in attribute.strings]
    return onnx.helper.get_attribute_value(attribute)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
