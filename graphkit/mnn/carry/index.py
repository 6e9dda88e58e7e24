"""Which rows of which quantized weights could the rows of a layer be?

Every row is known by the signs of its numbers: what scales a channel on its way (a BatchNormalization or a Mul that
was folded in) leaves them as they are, or turns all of them. Signs only tell where to look; what is found is compared
number by number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from graphkit.mnn.carry.layouts import Layout, layouts
from graphkit.mnn.carry.lift import Form, Lifted
from graphkit.mnn.carry.parts import Matrix
from graphkit.mnn.document.tree import Array
from graphkit.node import Node

_PIECE = 1 << 17  # numbers looked at together: they stay in the cache
_MOST = 1 << 22  # pairs of rows with equal signs looked at for one layer
# Smaller numbers than these are zeros in MNN's files: its converter does not keep denormal ones.
TINY = np.finfo(np.float32).tiny
_MANTISSA = 52  # bits of a sum of float64 that are exact


@dataclass(frozen=True, eq=False)
class Source:
    """One quantized weight in one form, as one matrix."""

    lifted: Lifted
    form: Form
    layout: Layout


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of a layer and rows of sources that have the same signs: three arrays of one length.

    empty: which rows of the layer are zeros, bool [rows].
    """

    row: Array
    source: Array
    source_row: Array
    empty: Array


@dataclass(eq=False)
class _Group:
    """Rows of all sources with one number of columns, ordered by their marks."""

    marks: list[Array] = field(default_factory=list)
    sources: list[Array] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    ordered: tuple[Array, Array, Array] | None = None

    def order(self) -> tuple[Array, Array, Array]:
        if self.ordered is None:
            marks = np.concatenate(self.marks)
            order = np.argsort(marks, kind="stable")
            sources, rows = np.concatenate(self.sources), np.concatenate(self.rows)
            self.ordered = marks[order], sources[order], rows[order]
        return self.ordered

    def in_place(self, wanted: Array) -> Pairs:
        """Rows with these marks paired with the rows in their place, of sources that have as many: for rows so short
        that their signs tell little.
        """
        alike = [at for at, marks in enumerate(self.marks) if marks.size == wanted.size]
        rows = [np.flatnonzero((self.marks[at] == wanted) & (wanted != 0)) for at in alike]
        row = np.concatenate([np.zeros(0, np.int64), *rows])
        sources = [self.sources[at][: found.size] for at, found in zip(alike, rows, strict=True)]
        return Pairs(row, np.concatenate([np.zeros(0, np.int32), *sources]), row, wanted == 0)


class Index:
    """Rows of quantized weights by their signs, for the row lengths that are asked for.

    halved: layers hold their numbers as float16. refused: why a weight could not be read, by the weight.
    """

    def __init__(self, lifted: Sequence[Lifted], columns: Collection[int], *, halved: bool = False) -> None:
        self.halved = halved
        self.sources: list[Source] = []
        self.refused: dict[Lifted, str] = {}
        self._groups: dict[int, _Group] = {}
        self._kept: OrderedDict[int, Matrix] = OrderedDict()
        for weight in lifted:
            self._add(weight, columns)

    def _add(self, weight: Lifted, columns: Collection[int]) -> None:
        for form in weight.forms:
            parts = weight.parts(form)
            if isinstance(parts, str):
                self.refused[weight] = parts
                return
            shape = parts.codes.shape
            if form.nodes and _adds_nothing(form.nodes[-1], len(shape)):
                continue
            for layout in layouts(shape, weight.groups):
                if layout.columns in columns:
                    self._note(Source(weight, form, layout), layout.matrix(parts))

    def _note(self, source: Source, numbers: Matrix) -> None:
        rows, columns = source.layout.rows, source.layout.columns
        group = self._groups.setdefault(columns, _Group())
        runs = pieces(rows, columns)
        group.marks.append(np.concatenate([marks(self._stored(numbers.values(run))) for run in runs]))
        group.sources.append(np.full(rows, len(self.sources), np.int32))
        group.rows.append(np.arange(rows, dtype=np.int32))
        self.sources.append(source)

    def _stored(self, values: Array) -> Array:
        """Numbers as layers hold them."""
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32) if self.halved else values

    def matrix(self, number: int) -> Matrix:
        """The numbers of a source; the last one asked for is kept."""
        if number not in self._kept:
            self._kept.clear()
            source = self.sources[number]
            parts = source.lifted.parts(source.form)
            assert not isinstance(parts, str)  # it was read before
            self._kept[number] = source.layout.matrix(parts)
        return self._kept[number]

    def pairs(self, weights: Array) -> Pairs:
        """Rows of a layer [rows, columns] and rows of sources that have the same signs; rows of zeros have no pair."""
        rows, columns = weights.shape
        group = self._groups.get(columns)
        if group is None:
            none = np.zeros(0, np.int64)
            return Pairs(none, none, none, np.zeros(rows, bool))
        known, sources, source_rows = group.order()
        wanted = np.concatenate([marks(weights[piece]) for piece in pieces(rows, columns)])
        low, high = np.searchsorted(known, wanted, "left"), np.searchsorted(known, wanted, "right")
        counts = np.where(wanted == 0, 0, high - low)
        if counts.sum() > _MOST:
            return group.in_place(wanted)
        row = np.repeat(np.arange(rows), counts)
        at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return Pairs(row, sources[at], source_rows[at], wanted == 0)


def _adds_nothing(node: Node, rank: int) -> bool:
    """True for a node behind which a weight has the same matrices as before it."""
    return node.op == "Identity" or (node.op == "Transpose" and rank == 2)


def marks(values: Array) -> Array:
    """A number for the signs of each row, the same for a row and for its negative; 0 for rows of zeros.

    It is the size of a sum of random whole numbers, exact in float64, so that it depends on nothing but the signs.
    """
    signs = (values >= TINY).astype(np.float64) - (values <= -TINY)
    found: Array = np.abs(signs @ _numbers(values.shape[1]))
    return found


@lru_cache(maxsize=64)
def _numbers(count: int) -> Array:
    """Random whole numbers whose sums are exact in float64."""
    bits = max(8, _MANTISSA - count.bit_length())
    return np.random.default_rng(count).integers(1, 1 << bits, count).astype(np.float64)


def pieces(rows: int, columns: int) -> list[slice]:
    """All rows in runs that are small."""
    step = max(1, _PIECE // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
