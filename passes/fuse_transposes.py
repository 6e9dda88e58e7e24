"""Transposes and reshapes in a row → fewer of them, where that is proven to move the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, apply_rules, rule

_MAX_BETWEEN = 8  # element-wise nodes between two Transposes
# fmt: off
_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Asin", "Atan", "Cast", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu",
))
# fmt: on
_WITH_NUMBER = ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub")


@dataclass(frozen=True)
class FuseTransposes:
    """Merge Transposes and Reshapes that follow each other, and remove those that undo each other.

    Rewrites Transpose after Transpose, element-wise operators (and ones with a single number) between them or
    not, into one Transpose, or none; Transposes that move nothing; Reshape after Reshape, Flatten, Squeeze,
    Unsqueeze or a Transpose that only moves axes of size 1, into one Reshape; Squeeze and Unsqueeze of the
    same axes. A Transpose of a constant is fold-constants' matter.

    Refuses a Reshape whose 0 copies a dimension that is not known to be the same in front of both, and leaves
    chains alone whose inner values something else uses, unless they vanish altogether.
    """

    name: ClassVar[str] = "fuse-transposes"
    summary: ClassVar[str] = "Transposes and Reshapes in a row are merged, or removed when they cancel"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        result = done = apply_rules(graph, RULES)
        while done.modified:  # a Transpose that moved up may meet one that is not next to the change
            done = apply_rules(graph, RULES)
            result += done
        return result


# -- Transpose --------------------------------------------------------------------------------------------


@rule("Transpose", name="transposes")
def _transpose(graph: Graph, node: Node) -> Outcome:
    order = _order(graph, node)
    if order is None:
        return None
    if order == tuple(range(len(order))):
        return Builder(graph, node).rewrite({node.outputs[0]: node.inputs[0]}, "Transpose that moves nothing")
    first, between = _transpose_in_front(graph, node)
    before = _order(graph, first) if first is not None else None
    if first is None or before is None or len(before) != len(order):
        return None
    merged = tuple(before[axis] for axis in order)
    cancels = merged == tuple(range(len(merged)))
    if not (cancels and not between) and not _dies(graph, first, node, between):
        return None
    build = Builder(graph, node)
    value = first.inputs[0] if cancels else build.op("Transpose", first.inputs[0], perm=list(merged))
    for inner in between:
        value = _copy(build, inner, first, between, value)
    return build.rewrite({node.outputs[0]: value}, "Transposes that cancel" if cancels else "Transposes into one")


def _order(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The permutation, the default (all axes reversed) included; None when the rank is needed and unknown."""
    perm = node.attr("perm")
    if perm is not None:
        return tuple(perm)
    rank = graph.rank(node.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


def _transpose_in_front(graph: Graph, node: Node) -> tuple[Node | None, tuple[Node, ...]]:
    """The Transpose in front of a node, and the element-wise nodes between them, in order."""
    between: list[Node] = []
    current = graph.producer(node.inputs[0])
    while current is not None and len(between) <= _MAX_BETWEEN:
        if _match.is_op(current, "Transpose"):
            return current, tuple(reversed(between))
        source = _elementwise_source(graph, current, len(_order(graph, node) or ()))
        if source is None:
            return None, ()
        between.append(current)
        current = graph.producer(source)
    return None, ()


def _elementwise_source(graph: Graph, node: Node, rank: int) -> str | None:
    """The tensor that a node changes number by number to one of this rank, None when it does anything else."""
    if node.domain or len(node.outputs) != 1:
        return None
    if node.op_type in _ELEMENTWISE:
        return node.inputs[0]
    if node.op_type == "Clip":
        bounds = [value for value in node.inputs[1:] if value]
        return node.inputs[0] if all(graph.rank(value) == 0 for value in bounds) else None
    if node.op_type not in _WITH_NUMBER or len(node.inputs) != 2:
        return None
    for number, other in (node.inputs[::-1], node.inputs):
        axes = graph.rank(number)  # fewer than the result has: then the other operand has them all
        if axes is not None and axes < rank and _match.scalar(graph, number) is not None:
            return other
    scaled = _match.with_scalar(graph, node)
    return scaled[0] if scaled is not None else None


def _dies(graph: Graph, first: Node, last: Node, between: Sequence[Node]) -> bool:
    """True when nothing but this chain uses what the chain makes."""
    return _match.used_outside(graph, (first, *between, last), last.outputs) is None


def _copy(build: Builder, node: Node, first: Node, between: Sequence[Node], value: str) -> str:
    """The same element-wise node on another tensor."""
    chain = {first.outputs[0], *(inner.outputs[0] for inner in between)}
    inputs = [value if name in chain else name for name in node.inputs]
    return build.op(node.op_type, *inputs, **node.attrs)


# -- Reshape ----------------------------------------------------------------------------------------------


@rule("Reshape", name="reshapes")
def _reshape(graph: Graph, node: Node) -> Outcome:
    inner = _match.made_by(graph, node.inputs[0], "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
    if inner is None or graph.sole_consumer(inner.outputs[0]) is not node:
        return None
    if inner.op_type == "Transpose" and not _moves_only_ones(graph, inner):
        return None
    target = graph.constant(node.inputs[1])
    if target is None or node.attr("allowzero", 0):
        return None
    shape = _without_copies(graph, inner, [int(dim) for dim in target])
    if shape is None:
        return Refusal("reshapes", node.label, "its 0 copies a dimension that may differ before the other node")
    build = Builder(graph, node)
    y = build.op("Reshape", inner.inputs[0], build.ints(*shape))
    return build.rewrite({node.outputs[0]: y}, f"Reshape after {inner.op_type}")


def _without_copies(graph: Graph, inner: Node, target: list[int]) -> list[int] | None:
    """The target shape for the value in front of `inner`: a 0 stays where both dimensions are known equal."""
    before, after = graph.shape(inner.inputs[0]) or (), graph.shape(inner.outputs[0]) or ()
    for index, dim in enumerate(target):
        if dim != 0:
            continue
        copied = after[index] if index < len(after) else None
        if isinstance(copied, int) and copied:
            target[index] = copied
        elif not isinstance(copied, str) or index >= len(before) or before[index] != copied:
            return None
    return target


def _moves_only_ones(graph: Graph, node: Node) -> bool:
    """True when a Transpose keeps the order of all axes that are not known to be of size 1."""
    shape, order = graph.shape(node.inputs[0]), _order(graph, node)
    if shape is None or order is None:
        return False
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)


# -- Squeeze and Unsqueeze --------------------------------------------------------------------------------


@rule("Squeeze", "Unsqueeze", name="axes-pair")
def _axes_pair(graph: Graph, node: Node) -> Outcome:
    opposite = "Unsqueeze" if node.op_type == "Squeeze" else "Squeeze"
    inner = _match.made_by(graph, node.inputs[0], opposite)
    if inner is None:
        return None
    axes = _raw_axes(graph, node)
    if axes is None or axes != _raw_axes(graph, inner):
        return None
    return Builder(graph, node).rewrite({node.outputs[0]: inner.inputs[0]}, f"{opposite} and {node.op_type}")


def _raw_axes(graph: Graph, node: Node) -> list[int] | None:
    """Axes as they stand: both operators count them on the side that has them, so equal lists are inverse."""
    axes = node.attr("axes")
    if axes is None and node.input(1):
        array = graph.constant(node.input(1))
        axes = None if array is None else np.atleast_1d(array).tolist()
    return None if axes is None else sorted(axes)


RULES = (_transpose, _reshape, _axes_pair)
