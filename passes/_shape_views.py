"""Chains of view operators (Reshape, Flatten, Squeeze, Unsqueeze) as one of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.passes._shape_targets import reshape_target
from graphkit.symbolic.evaluate import Scope
from graphkit.symbolic.symbols import Symbols

VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))


def origin(scope: Scope, value: str) -> str:
    """The value that `value` is a view of: nearest one that no view operator makes, with known sizes."""
    while True:
        node = scope.graph.producer(value)
        if node is None or node.domain or node.op_type not in VIEWS:
            return value
        shape = scope[node.inputs[0]].shape
        if shape is None or None in shape:
            return value
        value = node.inputs[0]


def view(scope: Scope, source: str, result: Sequence[Dim]) -> tuple[str, list[int]] | None:
    """Operator and axes or target that make shape `result` of `source`; None when no constant ones do.

    An Unsqueeze without axes stands for no operator at all.
    """
    shape = scope[source].shape
    if shape is None or None in shape or None in result:
        return None
    if (axes := _inserted(shape, result)) is not None:
        return ("Unsqueeze", axes)
    if (axes := _inserted(result, shape)) is not None:
        return ("Squeeze", axes)
    target = reshape_target(shape, result, (None,) * len(result))
    return None if target is None else ("Reshape", list(target))


def _inserted(few: Sequence[Dim], many: Sequence[Dim]) -> list[int] | None:
    """Axes of `many` that are 1 and without which it is `few`."""
    axes, at = [], 0
    for axis, dim in enumerate(many):
        if at < len(few) and few[at] == dim:
            at += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return axes if at == len(few) else None


def transposed_batch(scope: Scope, symbols: Symbols, node: Node) -> tuple[str, list[int]] | None:
    """Source and permutation when a Reshape ends a transpose of the last axes with the first ones merged.

    [*batch, r1 … rm] → Reshape → [product of batch, r1 … rm] → Transpose → Reshape → [*batch, permuted r].
    Exporters write it to transpose keys of any rank.
    """
    transpose = scope.graph.producer(node.inputs[0])
    if transpose is None or transpose.op != "Transpose" or scope.graph.sole_consumer(node.inputs[0]) is None:
        return None
    inner = scope.graph.producer(transpose.inputs[0])
    perm = transpose.attr("perm")
    if inner is None or inner.op != "Reshape" or not perm or perm[0] != 0:
        return None
    source = inner.inputs[0]
    shapes = [scope[value].shape for value in (source, inner.outputs[0], node.outputs[0])]
    if any(shape is None or None in shape for shape in shapes):
        return None
    before, merged, after = (tuple(shape or ()) for shape in shapes)
    count = len(before) - len(merged) + 1
    batch = before[:count]
    if count < 1 or before[count:] != merged[1:] or after[:count] != batch:
        return None
    if symbols.product([dim for dim in batch if dim is not None]) != merged[0]:
        return None
    if list(after[count:]) != [merged[axis] for axis in perm[1:]]:
        return None
    return source, [*range(count), *(count - 1 + axis for axis in perm[1:])]


def view_proto(graph: Graph, node: Node, source: str, op: str, numbers: list[int], constant: str) -> NodeProto:
    """The node that makes the first output of `node` as a view; `constant` holds the numbers where needed."""
    if op != "Reshape" and graph.opset() < 13:
        return onnx.helper.make_node(op, [source], [node.outputs[0]], name=node.name, axes=numbers)
    return onnx.helper.make_node(op, [source, constant], [node.outputs[0]], name=node.name)


def takes_constant(graph: Graph, op: str) -> bool:
    """True when the operator takes its numbers as an input in this operator set."""
    return op == "Reshape" or graph.opset() >= 13
