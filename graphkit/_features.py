"""Features of a node: what is known of its form, as names with plain values that conditions can be stated on.

since           opset version in which the operator took the form that the model uses
inputs          number of inputs, trailing omitted ones left out
outputs         number of outputs that are declared, used or not
subgraph        whether the node stands inside the body of another
given.in2       whether an optional input is there
used.out1       whether anything reads an output
dtype.in0       element type (float, int64, …)
kind.in0        its kind: float, int, uint, bool, other
rank.in0        number of dimensions
dynamic.in0     whether a dimension is not a known number
empty.in0       whether a dimension is 0
dims.in0        the shape, when it is a known one
front.in0       the first dimension
last.in0        the last dimension
const.in1       whether the input is a constant
length.in1      number of elements, of a constant or of a known shape
value.in1       the value of a constant of one element
values.in1      the elements of a small constant of integers
huge.in1        whether a constant holds integers that MNN does not (beyond ±2^30)
negative.in1    whether a constant holds a negative number
nonneg.in0      whether a value is negative nowhere, whatever the model is fed (operators in _SIGNED)
attr.mode       value of an attribute, the operator's default where it is omitted
has.strides     whether an attribute is written at all
written         the attribute that is written first
all.strides     the one number that all elements of a list are, "mixed" otherwise
broadcast       how two inputs meet: same, scalar, ranks, expand
mixed           whether two inputs have different kinds of elements
scale           what Resize does: same, up, down, mixed; scale.whole, scale.inner (only the last two axes)
full_index      whether the last dimension of the indices is the rank of the data (GatherND, ScatterND)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from graphkit._signs import nonnegative
from graphkit.graph import Graph
from graphkit.node import Node, TensorType, attribute_value

Feature = str | int | float | bool
HUGE = 2**30  # MNN's converter clamps integers beyond this
_FEW = 16  # elements of a constant that are looked at one by one
_SMALL = 4096  # elements of a constant that are looked at as a whole
# Operators for which the sign of their inputs may matter; proving it takes a walk through the graph.
_SIGNED = frozenset(
    [
        "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Mod", "Pow", "Div", "BitShift", "Round", "Gather",
        "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "OneHot",
    ]
)  # fmt: skip
_KINDS = {"float": "float", "float16": "float", "double": "float", "bfloat16": "float", "bool": "bool"}


def features(graph: Graph, node: Node) -> dict[str, Feature]:
    """All features of a node of this graph; what shape inference does not know is left out."""
    found: dict[str, Feature] = {
        "inputs": _count(node.inputs),
        "outputs": _count(node.outputs),
        "subgraph": graph.parent is not None,
    }
    version = since_version(node.op_type, node.domain, graph.opset(node.domain))
    if version:
        found["since"] = version
    for index, value in enumerate(node.inputs):
        found[f"given.in{index}"] = bool(value)
        if value:
            found.update(_value(graph, value, f"in{index}"))
            if node.op_type in _SIGNED:
                found[f"nonneg.in{index}"] = nonnegative(graph, value)
    for index, value in enumerate(node.outputs):
        found[f"given.out{index}"] = bool(value)
        found[f"used.out{index}"] = bool(value) and graph.is_used(value)
        type_ = graph.type(value) if value else None
        if type_ is not None:
            found.update(_type(type_, f"out{index}"))
    found.update(_attributes(node, graph.opset(node.domain)))
    found.update(_relations(graph, node))
    return found


@lru_cache(maxsize=4096)
def since_version(op_type: str, domain: str, opset: int) -> int:
    """The version in which an operator took the form it has in an operator set; 0 when there is no such one."""
    schema = _schema(op_type, domain, opset)
    return int(schema.since_version) if schema is not None else 0


@lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset or 1, domain)
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=4096)
def _defaults(op_type: str, domain: str, opset: int) -> dict[str, Any]:
    schema = _schema(op_type, domain, opset)
    if schema is None:
        return {}
    defaults = {name: item.default_value for name, item in schema.attributes.items()}
    return {name: attribute_value(value) for name, value in defaults.items() if value.type}


def _count(values: Sequence[str]) -> int:
    return max((index + 1 for index, value in enumerate(values) if value), default=0)


def _value(graph: Graph, value: str, at: str) -> Iterator[tuple[str, Feature]]:
    type_ = graph.type(value)
    if type_ is not None:
        yield from _type(type_, at)
    constant = graph.is_constant(value)
    yield f"const.{at}", constant
    if constant:
        yield from _constant(graph, value, at, type_)


def _type(type_: TensorType, at: str) -> Iterator[tuple[str, Feature]]:
    if type_.dtype:
        name = TensorProto.DataType.Name(type_.dtype).lower()
        yield f"dtype.{at}", name
        yield f"kind.{at}", _kind(name)
    shape = type_.shape
    if shape is None:
        return
    yield f"rank.{at}", len(shape)
    sizes = [dim for dim in shape if isinstance(dim, int)]
    yield f"dynamic.{at}", len(sizes) < len(shape)
    yield f"empty.{at}", 0 in sizes
    if shape and isinstance(shape[0], int):
        yield f"front.{at}", shape[0]
    if shape and isinstance(shape[-1], int):
        yield f"last.{at}", shape[-1]
    if len(sizes) == len(shape):
        yield f"dims.{at}", _list(shape)
        yield f"length.{at}", math.prod(sizes)


def _kind_of(graph: Graph, value: str) -> str:
    type_ = graph.type(value) if value else None
    return _kind(TensorProto.DataType.Name(type_.dtype).lower()) if type_ is not None and type_.dtype else ""


def _kind(dtype: str) -> str:
    if dtype in _KINDS:
        return _KINDS[dtype]
    if dtype in ("int64", "int32", "int16", "int8"):
        return "int"
    return "uint" if dtype in ("uint64", "uint32", "uint16", "uint8") else "other"


def _constant(graph: Graph, value: str, at: str, type_: TensorType | None) -> Iterator[tuple[str, Feature]]:
    if type_ is None or type_.shape is None or type_.dtype == TensorProto.STRING:
        return
    if math.prod(dim for dim in type_.shape if isinstance(dim, int)) > _SMALL:
        return
    array = graph.constant(value)
    if array is None or array.dtype.kind not in "iufb":
        return
    if array.size == 1:
        yield f"value.{at}", array.reshape(-1)[0].item()
    if array.dtype.kind in "iu":
        yield f"huge.{at}", bool(array.size) and (int(array.max()) > HUGE or int(array.min()) < -HUGE)
        if array.size <= _FEW:
            yield f"values.{at}", _list(array.reshape(-1).tolist())
            yield f"all.{at}", _all(array.reshape(-1).tolist())
    if array.dtype.kind in "if":
        yield f"negative.{at}", bool((array < 0).any())


def _attributes(node: Node, opset: int) -> Iterator[tuple[str, Feature]]:
    written = {item.name: item for item in node.proto.attribute}
    values = {name: attribute_value(item) for name, item in written.items() if item.type not in _HEAVY}
    for name in written:
        yield f"has.{name}", True
    if written:
        yield "written", next(iter(written))
    for name, value in {**_defaults(node.op_type, node.domain, opset), **values}.items():
        if isinstance(value, list):
            yield f"attr.{name}", _list(value)
            yield f"length.{name}", len(value)
            yield f"all.{name}", _all(value)
        elif isinstance(value, str | int | float):
            yield f"attr.{name}", value


_HEAVY = frozenset(
    getattr(onnx.AttributeProto, kind)
    for kind in ("TENSOR", "TENSORS", "GRAPH", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS")
)


def _list(values: Any) -> str:
    return ",".join(map(str, values))


def _all(values: list[Any]) -> Feature:
    first = values[0] if values else "none"
    return first if all(value == first for value in values) and isinstance(first, str | int | float) else "mixed"


def _relations(graph: Graph, node: Node) -> Iterator[tuple[str, Feature]]:
    if len(node.inputs) == 2:
        kind = _broadcast(graph.shape(node.inputs[0]), graph.shape(node.inputs[1]))
        if kind:
            yield "broadcast", kind
        kinds = [_kind_of(graph, value) for value in node.inputs]
        if all(kinds):
            yield "mixed", kinds[0] != kinds[1]
    if node.op_type in ("GatherND", "ScatterND"):
        data, indices = graph.rank(node.input(0)), graph.shape(node.input(1))
        if data is not None and indices and isinstance(indices[-1], int):
            yield "full_index", indices[-1] + int(node.attr("batch_dims", 0)) == data
    if node.op_type in ("Resize", "Upsample"):
        yield from _scale(graph, node)


def _broadcast(a: tuple[object, ...] | None, b: tuple[object, ...] | None) -> str:
    if a is None or b is None:
        return ""
    if a == b:
        return "same"
    if () in (a, b) or (1,) in (a, b):
        return "scalar"
    return "ranks" if len(a) != len(b) else "expand"


def _scale(graph: Graph, node: Node) -> Iterator[tuple[str, Feature]]:
    before, after = graph.shape(node.input(0)), graph.shape(node.outputs[0])
    if before is None or after is None or len(before) != len(after):
        return
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if isinstance(a, int) and isinstance(b, int) and a]
    if len(pairs) < len(before):
        return
    ratios = np.array([b / a for a, b in pairs])
    changes = {"up" if ratio > 1 else "down" for ratio in ratios if ratio != 1}
    yield "scale", "same" if not changes else changes.pop() if len(changes) == 1 else "mixed"
    yield "scale.whole", all(ratio == int(ratio) for ratio in ratios)
    yield "scale.inner", all(ratio == 1 for ratio in ratios[:-2])
