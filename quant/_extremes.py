"""Rows of weights so large, or so small, that their squares are no float32 numbers.

Least squares and GPTQ then see infinities, or nothing. A row times a power of two has the same codes, and its scales
are divided by that power: both exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from graphkit.quant.codes import Array, Codes

LEAST_SQUARES = 1e-25  # a sum of squares below: some of them were lost
_USUAL = 40  # powers of two either way; squares, and sums of many, are then far from the ends of float32


def without_extreme_rows(matrix: Array, quantize: Callable[[Array], Codes]) -> Codes:
    """What `quantize` makes of the matrix, float32 [rows, columns], with its extreme rows near 1 for as long."""
    if not matrix.size or matrix.ndim != 2:
        return quantize(matrix)  # which says what is wrong
    powers = np.frexp(np.maximum(matrix.max(axis=1), -matrix.min(axis=1)))[1]  # 0 for NaN and infinities
    powers[np.abs(powers) <= _USUAL] = 0
    if not powers.any():
        return quantize(matrix)
    codes = quantize(np.ldexp(matrix, -powers[:, None]))
    return replace(codes, scales=np.ldexp(codes.scales, powers[:, None]))
