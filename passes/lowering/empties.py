"""Parts without elements: MNN's Split and Concat go wrong on them, and they carry nothing."""

from __future__ import annotations

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Rule, rule


def _size(graph: Graph, value: str, axis: int) -> int | None:
    """Size of an axis when it is a known number."""
    shape = graph.shape(value)
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


@rule("Concat", name="concat-of-nothing")
def concat_of_nothing(graph: Graph, node: Node) -> Outcome:
    """Operands of size 0 along the axis add nothing to the result."""
    axis = int(node.attr("axis"))
    kept = [name for name in node.inputs if _size(graph, name, axis) != 0]
    if not kept or len(kept) == len(node.inputs):
        return None
    build = Emit(graph, node)
    value = build.op("Concat", *kept, axis=axis) if len(kept) > 1 else kept[0]
    return build.rewrite({node.outputs[0]: value}, "Concat without its empty operands")


@rule("Split", name="split-off-nothing")
def split_off_nothing(graph: Graph, node: Node) -> Outcome:
    """Parts of size 0 that nobody uses; what is left is fewer parts, or all of the input."""
    axis = int(node.attr("axis", 0))
    sizes = [_size(graph, name, axis) for name in node.outputs]
    parts = [(name, size) for name, size in zip(node.outputs, sizes, strict=True) if size != 0]
    if not parts or len(parts) == len(node.outputs):
        return None
    if any(size == 0 and name and graph.is_used(name) for name, size in zip(node.outputs, sizes, strict=True)):
        return split_off_nothing.refuse(node, "a part without elements is used")
    build, known = Emit(graph, node), [size for _, size in parts if size is not None]
    if len(parts) == 1:
        return build.rewrite({parts[0][0]: node.inputs[0]}, "Split into one part")
    if len(known) != len(parts):
        return split_off_nothing.refuse(node, "the sizes of the parts are unknown")
    values = build.split(node.inputs[0], axis, known)
    outputs = {name: value for (name, _), value in zip(parts, values, strict=True) if graph.is_used(name)}
    return build.rewrite(outputs, "Split without its empty parts")


RULES: tuple[Rule, ...] = (concat_of_nothing, split_off_nothing)
