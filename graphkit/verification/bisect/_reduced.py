"""What a reduction leaves: a small model, its sample, and how it got there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.verification.bisect._cuts import own_nodes
from graphkit.verification.bisect._values import Array


@dataclass(frozen=True)
class Step:
    """One thing that made the model smaller, what was left, and what it cost."""

    what: str
    nodes: int
    nbytes: int
    probes: int
    seconds: float


@dataclass(frozen=True)
class Reduced:
    """A model and one sample that show the fault. complete: False when the budget ended the reduction.

    unfit: candidates that could not be cut out or did not run in onnxruntime, and were not asked about; `note` has the
    reason of the last.
    """

    model: Model
    feeds: dict[str, Array]
    steps: tuple[Step, ...] = ()
    complete: bool = True
    unfit: int = 0
    note: str = ""

    @property
    def nodes(self) -> int:
        """Nodes but for constants, subgraphs included."""
        return count_nodes(self.model)

    @property
    def nbytes(self) -> int:
        """Bytes of the model with its weights."""
        return self.model.nbytes

    @property
    def labels(self) -> tuple[str, ...]:
        """What the nodes of the main graph are called, constants left out."""
        return tuple(node.label for node in own_nodes(Graph.of(self.model)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "nodes": self.nodes,
            "bytes": self.nbytes,
            "labels": list(self.labels),
            "inputs": {name: list(array.shape) for name, array in self.feeds.items()},
            "steps": [{**vars(step), "seconds": round(step.seconds, 3)} for step in self.steps],
            "complete": self.complete,
            "unfit": self.unfit,
            "note": self.note,
        }


def count_nodes(model: Model) -> int:
    """Nodes but for constants, subgraphs included."""
    return sum(len(own_nodes(graph)) for graph in Graph.of(model).walk())
