"""Sequences of tensors that exporters make and take apart at once, as Split, Concat and plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._cleanup_noops import const_ints, pass_on
from graphkit.rewrite import Builder, Outcome, Refusal, rule

_READERS = ("SequenceAt", "SequenceLength", "ConcatFromSequence", "SequenceMap")


def _items(graph: Graph, sequence: str) -> tuple[str, ...] | None:
    maker = graph.producer(sequence)
    return maker.inputs if maker is not None and maker.op == "SequenceConstruct" else None


@rule("SequenceAt")
def sequence_at(graph: Graph, node: Node) -> Outcome:
    """An element of a sequence that was just made."""
    items, index = _items(graph, node.inputs[0]), const_ints(graph, node.inputs[1])
    if items is None:
        return None
    if index is None or not -len(items) <= index[0] < len(items):
        return Refusal("sequence-at", node.label, "its position is not a constant inside the sequence")
    return pass_on(node, items[index[0]], "take the value in place of a sequence's element")


@rule("SequenceLength")
def sequence_length(graph: Graph, node: Node) -> Outcome:
    """The length of a sequence that was just made."""
    items = _items(graph, node.inputs[0])
    if items is None:
        return None
    build = Builder(graph, node)
    length = build.const(np.array(len(items), dtype=np.int64), "length")
    return build.rewrite({node.outputs[0]: length}, "write the length of a sequence as a constant")


@rule("ConcatFromSequence")
def concat_from_sequence(graph: Graph, node: Node) -> Outcome:
    """Concat of a sequence that was just made; for a new axis the parts are unsqueezed first."""
    items = _items(graph, node.inputs[0])
    if not items:
        return None
    axis, build = node.attr("axis"), Builder(graph, node)
    if node.attr("new_axis", 0):
        if graph.opset() < 13:
            items = tuple(build.op("Unsqueeze", item, axes=[axis]) for item in items)
        else:
            axes = build.ints(axis)
            items = tuple(build.op("Unsqueeze", item, axes) for item in items)
    out = build.op("Concat", *items, axis=axis)
    return build.rewrite({node.outputs[0]: out}, "write ConcatFromSequence as Concat")


@rule("SplitToSequence")
def split_to_sequence(graph: Graph, node: Node) -> Outcome:
    """Split of known sizes, when all who use the sequence can do without it."""
    sequence = node.outputs[0]
    sizes = _split_sizes(graph, node)
    if not sizes:
        sizes = "the sequence is empty"
    if node.input(1) and not node.attr("keepdims", 1):
        sizes = "keepdims = 0 beside sizes, which ONNX ignores and onnxruntime does not"
    if isinstance(sizes, str):
        return Refusal("split-to-sequence", node.label, sizes)
    if graph.is_output(sequence):
        return Refusal("split-to-sequence", node.label, "the sequence is an output")
    for user in graph.consumers(sequence):
        needs_index = user.op == "SequenceAt" and const_ints(graph, user.inputs[1]) is None
        if user.op not in _READERS or needs_index:
            return Refusal("split-to-sequence", node.label, f"the sequence is used by {user.op} '{user.label}'")
    build = Builder(graph, node)
    parts = _split(graph, node, build, sizes)
    return build.rewrite({sequence: build.op("SequenceConstruct", *parts)}, "write SplitToSequence as Split")


def _split(graph: Graph, node: Node, build: Builder, sizes: list[int]) -> list[str]:
    axis, modern = node.attr("axis", 0), graph.opset() >= 13
    inputs = [node.inputs[0], build.ints(*sizes)] if modern else [node.inputs[0]]
    attributes: dict[str, Any] = {} if modern else {"split": sizes}
    first = build.op("Split", *inputs, outputs=len(sizes), axis=axis, **attributes)
    parts = [first, *(f"{first}:{index}" for index in range(1, len(sizes)))]
    if node.input(1) or node.attr("keepdims", 1):
        return parts
    if not modern:
        return [build.op("Squeeze", part, axes=[axis]) for part in parts]
    axes = build.ints(axis)
    return [build.op("Squeeze", part, axes) for part in parts]


def _split_sizes(graph: Graph, node: Node) -> list[int] | str:
    """Sizes of the parts, or why they are not known."""
    given = const_ints(graph, node.input(1)) if node.input(1) else (1,)
    if given is None:
        return "the sizes of the parts are not constant"
    if node.input(1) and graph.rank(node.input(1)) == 1:
        return list(given)
    shape = graph.shape(node.inputs[0])
    size = shape[node.attr("axis", 0)] if shape is not None else None
    if not isinstance(size, int):
        return "the size of the axis that is split is not known"
    step = given[0]
    return [min(step, size - start) for start in range(0, size, step)]


SEQUENCE_RULES = (split_to_sequence, sequence_at, sequence_length, concat_from_sequence)
