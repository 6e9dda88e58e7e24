"""Quantized weights of convolutions: what the table IDSTQuan holds, and the numbers it stands for.

Read in MNN 3.6.1's source (core/ConvolutionCommon.cpp, core/IDSTEncoder.hpp). Of its types 1 holds packed codes, 2
sparse ones, 4 plain int8; 3 holds float16 weights and is no quantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.mnn.document import _codes
from graphkit.mnn.document._codes import PLAIN, Stored, packed, plain, scattered
from graphkit.mnn.document.tree import Array, Table

HALF = 3
_TINY = 1e-6  # MNN takes a quantScale below this as not set


@dataclass(frozen=True)
class Scheme:
    """How weights are quantized.

    block: input channels that share a scale, None when an output channel has one scale. scales: dtype of the
    stored scales. whole: one scale is for the whole tensor.
    """

    bits: int
    block: int | None
    asymmetric: bool
    scales: str
    whole: bool = False

    @property
    def sharing(self) -> str:
        """What shares a scale: `per tensor`, `per channel`, `block 32`."""
        return "per tensor" if self.whole else "per channel" if self.block is None else f"block {self.block}"

    @property
    def symmetry(self) -> str:
        """`symmetric` or `asymmetric`."""
        return "asymmetric" if self.asymmetric else "symmetric"

    def __str__(self) -> str:
        return f"{self.bits}-bit, {self.sharing}, {self.symmetry}, {self.scales} scales"


@dataclass(frozen=True, eq=False)
class Codes:
    """Quantized weights, decoded a piece at a time.

    Weight number k is `stored[k] * scale[k // area] + offset[k // area]` (float32, one for each row).
    """

    scheme: Scheme
    stored: Stored
    scale: Array
    offset: Array | None
    area: int

    @property
    def count(self) -> int:
        """How many weights there are."""
        return self.stored.count

    def codes(self, start: int, stop: int) -> Array:
        """The numbers that codes `start` to `stop` stand for before scaling, int8; `start` is a multiple of 8."""
        return self.stored.read(start, stop)

    def values(self, start: int, stop: int) -> Array:
        """Weights `start` to `stop` as float32; `start` is a multiple of 8."""
        row = np.arange(start, stop) // self.area
        found: Array = self.codes(start, stop) * self.scale[row]
        return found if self.offset is None else found + self.offset[row]


def scheme_of(table: Table, alphas: int, outputs: int, channels: int) -> Scheme | None:
    """How an IDSTQuan quantizes, None when it holds no quantized weights.

    alphas: how many numbers alpha (or alphaFp16, or the external file) holds. outputs, channels: output channels of
    the convolution and input channels of each.
    """
    if table["type"] in (HALF, 0) or "index" in table:
        return None
    asymmetric = _asymmetric(table)
    rows = alphas // 2 if asymmetric else alphas
    blocks = rows // outputs if outputs > 0 else 0
    block = channels // blocks if blocks > 1 and channels >= blocks else None
    scales = "float16" if table.label("scaleStorage") == "FP16" else "float32"
    return Scheme(_bits(table), block, asymmetric, scales, whole=rows == 1 < outputs)


def decode(table: Table, scheme: Scheme, buffer: Array, alpha: Array) -> Codes | None:
    """The weights of an IDSTQuan; None when it is of another type, or when its arrays do not fit together.

    buffer: its bytes. alpha: its scales as float32 or float16, with minima between them when asymmetric.
    """
    stored = _stored(table, buffer.view(np.uint8), alpha)
    rows = alpha.size // 2 if scheme.asymmetric else alpha.size
    if stored is None or not rows or not stored.count or stored.count % rows:
        return None
    area = stored.count // rows
    with np.errstate(all="ignore"):  # a file may hold any numbers
        alpha = alpha.astype(np.float32) * _factor(table)
        if not scheme.asymmetric:
            return Codes(scheme, stored, alpha, None, area)
        low, scale = alpha[0 : 2 * rows : 2], alpha[1 : 2 * rows : 2]
        offset = low - min(np.float32(table["aMin"] or -128), np.float32(0)) * scale
    return Codes(scheme, stored, scale, offset, area)


def _stored(table: Table, data: Array, alpha: Array) -> Stored | None:
    wide = bool(table["shapeInt32"])
    match table["type"]:
        case _codes.PACKED:
            return packed(data, wide)
        case _codes.SPARSE:
            return scattered(data, wide, alpha)
        case _codes.PLAIN:
            return plain(data)
    return None


def _bits(table: Table) -> int:
    most = int(table["aMaxOrBits"])
    if table["type"] == PLAIN or most <= 0:
        return 8
    return most if most <= 8 else most.bit_length() + 1  # old files name the largest code: 127


def _asymmetric(table: Table) -> bool:
    return table["readType"] != 0 or _old(table)


def _old(table: Table) -> bool:
    return bool(table["type"] == PLAIN and table["aMin"] == 0 and abs(table["quantScale"]) < _TINY)


def _factor(table: Table) -> Any:
    return np.float32(1) if _old(table) or table["has_scaleInt"] else table["quantScale"]
