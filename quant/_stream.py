"""Values of a model on samples, streamed: how large they are, and what they are, some at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt
from onnx import helper

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.quant._exposed import Exposed
from graphkit.runtime import Session

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]
Progress = Callable[[int, int], None]
Shapes = Mapping[str, tuple[int, ...]]


class Values:
    """Values of the main graph on samples, whether computed, fed or constant; a context manager."""

    def __init__(self, graph: Graph, exposed: Exposed, values: Collection[str]) -> None:
        self._graph = graph
        self._values = sorted(set(values))
        computed = [value for value in self._values if graph.producer(value) is not None]
        self._session: Session | None = exposed.session(computed) if computed else None

    def run(self, sample: Sample) -> dict[str, Array]:
        """The values on one sample. Raises GraphkitError when onnxruntime cannot run the model on it."""
        made = self._session.run(sample) if self._session is not None else {}
        return {value: made[value] if value in made else self._given(value, sample) for value in self._values}

    def _given(self, value: str, sample: Sample) -> Array:
        if value in sample:
            return sample[value]
        weight = self._graph.initializers.get(value)
        if weight is None:
            raise UsageError(f"no value for input '{value}'")
        return weight.array()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()


class Counter:
    """Counts runs and tells of them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress, self.done = total, progress, 0

    def step(self) -> None:
        """One more run is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def largest_shapes(graph: Graph, exposed: Exposed, values: Collection[str], samples: Sequence[Sample]) -> Shapes:
    """Shapes of values on the largest sample, by one run that keeps none of them."""
    largest = max(samples, key=lambda sample: sum(array.size for array in sample.values()))
    computed = sorted(value for value in set(values) if graph.producer(value) is not None)
    found = {value: weight.dims for value, weight in graph.initializers.items() if value in values}
    found |= {value: array.shape for value, array in largest.items()}
    if computed:
        names = {f"graphkit_shape_{number}": value for number, value in enumerate(computed)}
        extra = [helper.make_node("Shape", [value], [name]) for name, value in names.items()]
        with exposed.session(list(names), extra) as session:
            shapes = session.run(largest)
        found |= {names[name]: tuple(int(size) for size in shape) for name, shape in shapes.items()}
    return found


def packed(costs: Sequence[Mapping[Hashable, int]], memory: int) -> list[range]:
    """Cut a sequence into runs that fit into `memory` bytes, each at least one long.

    `costs` are bytes of what each item needs by key; what several items of a run need is counted once.
    """
    cuts, used, known = [0], 0, set[Hashable]()
    for number, needs in enumerate(costs):
        used += sum(cost for key, cost in needs.items() if key not in known)
        if used > memory and number > cuts[-1]:
            cuts.append(number)
            used, known = sum(needs.values()), set()
        known.update(needs)
    return [range(start, end) for start, end in zip(cuts, [*cuts[1:], len(costs)], strict=True) if start < end]


def bytes_of(shape: Sequence[int]) -> int:
    """Bytes of a value of this shape as float32."""
    return 4 * math.prod(shape)
