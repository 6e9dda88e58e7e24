"""What layers are fed with: sums X·Xᵀ over calibration data, streamed under a memory bound.

For a layer with weights W [rows, columns] and input vectors X [columns, vectors], the squared error that other
weights W' make at its output is tr((W − W') H (W − W')ᵀ) with H = X·Xᵀ: all that GPTQ (Frantar et al. 2022,
arXiv:2210.17323) needs to know of the data, and their Hessian up to a factor 2. Inputs are made by onnxruntime from the
float model, for as many layers at once as fit; layers that read the same value share one sum.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant._exposed import Exposed
from graphkit.quant._extremes import LEAST_SQUARES
from graphkit.quant._readings import Reading, readings, reason_unseen, rows_kept
from graphkit.quant._stream import Array, Counter, Progress, Sample, Shapes, Values, bytes_of, largest_shapes, packed
from graphkit.quant.layers import Layer

_Uses = tuple[Reading, ...]

_TOGETHER = 1024  # vectors


@dataclass(frozen=True, eq=False)
class Hessian:
    """The sum of X·Xᵀ over all input vectors of a layer.

    matrix: float32 [columns, columns], of a convolution in groups [groups, columns, columns]; read-only, shared by
    layers that read the same value. Rows and columns are in the order of the columns of `Layer.matrix`.
    count: number of vectors (tokens, or output positions of a convolution).
    """

    matrix: Array
    count: int


def collect(
    model: Model,
    layers: Sequence[Layer],
    samples: Sequence[Sample],
    *,
    memory: int = 1 << 30,
    progress: Progress | None = None,
) -> Iterator[tuple[Layer, Hessian]]:
    """The Hessian of each layer over all samples, in the order of the graph; one run of the model a sample and group.

    Layers are taken in groups whose Hessians and inputs (of the largest sample) together stay under `memory` bytes; a
    layer that alone is over it has a group for itself. What onnxruntime needs to run the model comes on top.
    Zeros that a convolution pads with count; padding tokens do not: where a sample has an attention mask with zeros
    (an input with 'mask' in its name, [batch, length] like the tokens), products leave out the vectors of masked
    positions, for values whose first axes are [batch, length] or batch·length.
    Layers that `unseen` names are left out. `progress(done, total)` counts runs. Raises UsageError without samples,
    GraphkitError when a sample does not run, ModelError when a layer's input is not finite, or too large to square.
    """
    if not samples:
        raise UsageError("there are no samples to calibrate with")
    graph = Graph.of(model)
    seen = [(layer, uses) for layer in layers if (uses := readings(graph, layer))]
    if not seen:
        return
    places = _positions(graph)
    seen.sort(key=lambda entry: min(places.get(output, 0) for output in entry[0].outputs))
    with Exposed(model) as exposed:
        values = {use.value for _, uses in seen for use in uses}
        groups = _groups(seen, largest_shapes(graph, exposed, values, samples), memory)
        counter = Counter(len(groups) * len(samples), progress)
        for group in groups:
            sums = {uses: _Sum(layer.groups, layer.columns, layer.name) for layer, uses in group}
            _run(graph, exposed, sums, samples, counter)
            made = {uses: total.hessian() for uses, total in sums.items()}
            del sums
            for layer, uses in group:
                yield layer, made[uses]
            del made  # before the next group needs the memory


def unseen(model: Model | Graph, layers: Sequence[Layer]) -> dict[str, str]:
    """Names of the layers for which `collect` has nothing, and why: embeddings, and layers in subgraphs."""
    graph = model if isinstance(model, Graph) else Graph.of(model)
    return {layer.name: reason_unseen(layer) for layer in layers if not readings(graph, layer)}


def output_error(hessian: Hessian, weights: Array, quantized: Array) -> float:
    """Relative error at a layer's output over the calibration data: ‖(W − W')·X‖ / ‖W·X‖, both Frobenius norms.

    weights, quantized: float [rows, columns] as `Layer.matrix` gives them. 0 when both outputs are 0, infinite when
    only the right one is.
    """
    groups = hessian.matrix.reshape(-1, *hessian.matrix.shape[-2:])
    shape = (len(groups), -1, weights.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        error, norm = _energies(groups, weights.reshape(shape), quantized.reshape(shape), np.float32)
    if not (LEAST_SQUARES < norm < math.inf and error < math.inf):  # products that are no float32 numbers
        error, norm = _energies(groups, weights.reshape(shape), quantized.reshape(shape), np.float64)
    if norm <= 0:
        return 0.0 if error <= 0 else math.inf
    return math.sqrt(max(error, 0.0) / norm)


def _energies(groups: Array, weights: Array, quantized: Array, dtype: type[np.floating[Any]]) -> tuple[float, float]:
    """tr(D·H·Dᵀ) for the change D of the weights, and for the weights."""
    right = weights.astype(dtype, copy=False)
    change = right - quantized.astype(dtype, copy=False)
    error, norm = (sum(float(np.vdot(w @ h, w)) for w, h in zip(part, groups, strict=True)) for part in (change, right))
    return error, norm


class _Sum:
    """X·Xᵀ so far; vectors wait until there are enough for a product worth its memory traffic."""

    def __init__(self, groups: int, columns: int, name: str) -> None:
        self.matrix = np.zeros((groups, columns, columns), np.float32)
        self.count = 0
        self.name = name
        self._waiting: list[Array] = []
        self._vectors = 0

    def add(self, vectors: Array) -> None:
        """Add vectors [groups, columns, vectors]. Raises ModelError when the sum is no longer finite."""
        self.count += vectors.shape[2]
        self._vectors += vectors.shape[2]
        self._waiting.append(vectors)
        if self._vectors >= _TOGETHER:
            self._flush()

    def hessian(self) -> Hessian:
        """The sum, which must not change any more."""
        self._flush()
        matrix = self.matrix[0] if len(self.matrix) == 1 else self.matrix
        matrix.flags.writeable = False
        return Hessian(matrix, self.count)

    def _flush(self) -> None:
        if not self._vectors:
            return
        vectors = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting, axis=2)
        self._waiting, self._vectors = [], 0
        with np.errstate(over="ignore", invalid="ignore"):
            if len(vectors) == 1:  # numpy takes half the work where a matrix meets its own transpose
                self.matrix[0] += vectors[0] @ vectors[0].T
            else:
                self.matrix += vectors @ vectors.swapaxes(1, 2)
        if not np.isfinite(self.matrix.diagonal(axis1=1, axis2=2)).all():
            raise ModelError(
                "its input is NaN or infinite on calibration data, or too large to be squared",
                node=self.name,
                hint="look for overflow in the float model, or skip the layer",
            )


def _run(
    graph: Graph, exposed: Exposed, sums: Mapping[_Uses, _Sum], samples: Sequence[Sample], counter: Counter
) -> None:
    """Add what the layers of one group read on all samples."""
    with Values(graph, exposed, {use.value for uses in sums for use in uses}) as inputs:
        for sample in samples:
            values, kept = inputs.run(sample), rows_kept(sample)
            for uses, total in sums.items():
                for use in uses:
                    for piece in use.vectors(values[use.value], kept):
                        total.add(piece)
            counter.step()


def _positions(graph: Graph) -> dict[str, int]:
    """Where in the order of the graph each value is made, values of subgraphs where their holder is."""
    places: dict[str, int] = {}
    for number, node in enumerate(graph.nodes):
        places.update(dict.fromkeys(node.outputs, number))
        for sub in node.subgraphs.values():
            places.update({out: number for inner in sub.walk() for n in inner.nodes for out in n.outputs})
    return places


def _groups(seen: Sequence[tuple[Layer, _Uses]], sizes: Shapes, memory: int) -> list[Sequence[tuple[Layer, _Uses]]]:
    """Runs of layers whose sums and inputs fit into `memory` bytes."""
    costs: list[dict[Hashable, int]] = []
    for layer, uses in seen:
        costs.append({use.value: bytes_of(sizes[use.value]) for use in uses})
        costs[-1][uses] = 4 * layer.groups * layer.columns * (layer.columns + 2 * _TOGETHER)
    return [seen[cut.start : cut.stop] for cut in packed(costs, memory)]
