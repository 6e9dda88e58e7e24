"""How a weight of ONNX becomes the matrix [output channels, input channels × kernel] of a layer of MNN."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphkit.mnn.carry.parts import Matrix, Parts
from graphkit.mnn.document.tree import Array


def _rows(array: Array) -> Array:
    """Conv [out, in / groups, …], and matrices that are multiplied transposed."""
    return array.reshape(array.shape[0], -1)


def _columns(array: Array) -> Array:
    """The right-hand side of a MatMul, [in, out]."""
    moved = np.moveaxis(array, -1, 0)
    return moved.reshape(moved.shape[0], -1)


def _second(array: Array) -> Array:
    """ConvTranspose [in, out, …]."""
    moved = np.moveaxis(array, 1, 0)
    return moved.reshape(moved.shape[0], -1)


def _last(array: Array) -> Array:
    """Stacked matrices whose rows are rows of the layer: gates of a recurrent layer [directions, gates × out, in]."""
    return array.reshape(-1, array.shape[-1])


def _grouped(array: Array, groups: int) -> Array:
    """ConvTranspose of several groups, [in, out / groups, …]: rows of a group lie together."""
    split = array.reshape(groups, array.shape[0] // groups, array.shape[1], -1)
    return split.swapaxes(1, 2).reshape(groups * array.shape[1], -1)


_LAYOUTS: Mapping[str, Callable[[Array], Array]] = {
    "rows": _rows, "columns": _columns, "second": _second, "last": _last
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """One way to read a weight as a matrix: its name, groups of a ConvTranspose (1 for all else), the matrix's size."""

    name: str
    rows: int
    columns: int
    groups: int = 1

    def matrix(self, parts: Parts) -> Matrix:
        """Parts of a weight as this matrix."""
        change = partial(_grouped, groups=self.groups) if self.groups > 1 else _LAYOUTS[self.name]
        found = parts.mapped(change)
        assert found is not None  # these changes of shape can always be made
        return Matrix(found)


def layouts(shape: tuple[int, ...], groups: Collection[int] = ()) -> list[Layout]:
    """All layouts that may differ for a weight of this shape. groups: of ConvTransposes that use it."""
    count = math.prod(shape)
    if len(shape) < 2 or not count:
        return []
    rows = {"rows": shape[0], "columns": shape[-1]}
    if len(shape) > 2:
        rows |= {"second": shape[1], "last": count // shape[-1]}
    found = [Layout(name, number, count // number) for name, number in rows.items()]
    for number in groups:
        if number > 1 and len(shape) > 2 and shape[0] % number == 0:
            found.append(Layout("groups", number * shape[1], count // (number * shape[1]), number))
    return found
