"""Codes of a layer put together from the rows that were found: blocks, scales, bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.mnn.carry.index import TINY, pieces
from graphkit.mnn.carry.match import Match, Taken
from graphkit.mnn.carry.parts import Matrix
from graphkit.mnn.document.tree import Array
from graphkit.quant.codes import MIN_BITS, Codes, code_range


def codes_of(match: Match, columns: int) -> Codes:
    """The codes of a layer all of whose rows were found.

    Blocks are as long as they can be with every code under its own scale; bits are as few as hold all codes. Rows of
    zeros that come from nowhere get code 0 and scale 0.
    """
    width = block_of([(part.matrix, part.source_rows) for part in match.taken], columns)
    codes = np.zeros((match.rows, columns), np.int8)
    scales = np.zeros((match.rows, columns // width), np.float32)
    asymmetric = any(part.matrix.parts.zero is not None for part in match.taken)
    zeros = np.zeros_like(scales) if asymmetric else None
    bits = max(_bits(part.matrix.parts.codes) for part in match.taken)
    for part in match.taken:
        for run in pieces(part.rows.size, columns):
            _put(part, run, code_range(bits)[0], codes, scales, zeros)
    return Codes(codes, scales, zeros, _bits(codes))


def block_of(parts: Sequence[tuple[Matrix, Array]], columns: int) -> int:
    """The largest number of columns that share a scale and a zero point, in blocks of one length."""
    changes = np.zeros(max(columns - 1, 0), bool)
    for matrix, rows in parts:
        for run in pieces(rows.size, columns):
            for array in (matrix.scales(rows[run]), matrix.zeros(rows[run])):
                if array is not None and array.strides[1]:
                    changes |= (array[:, 1:] != array[:, :-1]).any(axis=0)
    return math.gcd(columns, *(int(at) + 1 for at in np.flatnonzero(changes)))


def _put(part: Taken, run: slice, lowest: int, codes: Array, scales: Array, zeros: Array | None) -> None:
    """Codes, scales and zero points of some rows, times their factors. lowest: the least code that there is room for.

    Where all scales of a row are negative, codes change sign in their place; symmetric ones only if none is lowest.
    """
    rows, source_rows, factor = part.rows[run], part.source_rows[run], part.factor[run]
    width = codes.shape[1] // scales.shape[1]
    found = part.matrix.parts.codes[source_rows]
    scale = part.matrix.scales(source_rows)[:, ::width].astype(np.float64) * factor[:, None]
    flipped = (scale <= 0).all(axis=1) & (scale < 0).any(axis=1)
    if zeros is None:
        flipped &= found.min(axis=1) > lowest
        found[flipped] = -found[flipped]
    else:
        points = part.matrix.zeros(source_rows)
        zero = np.zeros_like(scale) if points is None else points[:, ::width].astype(np.float64)
        found[flipped], zero[flipped] = -1 - found[flipped], -1 - zero[flipped]
        zeros[rows] = zero
    scale[flipped] *= -1
    codes[rows], scales[rows] = found, scale


def _bits(codes: Array) -> int:
    lowest, highest = int(codes.min(initial=0)), int(codes.max(initial=0))
    return next(bits for bits in range(MIN_BITS, 9) if code_range(bits)[0] <= lowest and highest <= code_range(bits)[1])


def stands_for(codes: Codes, weights: Array, close: float) -> bool:
    """True when every code stands for the weight in its place, to `close` of its row's largest."""
    for run in pieces(codes.rows, codes.columns):
        zeros = None if codes.zeros is None else codes.zeros[run]
        made = Codes(codes.codes[run], codes.scales[run], zeros, codes.bits).values()
        made -= weights[run]
        if not (np.abs(made).max(axis=1) <= close * np.abs(weights[run]).max(axis=1) + TINY).all():
            return False
    return True
