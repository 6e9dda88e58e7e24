"""Models made of some of a model's nodes: what they read and do not make is fed from the reference, or constant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node
from graphkit.proof import Feeds
from graphkit.verification.bisect._values import Array, Truth
from graphkit.verification.bisect.cutting import _THROUGH, cut, feeds_of
from graphkit.verification.bisect.regions import constant_nodes, of_nodes

_SMALL = 64  # elements: integers that few are shapes, axes and indices, which exporters write as constants
Piece = tuple[Model, dict[str, Array]]


class Cuts:
    """All models that can be cut out of one on one sample. Constant nodes go where they are read."""

    def __init__(self, model: Model, feeds: Feeds) -> None:
        self.model = model
        self.graph = Graph.of(model)
        shapes.infer(self.graph)
        self.values = Truth(model, feeds, self.graph)
        self.fixed = constant_nodes(self.graph)
        self.nodes = own_nodes(self.graph)

    def of(self, nodes: Collection[Node], outputs: Sequence[str] | None = None, *, freeze: bool = True) -> Piece:
        """The nodes as a model with its feeds; `outputs` are by default what no other of the nodes reads.

        Values between the nodes are not exposed, for MNN fuses nothing across an output. freeze: what is made outside
        from constants alone becomes a constant, and so do small integers. Raises GraphkitError when a value cannot be
        computed or fed.
        """
        region = of_nodes(self.graph, nodes, outputs or self.ends(nodes))
        self.values.fetch(region.inputs)
        fold = [name for name in region.inputs if freeze and self._is_frozen(name)]
        return cut(region, self.values, fold=fold), feeds_of(region, self.values, fold=fold)

    def _is_frozen(self, value: str) -> bool:
        if value in self.graph.input_infos:
            return False
        return self.graph.producer(value) in self.fixed or _is_small_integer(self.values[value])

    def ends(self, nodes: Collection[Node]) -> list[str]:
        """Values of the nodes that none of them reads but something else does, and outputs of the whole model."""
        chosen = set(nodes)
        return [
            out
            for node in self.graph.nodes
            if node in chosen
            for out in node.outputs
            if out and (self.graph.is_output(out) or (self._read(out) and not self._read(out) & chosen))
        ]

    def _read(self, value: str) -> set[Node]:
        return set(self.graph.consumers(value))

    def named(self, labels: Iterable[str]) -> list[Node]:
        """Nodes by their labels, in order; those that do not exist are left out."""
        wanted = set(labels)
        return [node for node in self.nodes if node.label in wanted]


def own_nodes(graph: Graph) -> list[Node]:
    """Nodes of a graph but for constants and what `cut` adds to a model that would have no input."""
    return [node for node in graph.nodes if node.op != "Constant" and not is_added(node.label)]


def is_added(name: str) -> bool:
    """True for a value or a node that `cut` adds."""
    return name.startswith(_THROUGH)


def _is_small_integer(array: Array) -> bool:
    return array.dtype.kind in "iub" and array.ndim <= 1 and array.size <= _SMALL
