"""What keeps a graph from MNN that no single operator shows: its values, its outputs, its loops, its numbers.

`faults(graph)` are certain to fail or to go wrong; `advice(graph)` is worth knowing. Facts: measured with MNN 3.6.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.knowledge import Effect
from graphkit.mnn.findings import Finding, found_at
from graphkit.mnn.locate import empty_outputs, no_tensors, random_nodes
from graphkit.node import Dim, Node
from graphkit.weights import Weight

HUGE = 2**30  # integers beyond are clamped by MNN's converter
_READ = 1 << 20  # elements of an integer constant that are looked at
_SHARED = 4096  # bytes; smaller weights are not worth a word

_LACKING = frozenset(
    number
    for name, number in TensorProto.DataType.items()
    if name.startswith(("STRING", "BFLOAT", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2", "COMPLEX"))
)
_RUN_TIME = {
    "NonZero": "the number of elements that are not 0",
    "Compress": "the number of elements that are kept",
    "Unique": "the number of different elements",
    "NonMaxSuppression": "the number of boxes that are kept",
}
# Operators in which the limits of a type are as good as what MNN clamps them to.
_COMPARES = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max")
_LIMITS = {-(2**63), -(2**63) + 1, 2**63 - 1, -(2**31), 2**31 - 1}
# Inputs in which a number beyond all sizes means "to the end" or "no limit".
_SENTINELS = {"Slice": range(1, 5), "Clip": range(1, 3)}


def faults(graph: Graph) -> Iterator[Finding]:
    """What will fail or go wrong, whatever operators the graph is made of. Types must be inferred."""
    yield from _no_tensors(graph)
    for fault in random_nodes(graph):
        yield Finding(fault.node, fault.op, "refused", f"{fault.reason}: nothing proves what MNN computes")
    yield from _doubles(graph)
    yield from _nothing(graph)
    yield from _empty(graph)
    for inner in graph.walk():
        yield from _foreign_types(inner)
        yield from _huge(inner)


def advice(graph: Graph) -> Iterator[Finding]:
    """What is no fault and good to know. Types must be inferred."""
    yield from _wide_values(graph)
    yield from _shared_weights(graph)
    for inner in graph.walk():
        for node in inner.nodes:
            if node.op in _RUN_TIME:
                why = f"only run time tells {_RUN_TIME[node.op]}: shapes behind it are not known before"
                yield _finding(node, "advice", why)
            elif node.op in ("Loop", "Scan"):
                yield from _growing(inner, node)


def _finding(node: Node, effect: Effect | str, why: str) -> Finding:
    return Finding(node.label, node.op, effect, why)


def _no_tensors(graph: Graph) -> Iterator[Finding]:
    """Inputs and outputs that are sequences, optionals or text."""
    for fault in no_tensors(graph):
        yield Finding(fault.node, fault.op, "refused", fault.reason)


def _doubles(graph: Graph) -> Iterator[Finding]:
    """Inputs of 64-bit floats: MNN takes them for float32."""
    for name in graph.inputs:
        if graph.dtype(name) == TensorProto.DOUBLE and name not in graph.initializers:
            why = f"input '{name}' is float64, and MNN takes it for float32: beyond 3.4e38 values become infinite"
            yield found_at(graph, name, "wrong", why)


def _nothing(graph: Graph) -> Iterator[Finding]:
    """Outputs that are inputs or constants: MNN needs an operator that makes them."""
    for name in graph.outputs:
        if graph.producer(name) is None:
            why = f"output '{name}' is an input or a constant; MNN needs an operator that computes it"
            yield found_at(graph, name, "refused", why)


def _empty(graph: Graph) -> Iterator[Finding]:
    """Outputs without elements: MNN's own API fails to read them."""
    for fault in empty_outputs(graph):
        yield Finding(fault.node, fault.op, "fails", fault.reason)


def _foreign_types(graph: Graph) -> Iterator[Finding]:
    """Element types that MNN does not have."""
    for name, weight in graph.initializers.items():
        if weight.data_type in _LACKING:
            yield found_at(graph, name, "refused", _lacks(name, weight.data_type))
    for node in graph.nodes:
        for name in node.outputs:
            if name and graph.dtype(name) in _LACKING:
                yield _finding(node, "refused", _lacks(name, graph.dtype(name)))
                break


