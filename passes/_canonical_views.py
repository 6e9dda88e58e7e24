"""Chains of operators that only rename axes (Reshape, Squeeze, Unsqueeze, Flatten) or join values, as one."""

from __future__ import annotations

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._canonical_attributes import schema_defaults, with_attributes
from graphkit.passes._cleanup_noops import const_ints, ints_of, pass_on
from graphkit.rewrite import Builder, Outcome, rule

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def _maker(graph: Graph, node: Node, *ops: str) -> Node | None:
    maker = graph.producer(node.inputs[0])
    return maker if maker is not None and maker.op in ops else None


@rule("Reshape")
def reshape_of_view(graph: Graph, node: Node) -> Outcome:
    """Reshape needs no other view before it, unless it copies a size that only the view has there."""
    view = _maker(graph, node, *_VIEWS)
    if view is None or graph.opset() < 5 or not _copies_same(graph, node, view):
        return None
    return with_attributes(node, f"drop {view.op_type} before Reshape", inputs=[view.inputs[0], *node.inputs[1:]])


def _copies_same(graph: Graph, node: Node, view: Node) -> bool:
    if node.attr("allowzero", 0):
        return True
    target = const_ints(graph, node.inputs[1])
    if target is None:
        return False
    before, between = graph.shape(view.inputs[0]) or (), graph.shape(node.inputs[0]) or ()
    copied = [axis for axis, size in enumerate(target) if size == 0]
    return all(axis < min(len(before), len(between)) and None is not before[axis] == between[axis] for axis in copied)


def _axes(graph: Graph, node: Node) -> list[int] | None:
    """Axes of a Squeeze or Unsqueeze counted from the front, None when they are not known."""
    axes = ints_of(graph, node, 1, "axes")
    rank = graph.rank(node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0])
    if axes is None or rank is None:
        return None
    return sorted(axis % rank for axis in axes)


@rule("Squeeze", "Unsqueeze")
def there_and_back(graph: Graph, node: Node) -> Outcome:
    """Squeeze and Unsqueeze of the same axes are nothing together."""
    other = _maker(graph, node, "Unsqueeze" if node.op_type == "Squeeze" else "Squeeze")
    axes = _axes(graph, node)
    if other is None or axes is None or axes != _axes(graph, other):
        return None
    return pass_on(node, other.inputs[0], f"remove {other.op_type} and {node.op_type} of the same axes")


@rule("Unsqueeze")
def double_unsqueeze(graph: Graph, node: Node) -> Outcome:
    """Two Unsqueezes in a row are one."""
    first, rank = _maker(graph, node, "Unsqueeze"), graph.rank(node.outputs[0])
    if first is None or rank is None or graph.sole_consumer(first.outputs[0]) is None:
        return None
    inner, outer = _axes(graph, first), _axes(graph, node)
    if inner is None or outer is None:
        return None
    free = [axis for axis in range(rank) if axis not in outer]
    axes = sorted([*outer, *(free[axis] for axis in inner)])
    what = "write two Unsqueezes as one"
    if "axes" in schema_defaults("Unsqueeze", graph.opset()):
        return with_attributes(node, what, {"axes": axes}, inputs=[first.inputs[0]])
    build = Builder(graph, node)
    name = build.ints(*axes)
    return with_attributes(node, what, inputs=[first.inputs[0], name], constants=build.constants)


@rule("Concat")
def nested_concat(graph: Graph, node: Node) -> Outcome:
    """Concat of Concats along the same axis is one; the last of a chain takes all others in at once."""
    user = graph.sole_consumer(node.outputs[0])
    if user is not None and _joined(graph, node.outputs[0], user) is not None:
        return None
    inputs: list[str] = []
    stack = [node.outputs[0]]
    while stack:
        value = stack.pop()
        inner = node if value == node.outputs[0] else _joined(graph, value, node)
        if inner is None:
            inputs.append(value)
        else:
            stack.extend(reversed(inner.inputs))
    if inputs == list(node.inputs):
        return None
    return with_attributes(node, "join Concats along one axis", inputs=inputs)


def _joined(graph: Graph, value: str, user: Node) -> Node | None:
    """The Concat that makes a value, when only a Concat along the same axis uses it."""
    inner = graph.producer(value)
    if inner is None or inner.op != "Concat" or user.op != "Concat" or graph.sole_consumer(value) is None:
        return None
    return inner if inner.attr("axis") == user.attr("axis") else None


VIEW_RULES = (there_and_back, double_unsqueeze, reshape_of_view, nested_concat)
