"""Quantized weights of one layer: integer codes, scales and zero points of a matrix.

Every method (`rtn`, `mse`, `gptq`) makes `Codes`, and everything behind it (ONNX, .mnn, reports) reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import GraphkitError, ModelError, UsageError

Array = npt.NDArray[Any]

MIN_BITS, MAX_BITS = 2, 8
TINY_SCALE = np.float32(1e-6)  # MNN's converter stores code 0 where a scale is not above this
_PIECE = 1 << 18  # elements worked on at once: stays in the cache


@dataclass(frozen=True, eq=False)
class Codes:
    """One quantized weight as a matrix: rows are output channels (or rows of an embedding table).

    Columns are input channels × kernel, in MNN's order [oc][ic][ky][kx].

    codes: int8 [rows, columns], each in −2^(bits−1) … 2^(bits−1)−1.
    scales: float32 [rows, blocks]; `blocks` divides `columns`, a block is a run of `columns / blocks` columns.
    zeros: float32 [rows, blocks], or None when symmetric (all 0).
    bits: 2 to 8. The weight is `(code − zero) · scale`.
    Raises GraphkitError when the arrays do not fit together.
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int

    def __post_init__(self) -> None:
        check_bits(self.bits)
        fits = self.codes.ndim == self.scales.ndim == 2 and self.codes.dtype == np.int8
        fits = fits and self.scales.dtype == np.float32 and self.codes.shape[0] == self.scales.shape[0]
        fits = fits and self.scales.shape[1] > 0 and self.codes.shape[1] % self.scales.shape[1] == 0
        if self.zeros is not None:
            fits = fits and self.zeros.shape == self.scales.shape and self.zeros.dtype == np.float32
        if not fits:
            raise GraphkitError(
                f"codes {self.codes.dtype}{list(self.codes.shape)} and scales "
                f"{self.scales.dtype}{list(self.scales.shape)} do not belong together"
            )

    @property
    def rows(self) -> int:
        """Number of rows (output channels)."""
        return int(self.codes.shape[0])

    @property
    def columns(self) -> int:
        """Number of columns (input channels × kernel)."""
        return int(self.codes.shape[1])

    @property
    def blocks(self) -> int:
        """How many scales a row has."""
        return int(self.scales.shape[1])

    @property
    def block_columns(self) -> int:
        """Columns that share a scale."""
        return self.columns // self.blocks

    @property
    def symmetric(self) -> bool:
        """True without zero points."""
        return self.zeros is None

    def values(self) -> Array:
        """The weights, float32 [rows, columns]."""
        made = np.empty(self.codes.shape, np.float32)
        for start, stop in pieces(self.rows, self.columns):
            cut = (stop - start, self.blocks, self.block_columns)
            piece = made[start:stop].reshape(cut)
            if self.zeros is None:
                np.multiply(self.codes[start:stop].reshape(cut), self.scales[start:stop, :, None], out=piece)
            else:
                np.subtract(self.codes[start:stop].reshape(cut), self.zeros[start:stop, :, None], out=piece)
                piece *= self.scales[start:stop, :, None]
        return made


def stored_bytes(
    rows: int, columns: int, blocks: int, bits: int, *, symmetric: bool = True, half_scales: bool = False
) -> int:
    """Bytes that a weight of this shape takes in a .mnn file: codes packed to `bits` each, their header, and scales
    (twice as many with zeros)."""
    wide = max(rows * blocks, columns // max(blocks, 1)) > 0xFFFF
    header = 1 + (8 if wide else 4) + 1 + (1 << bits)
    scales = rows * blocks * (1 if symmetric else 2) * (2 if half_scales else 4)
    return header + (rows * columns * bits + 7) // 8 + scales


def code_range(bits: int) -> tuple[int, int]:
    """Smallest and largest code of this width: −2^(bits−1), 2^(bits−1) − 1."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def check_bits(bits: int) -> None:
    """Raise UsageError for a width that is not 2 to 8."""
    if not MIN_BITS <= bits <= MAX_BITS:
        raise UsageError(f"{bits} bits: a code has {MIN_BITS} to {MAX_BITS}", hint="4 and 8 are the usual ones")


def blocks_of(columns: int, block_columns: int, name: str = "") -> int:
    """How many blocks a row of so many columns has; `block_columns` 0 stands for the whole row.

    Raises UsageError, naming the layer, when the block does not divide the row.
    """
    if block_columns == 0 or columns == 0:
        return 1
    if block_columns < 0 or columns % block_columns:
        raise UsageError(
            f"a block of {block_columns} columns does not divide the {columns} columns of a row",
            node=name or None,
            hint="choose a divisor, or 0 for one scale a row",
        )
    return columns // block_columns


def as_matrix(matrix: Array, name: str = "") -> Array:
    """The matrix as contiguous float32. Raises ModelError, naming the layer, unless it has two dimensions."""
    if matrix.ndim != 2:
        raise ModelError(f"weights of shape {list(matrix.shape)} are no matrix", node=name or None)
    return np.ascontiguousarray(matrix, np.float32)


def check_finite(ranges: Array, name: str = "") -> None:
    """Raise ModelError, naming the layer, when NaN or an infinity is among `ranges`.

    ranges: anything that NaN and infinities of the weights pass on to, such as the largest values of rows.
    """
    if not np.isfinite(ranges).all():
        raise ModelError(
            "has weights that are NaN or infinite, which no code can stand for",
            node=name or None,
            hint="leave this layer out with --skip, or repair the model",
        )


def pieces(rows: int, columns: int) -> list[tuple[int, int]]:
    """Runs of rows that fit the cache, as (first, one past the last)."""
    step = max(1, _PIECE // max(columns, 1))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]
