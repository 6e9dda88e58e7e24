"""Reference values of inner tensors on one sample, computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.runtime import Session

Array = npt.NDArray[Any]


class Values(Mapping[str, Array]):
    """Values of a model's main graph by name: what is fed, what is constant, and what onnxruntime computes.

    Looking one up raises KeyError for a name that the graph does not have, and what `Session` raises.
    """

    def __init__(self, model: Model, graph: Graph, feeds: Feeds) -> None:
        self.model, self.graph, self.feeds = model, graph, feeds
        self._known: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}

    def fetch(self, names: Iterable[str]) -> None:
        """Compute several values in one run."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._known and self._made(name)]
        if wanted:
            with Session(self.model, outputs=wanted) as session:
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
