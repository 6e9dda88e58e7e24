"""Rounding a matrix to codes with given scales, as MNN's converter does: in float32, halves away from zero.

Works on pieces of rows that stay in the cache, on as many threads as there are CPUs: numpy frees the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphkit.quant.codes import TINY_SCALE, Array, code_range, pieces
from graphkit.quant.executor import cpu_count

_ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # adding a whole .5 would round .49999997 up
_SIGN = np.uint32(0x80000000)
_NARROW = 256  # columns of a block up to which its extremes are found pair by pair
THREADED = 1 << 21  # elements from which threads pay


def cut(matrix: Array, blocks: int) -> Array:
    """The matrix as [rows, blocks, columns of a block], a view."""
    rows, columns = matrix.shape
    return matrix.reshape(rows, blocks, columns // max(blocks, 1))


def by_pieces(matrix: Array, work: Callable[[int, int], None]) -> None:
    """Call `work(first row, one past the last)` for runs of rows that together make the matrix."""
    rows, columns = matrix.shape
    runs = pieces(rows, columns)
    if matrix.size < THREADED:
        for start, stop in runs:
            work(start, stop)
        return
    with ThreadPoolExecutor(cpu_count()) as pool:
        for done in [pool.submit(work, start, stop) for start, stop in runs]:
            done.result()


def round_to_codes(matrix: Array, scales: Array, bits: int) -> Array:
    """The nearest codes, int8 [rows, columns]: `matrix / scale`, halves away from zero, clipped.

    matrix: float32 [rows, columns]. scales: float32 [rows, blocks]. Code 0 where the scale is not above 1e-6.
    """
    low, high = code_range(bits)
    codes = np.empty(matrix.shape, np.int8)
    divisors = np.where(scales > TINY_SCALE, scales, np.float32(np.inf))[:, :, None]

    def work(start: int, stop: int) -> None:
        steps = cut(matrix[start:stop], scales.shape[1]) / divisors[start:stop]
        away_from_zero(steps)
        codes[start:stop] = np.clip(steps, low, high, out=steps).reshape(stop - start, -1)

    by_pieces(matrix, work)
    return codes


def round_above(matrix: Array, lows: Array, scales: Array, bits: int) -> Array:
    """Codes of how many steps of the scale the matrix is above `lows` [rows, blocks], where the lowest code is.

    The lowest code where the scale is not above 1e-6.
    """
    low, high = code_range(bits)
    codes = np.empty(matrix.shape, np.int8)
    divisors = np.where(scales > TINY_SCALE, scales, np.float32(np.inf))[:, :, None]

    def work(start: int, stop: int) -> None:
        steps = cut(matrix[start:stop], scales.shape[1]) - lows[start:stop, :, None]
        steps /= divisors[start:stop]
        away_from_zero(steps)
        np.clip(steps, 0, high - low, out=steps)
        codes[start:stop] = (steps.astype(np.int16) + np.int16(low)).reshape(stop - start, -1)

    by_pieces(matrix, work)
    return codes


def away_from_zero(steps: Array, room: Array | None = None) -> None:
    """Add what makes truncation, which the cast to int8 does, round halves away from zero.

    room: uint32 of the shape of `steps`, to work in.
    """
    halves = np.bitwise_and(steps.view(np.uint32), _SIGN, out=room)
    halves |= _ALMOST_HALF.view(np.uint32)
    steps += halves.view(np.float32)


def block_extremes(piece: Array, *, largest: bool) -> Array:
    """The largest or smallest of each block of [rows, blocks, columns of a block]; NaN where one is among them."""
    step = np.maximum if largest else np.minimum
    rows, blocks, width = piece.shape
    while width % 2 == 0 and width <= _NARROW:  # numpy takes rows so short one by one; pairs go all at once
        flat = piece.reshape(-1)
        width //= 2
        piece = step(flat[0::2], flat[1::2]).reshape(rows, blocks, width)
    found: Array = step.reduce(piece, axis=2) if width > 1 else piece[:, :, 0]
    return found


def nearest(matrix: Array, scales: Array, bits: int) -> Array:
    """The nearest codes as floats [rows, blocks, columns of a block], for scales [rows, blocks] of either sign.

    Ties go to even codes; a block of scale 0 has codes 0.
    """
    low, high = code_range(bits)
    with np.errstate(divide="ignore"):
        factors = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    steps = cut(matrix, scales.shape[1]) * factors[:, :, None]
    np.rint(steps, out=steps)
    found: Array = np.clip(steps, low, high, out=steps)
    return found
