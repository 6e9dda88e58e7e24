"""Error sums over two arrays of equal shape, for `compare`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_BLOCK = 1 << 20  # elements that are widened to float64 at a time


@dataclass
class Stats:
    """Sums over positions where both are finite, and counts of the others."""

    max_abs: float = 0.0
    max_ref: float = 0.0
    error2: float = 0.0
    expected2: float = 0.0
    actual2: float = 0.0
    dot: float = 0.0
    finite: int = 0
    nan_mismatch: int = 0
    inf_mismatch: int = 0
    differing: int = 0
    worst: int | None = None
    mismatch: int | None = None

    def max_error(self, atol: float) -> float:
        """Largest error over the reference's largest value, or over `atol` when that is larger."""
        return self.max_abs / max(self.max_ref, atol, 1e-300)

    @property
    def rel_l2(self) -> float:
        """Norm of the error over norm of the reference."""
        if self.expected2 == 0:
            return 0.0 if self.error2 == 0 else math.inf
        return math.sqrt(self.error2 / self.expected2)

    @property
    def cosine(self) -> float:
        """Cosine of the two as vectors; 1 when both are zero, 0 when one is."""
        norms = math.sqrt(self.expected2) * math.sqrt(self.actual2)
        if norms == 0:
            return 1.0 if self.expected2 == self.actual2 else 0.0
        return min(1.0, max(-1.0, self.dot / norms))


def measure(expected: Array, actual: Array) -> Stats:
    """Go over both arrays in blocks, so that widening to float64 needs little memory."""
    stats = Stats()
    flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, expected.size, _BLOCK):
            end = start + _BLOCK
            _add_block(stats, flat_expected[start:end], flat_actual[start:end], start)
    return stats


def _add_block(stats: Stats, expected: Array, actual: Array, start: int) -> None:
    if kind_of(expected) == "integer" and kind_of(actual) == "integer":
        # Compared as they are: int64 does not fit into float64.
        unequal = np.flatnonzero(expected != actual)
        stats.differing += unequal.size
        if unequal.size and stats.mismatch is None:
            stats.mismatch = start + int(unequal[0])
    reference, candidate = _bounded(expected), _bounded(actual)
    nan = np.isnan(reference) != np.isnan(candidate)
    infinite = (np.isinf(reference) | np.isinf(candidate)) & (reference != candidate) & ~nan
    stats.nan_mismatch += int(nan.sum())
    stats.inf_mismatch += int(infinite.sum())
    wrong = np.flatnonzero(nan | infinite)
    if wrong.size and stats.mismatch is None:
        stats.mismatch = start + int(wrong[0])
    _add_finite(stats, reference, candidate, start)


def _bounded(array: Array) -> Array:
    """As float64, the borders of float32 as infinities: they stand for them in masks, and would dwarf all else."""
    values = array.astype(np.float64)
    return np.where(np.abs(values) == _FLOAT32_MAX, np.copysign(np.inf, values), values)


def _add_finite(stats: Stats, reference: Array, candidate: Array, start: int) -> None:
    finite = np.isfinite(reference) & np.isfinite(candidate)
    count = int(finite.sum())
    if count == 0:
        return
    stats.finite += count
    reference, candidate = np.where(finite, reference, 0.0), np.where(finite, candidate, 0.0)
    error = np.abs(candidate - reference)
    position = int(error.argmax())
    if stats.worst is None or error[position] > stats.max_abs:
        stats.worst, stats.max_abs = start + position, float(error[position])
    stats.max_ref = max(stats.max_ref, float(np.abs(reference).max()))
    stats.error2 += float(error @ error)
    stats.expected2 += float(reference @ reference)
    stats.actual2 += float(candidate @ candidate)
    stats.dot += float(reference @ candidate)


def kind_of(array: Array) -> str:
    """'float' (with bfloat16 and 8-bit floats), 'integer' (with bool) or 'other' (text, complex)."""
    if array.dtype.kind in "iub" or array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return "integer"
    return "float" if array.dtype.kind == "f" or "float" in array.dtype.name else "other"
