"""The codes of a layer of MNN, found by what its float weights are.

Each row of a layer is looked for among the rows of all quantized weights, so that it does not matter whether passes or
MNN's converter split a weight (groups), joined several, or changed the order of output channels. A row counts as found
when every number is the quantized one, times one factor for the whole row: that is what folding a BatchNormalization
or a Mul into a layer does, and the row's scales take the factor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.mnn.carry.index import TINY, Index, Pairs, pieces
from graphkit.mnn.carry.lift import Lifted
from graphkit.mnn.carry.parts import Matrix
from graphkit.mnn.document.tree import Array

CLOSE = 2e-6  # of a row's largest number: products of float32 rounded once or twice
CLOSE_HALF = 2e-3  # the same where numbers were stored as float16
_TRIES = 8  # rows with equal signs that are compared with one row
_MOST_SOURCES = 16  # quantized weights that one layer may be made of


@dataclass(frozen=True, eq=False)
class Taken:
    """Rows of a layer that are rows of one quantized weight.

    rows: of the layer; source_rows: of `matrix`, in the same order; factor: float64, one a row.
    """

    weight: Lifted
    matrix: Matrix
    rows: Array
    source_rows: Array
    factor: Array


@dataclass(frozen=True, eq=False)
class Match:
    """Where the rows of a layer come from. `missing` counts rows that are of no quantized weight; `close` is how far
    numbers may be off, of the largest of their row.
    """

    taken: tuple[Taken, ...]
    rows: int
    missing: int
    close: float

    @property
    def weights(self) -> tuple[Lifted, ...]:
        """The quantized weights, each once."""
        return tuple(dict.fromkeys(part.weight for part in self.taken))


def find(index: Index, weights: Array, *, used: Collection[Lifted] = frozenset()) -> Match | None:
    """Where the rows of a layer [rows, columns] come from; None when no row is one of a quantized weight.

    used: weights that come last among equal ones.
    """
    search = _Search(index, weights, CLOSE_HALF if index.halved else CLOSE)
    for number in _ranked(search.pairs, [source.lifted in used for source in index.sources])[:_MOST_SOURCES]:
        if not search.open.any():
            break
        search.take(number)
    if not search.taken:
        return None
    missing = int((search.open & ~search.pairs.empty).sum())
    close = max(search.closeness(part.matrix) for part in search.taken)
    return Match(tuple(search.taken), len(weights), missing, close)


def _ranked(pairs: Pairs, used: Sequence[bool]) -> list[int]:
    """Sources by how many rows of the layer they may have; of equals one whose rows are in place, and not used yet."""
    if not pairs.row.size:
        return []
    count = len(used)
    both = np.unique(pairs.row * count + pairs.source)
    distinct = np.bincount(both % count, minlength=count)
    in_place = np.bincount(pairs.source[pairs.row == pairs.source_row], minlength=count)
    order = np.lexsort((np.arange(count), np.array(used), -in_place, -distinct))
    return [int(number) for number in order if distinct[number]]


class _Search:
    """The rows of one layer that are still to be found (`open`), and what was found."""

    def __init__(self, index: Index, weights: Array, close: float) -> None:
        self.index, self.weights, self.close = index, weights, close
        self.open = np.ones(len(weights), bool)
        self.pairs = index.pairs(weights)
        self.taken: list[Taken] = []

    def take(self, number: int) -> None:
        """Take all rows that one source has."""
        matrix = self.index.matrix(number)
        found = [part for part in self._found(matrix, *self._candidates(number)) if part[0].size]
        if not found:
            return
        rows, source_rows, factor = (np.concatenate(column) for column in zip(*found, strict=True))
        empty = self._empty_rows(matrix, rows, source_rows)
        rows, source_rows = np.concatenate([rows, empty[0]]), np.concatenate([source_rows, empty[1]])
        factor = np.concatenate([factor, np.ones(empty[0].size)])
        order = np.argsort(rows, kind="stable")
        self.open[rows] = False
        weight = self.index.sources[number].lifted
        self.taken.append(Taken(weight, matrix, rows[order], source_rows[order], factor[order]))

    def _candidates(self, number: int) -> tuple[Array, Array]:
        """Pairs of open rows and rows of one source; of those of a row the most likely first."""
        pairs = self.pairs
        mine = (pairs.source == number) & self.open[pairs.row]
        row, source_row = pairs.row[mine], pairs.source_row[mine]
        if not row.size:
            return row, source_row
        shift = source_row - row
        usual = np.unique(shift, return_counts=True)
        order = np.lexsort((shift, shift != usual[0][np.argmax(usual[1])], row))
        return row[order], source_row[order]

    def _found(self, matrix: Matrix, row: Array, source_row: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Rows, rows of the source, and factors of all that agree, trying one candidate of each row at a time."""
        for _ in range(_TRIES):
            if not row.size:
                return
            first = np.append(True, row[1:] != row[:-1])
            tried, against = row[first], source_row[first]
            agree, factor = self._compare(matrix, tried, against)
            yield tried[agree], against[agree], factor[agree]
            done = np.zeros(len(self.weights), bool)
            done[tried[agree]] = True
            left = ~first & ~done[row]
            row, source_row = row[left], source_row[left]

    def _compare(self, matrix: Matrix, rows: Array, source_rows: Array) -> tuple[Array, Array]:
        parts = [
            proportional(self.weights[rows[run]], matrix.values(source_rows[run]), self.closeness(matrix))
            for run in pieces(rows.size, matrix.columns)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def closeness(self, matrix: Matrix) -> float:
        """How far numbers may be off: further where somebody rounded them to float16."""
        return max(self.close, CLOSE_HALF) if matrix.rounded else self.close

    def _empty_rows(self, matrix: Matrix, rows: Array, source_rows: Array) -> tuple[Array, Array]:
        """Rows of zeros between those that were found, when the source has zeros there too."""
        shift = int(source_rows[0]) - int(rows[0])
        empty = np.flatnonzero(self.pairs.empty & self.open)
        against = empty + shift
        inside = (against >= 0) & (against < matrix.rows)
        empty, against = empty[inside], against[inside]
        same = np.array([not matrix.values(slice(at, at + 1)).any() for at in against], bool)
        return (empty[same], against[same]) if empty.size else (empty, against)


def proportional(weights: Array, quantized: Array, close: float) -> tuple[Array, Array]:
    """Which rows are the quantized ones times one factor each, and the factors (float64)."""
    rows = np.arange(len(quantized))
    at = np.abs(quantized).argmax(axis=1)
    largest = weights[rows, at].astype(np.float64)
    with np.errstate(all="ignore"):
        factor = largest / quantized[rows, at].astype(np.float64)
        error = np.abs(weights - quantized * factor[:, None].astype(np.float32)).max(axis=1)
        agree = np.isfinite(factor) & (factor != 0) & (error <= close * np.abs(largest) + TINY)
    return agree, np.where(agree, factor, 1.0)
