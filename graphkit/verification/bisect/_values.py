"""Reference values of inner tensors on one sample, computed when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.runtime import Session

Array = npt.NDArray[Any]


class Truth(Mapping[str, Array]):
    """Values of a model's main graph by name: what is fed, what is constant, and what onnxruntime computes.

    graph: the model's, if the caller has it. Looking one up raises KeyError for a name that the graph does not have,
    and what `Session` raises.
    """

    def __init__(self, model: Model, feeds: Feeds, graph: Graph | None = None) -> None:
        self.model, self.feeds = model, dict(feeds)
        self._graph = graph
        self._known: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}

    @property
    def graph(self) -> Graph:
        """The model's main graph."""
        if self._graph is None:
            self._graph = Graph.of(self.model)
        return self._graph

    def of(self, names: Sequence[str]) -> dict[str, Array]:
        """Several values, in one run. Raises what `Session` raises, also for a name that the graph does not have."""
        self._compute([name for name in dict.fromkeys(names) if name not in self._known])
        return {name: self._known[name] for name in names}

    def fetch(self, names: Iterable[str]) -> None:
        """Compute what nodes make of these, in one run."""
        self._compute([name for name in dict.fromkeys(names) if name not in self._known and self._made(name)])

    def steady(self, names: Sequence[str]) -> bool:
        """True when the reference computes the same a second time, bit for bit."""
        with Session(self.model, outputs=list(names)) as session:
            one, two = session.run(self.feeds), session.run(self.feeds)
        return all(np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f") for name in names)

    def _compute(self, names: list[str]) -> None:
        if names:
            with Session(self.model, outputs=names) as session:
                self._known.update(session.run(self.feeds))

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            constant = self.graph.constant(name)
            if constant is not None:
                return np.asarray(constant)
            if not self._made(name):
                raise KeyError(name)
            self.fetch([name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or (isinstance(name, str) and (self._made(name) or self.graph.is_constant(name)))

    def __iter__(self) -> Iterator[str]:
        yield from self.feeds
        for node in self.graph.nodes:
            yield from (out for out in node.outputs if out)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _made(self, name: str) -> bool:
        return self.graph.producer(name) is not None
