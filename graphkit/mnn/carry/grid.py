"""Float weights whose numbers are all on a grid: somebody quantized them and stored them as floats again.

Some tools hand over only what their codes stand for (onnxsim's HQQ, quantization-aware training whose fake quantizers
were folded). Codes and scales are found again: of every block, the smallest step between its numbers divides all of
them. Nothing is rounded that was not rounded before; a weight that misses the grid anywhere stays float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from graphkit.graph import Graph
from graphkit.mnn.carry.parts import Parts
from graphkit.mnn.document.tree import Array
from graphkit.weights import Weight

LEAST_BYTES = 16384  # smaller weights may be on a grid by chance or by intent (filters)
_BLOCKS = (0, 256, 128, 64, 32, 16)  # input channels that share a scale; 0 is a whole row
_SAMPLE, _SAMPLED_COLUMNS = 8, 1024  # rows that are looked at first, and how far
_LEVELS = 256
_FEW = 3  # weights of so few different numbers are masks or signs
_CLOSE = 1e-6  # of a block's largest number
_DIVISORS = range(1, 9)  # of the smallest step that was seen: neighbouring codes need not both occur
_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class _Hypothesis:
    """How scales may lie: the weight as a matrix, columns that share a scale, the way back from a matrix."""

    matrix: Array
    width: int
    back: Callable[[Array], Array]

    def sample(self) -> bool:
        """True when the first rows are on a grid of more than a few levels."""
        head = self.matrix[:_SAMPLE, : min(self.width, _SAMPLED_COLUMNS)]
        found = _fit(np.ascontiguousarray(head))
        return found is not None and int(found[0].max()) >= _FEW

    def recovered(self) -> Parts | None:
        """Codes, scales and zero points of the whole matrix; None when some of it is on no grid."""
        rows, columns = self.matrix.shape
        steps = np.empty((rows, columns), np.uint8)
        scale = np.empty((rows, columns // self.width), np.float32)
        low = np.empty_like(scale)
        for start in range(0, rows, max(1, _PIECE // columns)):
            run = slice(start, min(start + max(1, _PIECE // columns), rows))
            piece = np.ascontiguousarray(self.matrix[run])
            found = _fit(piece.reshape(-1, self.width))
            if found is None:
                return None
            steps[run] = found[0].reshape(piece.shape)
            scale[run], low[run] = found[1].reshape(scale[run].shape), found[2].reshape(scale[run].shape)
        return self._parts(steps, scale, low)

    def _parts(self, steps: Array, scale: Array, low: Array) -> Parts:
        """Parts of numbers `low + steps · scale`: symmetric where that takes no more bits."""
        bits = int(steps.max()).bit_length()
        points = -low / scale
        whole = np.rint(points)
        near = np.abs(points - whole) <= _CLOSE * (np.abs(points) + (1 << bits))
        points = np.where(near, whole, points)  # a number 0 must stay 0
        if near.all():
            codes = steps.astype(np.int32) - np.repeat(whole, self.width, axis=1).astype(np.int32)
            if codes.min() >= -(1 << (bits - 1)) and codes.max() < 1 << (bits - 1):
                return Parts(self.back(codes.astype(np.int8)), self._spread(scale), None)
        middle = 1 << max(bits - 1, 0)
        codes = (steps.astype(np.int16) - middle).astype(np.int8)
        return Parts(self.back(codes), self._spread(scale), self._spread(points - middle))

    def _spread(self, array: Array) -> Array:
        return self.back(np.repeat(array.astype(np.float32), self.width, axis=1))


def looks_quantized(weight: Weight) -> bool:
    """True when some rows of a weight are on a grid; little of it is read."""
    array: Array = weight.array()
    return array.ndim > 1 and array.size > 0 and any(guess.sample() for guess in _hypotheses(array))


def read_grid(graph: Graph, name: str) -> Parts | str:
    """Codes, scales and zero points of a float initializer on a grid; the reason when some of it is not."""
    for guess in _hypotheses(graph.initializers[name].array()):
        found = guess.recovered() if guess.sample() else None
        if found is not None:
            return found
    return "some of its float numbers are not on the grid that others are on"


def _hypotheses(array: Array) -> Iterator[_Hypothesis]:
    """The longest blocks first."""
    moved = np.moveaxis(array, -1, 0)
    views: list[tuple[Array, int, Callable[[Array], Array]]] = [
        (array.reshape(array.shape[0], -1), math.prod(array.shape[2:]), lambda found: found.reshape(array.shape)),
        (moved.reshape(moved.shape[0], -1), 1, lambda found: np.moveaxis(found.reshape(moved.shape), 0, -1)),
    ]
    for matrix, kernel, back in views:
        columns = matrix.shape[1]
        for block in _BLOCKS:
            width = block * kernel or columns
            if columns % width == 0 and (block == 0 or width < columns):
                yield _Hypothesis(matrix, width, back)


def _fit(blocks: Array) -> tuple[Array, Array, Array] | None:
    """Steps (uint8), the size of one, and the lowest number of each block; None when some block is on no grid."""
    ordered = np.sort(blocks, axis=1)
    low, span = ordered[:, 0].astype(np.float64), (ordered[:, -1] - ordered[:, 0]).astype(np.float64)
    largest = np.maximum(np.abs(ordered[:, 0]), np.abs(ordered[:, -1])).astype(np.float64)
    gaps = np.diff(ordered, axis=1).astype(np.float64)
    gaps[gaps <= _CLOSE * largest[:, None]] = np.inf
    smallest = gaps.min(axis=1, initial=np.inf)
    scale = np.where(largest > 0, largest, 1.0)  # of a block of one number
    steps = np.zeros(blocks.shape, np.uint8)
    left = np.isfinite(smallest)
    for divisor in _DIVISORS:
        at = np.flatnonzero(left)
        if not at.size:
            break
        count = np.rint(span[at] * divisor / smallest[at])
        size = span[at] / np.maximum(count, 1)
        found = np.rint((blocks[at] - low[at, None]) / size[:, None])
        error = np.abs(found * size[:, None] + low[at, None] - blocks[at]).max(axis=1)
        fits = (count < _LEVELS) & (error <= _CLOSE * largest[at])
        scale[at[fits]], steps[at[fits]] = size[fits], found[fits].astype(np.uint8)
        left[at[fits]] = False
    return None if left.any() or not np.isfinite(largest).all() else (steps, scale, low)
