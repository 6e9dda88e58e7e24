"""Will halves do? The largest values of a model at run time and in its weights, against what float16 can hold.

Half precision reaches 65504; beyond it is infinity, and soon NaN. MNN stores weights as halves when asked to, and
computes in halves where `precision=low` meets hardware that can; then every value must fit as well. The forecast
runs the float model on calibration data and keeps the largest absolute value of each operator's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from onnx import TensorProto

from graphkit import shapes
from graphkit.errors import UsageError
from graphkit.graph import Graph, Node
from graphkit.model import Model
from graphkit.quant._exposed import Exposed
from graphkit.quant._stream import Array, Counter, Progress, Sample, Values, bytes_of, largest_shapes, packed

HALF_MAX = 65504.0  # largest finite float16
HALF_TINY = 2.0**-25  # what is at most this large rounds to 0
_STANDS_FOR_INFINITY = 1e30  # masks are made of −3.4e38 and the like
_MEASURED = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Reach:
    """The largest absolute value of one tensor.

    kind: `value` (a graph input or the output of a node, over all samples) or `weight` (a constant). node, op: what
    makes the value or uses the weight. largest: without NaN, infinities, and numbers over 1e30 that stand for them.
    unbounded: such were there: halves turn them into infinities, which masks survive. vanishing: share of a weight's
    elements that are not 0 but become 0.
    """

    kind: Literal["value", "weight"]
    tensor: str
    node: str
    op: str
    largest: float
    unbounded: bool = False
    vanishing: float = 0.0

    @property
    def overflows(self) -> bool:
        """True when float16 cannot hold it."""
        return self.largest > HALF_MAX

    @property
    def share(self) -> float:
        """Part of float16's range that is used: above 1 it overflows, above 0.5 it is near."""
        return self.largest / HALF_MAX


@dataclass(frozen=True)
class HalfForecast:
    """Reaches of all tensors, the largest first; `unseen` counts values that could not be looked at (in subgraphs,
    or of an unknown type)."""

    values: tuple[Reach, ...]
    weights: tuple[Reach, ...]
    samples: int
    unseen: int = 0

    @property
    def overflowing(self) -> tuple[Reach, ...]:
        """Weights and values that float16 cannot hold."""
        return tuple(reach for reach in (*self.weights, *self.values) if reach.overflows)

    @property
    def near(self) -> tuple[Reach, ...]:
        """Weights and values over half the range: other data may overflow there."""
        return tuple(r for r in (*self.weights, *self.values) if r.share > 0.5 and not r.overflows)

    @property
    def unbounded(self) -> tuple[Reach, ...]:
        """Weights and values with NaN, infinities, or numbers that stand for them."""
        return tuple(reach for reach in (*self.weights, *self.values) if reach.unbounded)

    @property
    def ok(self) -> bool:
        """True when nothing overflowed."""
        return not self.overflowing


def forecast(
    model: Model, samples: Sequence[Sample], *, memory: int = 1 << 30, progress: Progress | None = None
) -> HalfForecast:
    """Measure a float model on samples, for as many values at once as fit into `memory` bytes (on the largest one).

    Float values of the main graph and constants of all graphs are looked at. `progress(done, total)` counts runs.
    Raises UsageError without samples, GraphkitError when one does not run.
    """
    if not samples:
        raise UsageError("there are no samples to forecast overflow with")
    graph = Graph.of(model)
    shapes.infer(graph)
    values, unseen = _measurable(graph)
    found: dict[str, tuple[float, bool]] = {}
    with Exposed(model) as exposed:
        sizes = largest_shapes(graph, exposed, values, samples)
        groups = packed([{value: bytes_of(sizes[value])} for value in values], memory)
        counter = Counter(len(groups) * len(samples), progress)
        for group in groups:
            with Values(graph, exposed, values[group.start : group.stop]) as part:
                for sample in samples:
                    _keep(found, part.run(sample))
                    counter.step()
    reaches = [_value_reach(graph, value, *found[value]) for value in values]
    return HalfForecast(_sorted(reaches), _sorted(weight_reaches(graph)), len(samples), unseen)


def weight_reaches(graph: Graph) -> list[Reach]:
    """Reaches of all float constants of a graph and its subgraphs that a node uses; needs no data.

    Defaults of graph inputs are constants too, as they are for MNN.
    """
    found = []
    for inner in graph.walk():
        made = [node.outputs[0] for node in inner.by_op("Constant")]
        for name in (*inner.initializers, *made):
            users = inner.consumers(name)
            if not users:
                continue
            weight = inner.initializers.get(name)
            array = inner.constant(name) if weight is None else weight.array()
            if array is not None and _is_wide(array):
                found.append(_weight_reach(name, users[0], array))
    return found


def _is_wide(array: Array) -> bool:
    return array.size > 0 and array.dtype in (np.float32, np.float64, ml_dtypes.bfloat16)


def _weight_reach(name: str, user: Node, array: Array) -> Reach:
    wide = array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
    sizes = np.abs(wide)
    vanishing = float(np.count_nonzero((sizes > 0) & (sizes <= HALF_TINY)) / sizes.size)
    return Reach("weight", name, user.label, user.op, *_reach(wide), vanishing)


def _value_reach(graph: Graph, value: str, largest: float, unbounded: bool) -> Reach:
    node = graph.producer(value)
    return Reach("value", value, node.label if node else value, node.op if node else "input", largest, unbounded)


def _reach(array: Array) -> tuple[float, bool]:
    """The largest absolute value that is bounded, and whether there are others."""
    if not array.size:
        return 0.0, False
    largest = max(float(array.max()), -float(array.min()))  # NaN when there is one
    if largest < _STANDS_FOR_INFINITY:
        return largest, False
    sizes = np.abs(array)
    return float(sizes[sizes < _STANDS_FOR_INFINITY].max(initial=0.0)), True


def _keep(found: dict[str, tuple[float, bool]], values: Mapping[str, Array]) -> None:
    for value, array in values.items():
        largest, unbounded = _reach(array)
        before = found.get(value, (0.0, False))
        found[value] = (max(before[0], largest), before[1] or unbounded)


def _measurable(graph: Graph) -> tuple[list[str], int]:
    """Float values of the main graph in its order, and how many values cannot be measured."""
    found = [name for name in graph.inputs if name not in graph.initializers and graph.dtype(name) in _MEASURED]
    unseen = 0
    for node in graph.nodes:
        for output in filter(None, node.outputs if node.op != "Constant" else ()):
            if graph.dtype(output) in _MEASURED:
                found.append(output)
            else:
                unseen += graph.dtype(output) in (TensorProto.UNDEFINED, TensorProto.BFLOAT16)
        unseen += sum(len(inner) for sub in node.subgraphs.values() for inner in sub.walk())
    return found, unseen


def _sorted(reaches: Sequence[Reach]) -> tuple[Reach, ...]:
    return tuple(sorted(reaches, key=lambda reach: -reach.largest))
