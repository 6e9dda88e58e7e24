"""Nodes in order: a linked list, so that a node joins or leaves anywhere in constant time."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.errors import GraphkitError
from graphkit.node import Node


class NodeOrder:
    """The nodes of one graph in the order they run."""

    def __init__(self) -> None:
        self._first: Node | None = None
        self._last: Node | None = None
        self._size = 0
        self._listed: list[Node] | None = None  # the nodes in order, until one joins or leaves

    @property
    def nodes(self) -> Iterator[Node]:
        """Nodes in order as they stand now; nodes removed while iterating are left out."""
        listed = self._listed
        if listed is None:
            node, listed = self._first, []
            while node is not None:
                listed.append(node)
                node = node._next
            self._listed = listed
        return (node for node in listed if node.alive)

    def __len__(self) -> int:
        return self._size

    def contains(self, node: Node) -> bool:
        """True while the node is part of this graph."""
        return node.alive and node.graph is self

    def require(self, node: Node) -> None:
        """Raise GraphkitError when the node is not part of this graph (any more)."""
        if not self.contains(node):
            raise GraphkitError("the node is not part of this graph, or was removed", node=node.label)

    def _link(self, node: Node, before: Node | None) -> None:
        after = self._last if before is None else before._prev
        node._prev, node._next = after, before
        if after is None:
            self._first = node
        else:
            after._next = node
        if before is None:
            self._last = node
        else:
            before._prev = node
        self._size += 1
        self._listed = None

    def _unlink(self, node: Node) -> None:
        if node._prev is None:
            self._first = node._next
        else:
            node._prev._next = node._next
        if node._next is None:
            self._last = node._prev
        else:
            node._next._prev = node._prev
        self._size -= 1
        self._listed = None

    def reorder(self, nodes: list[Node]) -> None:
        """Put the nodes, which must be all of this graph, in this order."""
        for node in nodes:
            self._unlink(node)
            self._link(node, None)