def _lacks(name: str, dtype: int) -> str:
    return f"'{name}' has elements of a type that MNN does not have: {TensorProto.DataType.Name(dtype).lower()}"


def _huge(graph: Graph) -> Iterator[Finding]:
    """int64 constants beyond what MNN holds, where they are no sentinels."""
    constants = [name for name, weight in graph.initializers.items() if weight.data_type == TensorProto.INT64]
    constants += [node.outputs[0] for node in graph.by_op("Constant") if graph.dtype(node.outputs[0]) == _INT64]
    for name in constants:
        if not _has_huge(graph, name):
            continue
        limits = _only_limits(graph, name)
        for node in graph.consumers(name):
            sentinel = range(8) if limits and node.op in _COMPARES else _SENTINELS.get(node.op, range(0))
            if any(value == name and index not in sentinel for index, value in enumerate(node.inputs)):
                why = f"constant '{name}' has integers beyond ±2^30, which MNN's converter clamps"
                yield _finding(node, "wrong", why)


_INT64 = TensorProto.INT64


def _only_limits(graph: Graph, name: str) -> bool:
    """True when all numbers that MNN does not hold are limits of a type, which mean "none" or "any"."""
    array = graph.constant(name)
    return array is not None and set(array[(array > HUGE) | (array < -HUGE)].tolist()) <= _LIMITS


def _has_huge(graph: Graph, name: str) -> bool:
    shape = graph.shape(name)
    if shape is None or not 0 < math.prod(dim for dim in shape if isinstance(dim, int)) <= _READ:
        return False
    array = graph.constant(name)
    return array is not None and array.size > 0 and (int(array.max()) > HUGE or int(array.min()) < -HUGE)


def _growing(graph: Graph, node: Node) -> Iterator[Finding]:
    """Loops that carry a value whose shape changes from one iteration to the next.

    MNN 3.6.1 ran all small ones that we tried right; large ones were seen to end with "Compute Shape Error".
    """
    body = node.subgraphs.get("body")
    if body is None:
        return
    skip = 2 if node.op == "Loop" else 0
    carried = (
        node.inputs[2:] if node.op == "Loop" else node.inputs[: len(node.inputs) - node.attr("num_scan_inputs", 0)]
    )
    for outer, inner, after in zip(carried, body.inputs[skip:], body.outputs[skip // 2 :], strict=False):
        if _grows(graph.shape(outer), body.shape(inner), body.shape(after)):
            why = f"'{inner}' changes its shape from one iteration to the next: MNN plans memory anew in each"
            yield _finding(node, "advice", why)


_Shape = tuple[Dim, ...] | None


def _grows(first: _Shape, within: _Shape, after: _Shape) -> bool:
    """True when a carried value has another shape inside the loop than it began with, and leaves with yet another."""
    if first is None or within is None or after is None:
        return False
    if len(within) != len(after):
        return True
    return first != within and any(b is not None and a != b for a, b in zip(within, after, strict=True))


def _wide_values(graph: Graph) -> Iterator[Finding]:
    """Inputs and outputs of types that MNN narrows without harm to most models."""
    narrowed: dict[int, str] = {TensorProto.INT64: "int32", TensorProto.FLOAT16: "float32"}
    for name in dict.fromkeys((*graph.inputs, *graph.outputs)):
        dtype = graph.dtype(name)
        if dtype in narrowed and name not in graph.initializers:
            kind = TensorProto.DataType.Name(dtype).lower()
            yield found_at(graph, name, "advice", f"'{name}' is {kind} here and {narrowed[dtype]} in MNN")


def _shared_weights(graph: Graph) -> Iterator[Finding]:
    for name, weight in graph.initializers.items():
        users = [node for node in graph.consumers(name) if _stores(node, name)]
        if len(users) > 1 and weight.nbytes >= _SHARED:
            yield _twice(users, name, weight)


def _twice(users: list[Node], name: str, weight: Weight) -> Finding:
    extra = weight.nbytes * (len(users) - 1)
    why = f"weight '{name}' is used by {len(users)} nodes; MNN stores it for each: {extra:,} bytes more"
    return _finding(users[0], "advice", why)


def _stores(node: Node, name: str) -> bool:
    """True for operators into which MNN takes their weight."""
    if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return len(node.inputs) > 1 and node.inputs[1] == name
    return node.op in ("LSTM", "GRU", "RNN") and name in node.inputs[1:3]
