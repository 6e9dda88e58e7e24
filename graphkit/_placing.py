"""Where new nodes go when they replace several others."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

from graphkit.node import Node


def place(replaced: list[Node], protos: Iterable[NodeProto]) -> Node | None:
    """The node that new ones go in front of: after the first replaced one, and what they read."""
    span = _span(replaced)
    reads = {value for proto in protos for value in proto.input}
    last = span[0]
    for node in span[1:]:
        if node not in replaced and not reads.isdisjoint(node.outputs):
            last = node
    before = last._next
    while before is not None and before in replaced:
        before = before._next
    return before


def _span(nodes: list[Node]) -> list[Node]:
    """All nodes from the first to the last of `nodes`, found by looking both ways from one of them."""
    missing = set(nodes[1:])
    back, ahead = [nodes[0]], [nodes[0]]
    first, last = 1, 1
    while missing:
        if (node := back[-1]._prev) is not None:
            back.append(node)
            if node in missing:
                missing.remove(node)
                first = len(back)
        if (node := ahead[-1]._next) is not None:
            ahead.append(node)
            if node in missing:
                missing.remove(node)
                last = len(ahead)
    return [*reversed(back[1:first]), *ahead[:last]]
