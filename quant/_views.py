"""Values between a constant and its users: which graph they live in, and Transpose and Identity on the way."""

from __future__ import annotations

from graphkit.errors import GraphkitError
from graphkit.graph import Graph, Node
from graphkit.node import with_inputs


def home_of(graph: Graph, value: str) -> Graph:
    """The graph that defines a value which this graph sees; the outermost when none does."""
    while graph.parent is not None and not graph.defines(value):
        graph = graph.parent
    return graph


def maker(graph: Graph, value: str) -> Node:
    """The node that makes a value of this graph or of one around it. Raises GraphkitError when none does."""
    node = home_of(graph, value).producer(value)
    if node is None:
        raise GraphkitError("no node makes this value", tensor=value)
    return node


class Views:
    """Gives users of `old` the value `new` in its place, through copies of the views between.

    first: where `new` is made, the node that its graph's copies must come before; None when it is there from the
    beginning. replaced: the views that were copied, nearest to `old` first.
    """

    def __init__(self, old: str, new: str, first: Node | None = None) -> None:
        self._old, self._new, self._first = old, new, first
        self._copies: dict[Node, str] = {}

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The views that users need no more."""
        return tuple(self._copies)

    def redirect(self, node: Node, index: int) -> None:
        """Let an input of a node come from `new` where it came from `old`."""
        node.graph.set_input(node, index, self._seen(node.graph, node.inputs[index]))

    def _seen(self, graph: Graph, value: str) -> str:
        if value == self._old:
            return self._new
        view = maker(graph, value)
        if view not in self._copies:
            copy = with_inputs(view.proto, [self._seen(view.graph, view.inputs[0])])
            copy.name = view.graph.new_name(f"{value}_view")
            del copy.output[:]
            copy.output.append(copy.name)
            beside = self._first is not None and self._first.graph is view.graph
            view.graph.insert(copy, self._first if beside else view)
            self._copies[view] = copy.name
        return self._copies[view]
