"""Rounding of matrices that lie in memory column by column, as the weights of MatMul do, where they lie.

Turning a matrix round costs more than all that is computed on it. So weights [rows, columns] whose transpose is
contiguous are worked on as that transpose, here called `stored` [columns, rows]: scales lie along its rows. Runs of
them stay in the cache; each thread keeps its buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np

from graphkit.quant._rounding import THREADED, away_from_zero
from graphkit.quant.codes import TINY_SCALE, Array, Codes, pieces
from graphkit.quant.executor import cpu_count

T = TypeVar("T")
Run = tuple[int, int, int]  # first column, one past the last, the block they belong to


def lies_by_columns(matrix: Array) -> bool:
    """True for a float32 matrix whose transpose is contiguous, and it is not."""
    flags = matrix.flags
    return matrix.dtype == np.float32 and bool(flags.f_contiguous) and not flags.c_contiguous


def largest(matrix: Array, blocks: int) -> Array:
    """The largest absolute weight of each block [rows, blocks]; NaN where one is among them."""
    stored = matrix.T
    found = np.zeros((blocks, stored.shape[1]), np.float32)

    def work(runs: Sequence[Run]) -> list[tuple[int, Array]]:
        return [(block, np.abs(piece, out=room).max(axis=0)) for block, piece, room in _pieces(stored, runs)]

    for block, tops in _shared(stored, blocks, work):
        np.maximum(found[block], tops, out=found[block])
    return found.T


def round_to_codes(matrix: Array, scales: Array) -> Array:
    """The nearest codes [rows, columns], halves away from zero, for scales [rows, blocks] that clip nothing.

    They lie as the matrix does. Code 0 where the scale is not above 1e-6.
    """
    stored = matrix.T
    codes = np.empty(stored.shape, np.int8)
    divisors = np.ascontiguousarray(np.where(scales > TINY_SCALE, scales, np.float32(np.inf)).T)

    def work(runs: Sequence[Run]) -> list[None]:
        spare = np.empty((_longest(runs), stored.shape[1]), np.uint32)
        for (start, stop, block), (_, piece, room) in zip(runs, _pieces(stored, runs), strict=True):
            np.divide(piece, divisors[block], out=room)
            away_from_zero(room, spare[: stop - start])
            np.copyto(codes[start:stop], room, casting="unsafe")
        return []

    _shared(stored, scales.shape[1], work)
    return codes.T


def squares(matrix: Array, codes: Codes) -> tuple[float, float]:
    """Sums of the squares of what symmetric codes, which lie as the matrix does, change, and of the matrix."""
    stored, lying, scales = matrix.T, codes.codes.T, np.ascontiguousarray(codes.scales.T)

    def work(runs: Sequence[Run]) -> list[tuple[float, float]]:
        sums = []
        for (start, stop, block), (_, piece, room) in zip(runs, _pieces(stored, runs), strict=True):
            np.copyto(room, lying[start:stop])  # faster than a product of two types
            room *= scales[block]
            room -= piece
            sums.append((float(np.vdot(room, room)), float(np.vdot(piece, piece))))
        return sums

    parts = _shared(stored, codes.blocks, work)
    return sum(error for error, _ in parts), sum(size for _, size in parts)


def _longest(runs: Sequence[Run]) -> int:
    return max((stop - start for start, stop, _ in runs), default=0)


def _pieces(stored: Array, runs: Sequence[Run]) -> Iterator[tuple[int, Array, Array]]:
    """Each run's block, weights, and a buffer of its shape, the same for all."""
    room = np.empty((_longest(runs), stored.shape[1]), np.float32)
    for start, stop, block in runs:
        yield block, stored[start:stop], room[: stop - start]


def _shared(stored: Array, blocks: int, work: Callable[[Sequence[Run]], list[T]]) -> list[T]:
    """What `work` makes of all runs, shared between threads where that pays."""
    columns, rows = stored.shape
    width = columns // max(blocks, 1)
    runs = [(b * width + start, b * width + stop, b) for b in range(blocks) for start, stop in pieces(width, rows)]
    count = cpu_count() if stored.size >= THREADED else 1
    if count == 1:
        return work(runs)
    pool = _pool(count, os.getpid())
    return [part for parts in pool.map(work, [runs[i::count] for i in range(count)]) for part in parts]


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, of this process: new ones for each matrix cost a tenth of the work."""
    return ThreadPoolExecutor(count, "columns")
