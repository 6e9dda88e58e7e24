"""The three ways in which IDSTQuan's buffer holds codes: packed behind a header, plain int8, sparse.

Read in MNN 3.6.1's source (core/ConvolutionCommon.cpp, ReadQuanData_c and ReadSparseQuanData_c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graphkit.mnn.document.tree import Array

PACKED, SPARSE, PLAIN = 1, 2, 4
_MOST = 1 << 28  # sparse codes that are counted out; more are compared by their bytes


class Stored(Protocol):
    """Codes that can be read a piece at a time."""

    @property
    def count(self) -> int:
        """How many codes there are."""

    def read(self, start: int, stop: int) -> Array:
        """The int8 numbers of a piece; `start` is a multiple of 8."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Codes of `bits` bits, the first in the highest bits; `levels` (int8) is what each code means."""

    count: int
    packed: Array
    levels: Array

    def read(self, start: int, stop: int) -> Array:
        """The int8 numbers of a piece; `start` is a multiple of 8."""
        bits = int(self.levels.size - 1).bit_length()
        piece = self.packed[start * bits // 8 : -(-stop * bits // 8)]
        found: Array = self.levels[unpack(piece, bits, stop - start)]
        return found


@dataclass(frozen=True, eq=False)
class Scattered:
    """Codes that are `usual` (int8, one for each of equal rows) except at `places`, which ascend."""

    count: int
    usual: Array
    places: Array
    numbers: Array

    def read(self, start: int, stop: int) -> Array:
        """The int8 numbers of a piece."""
        area = self.count // self.usual.size
        found: Array = self.usual[np.arange(start, stop) // area]
        low, high = np.searchsorted(self.places, (start, stop))
        found[self.places[low:high] - start] = self.numbers[low:high]
        return found


def plain(data: Array) -> Packed:
    """Int8 weights as they are."""
    return Packed(data.size, data, np.arange(256, dtype=np.uint8).view(np.int8))


def packed(data: Array, wide: bool) -> Packed | None:
    """Codes behind a header: dims, levels; None when the buffer is too short. wide: dims take 4 bytes, not 2."""
    dims, at = _dims(data, wide)
    if not dims or at >= data.size:
        return None
    count = math.prod(dims)
    known = _number(data[at])
    bits = max(1, (known - 1).bit_length())
    levels = np.zeros(1 << bits, np.int8)
    samples = np.sort(data[at + 1 : at + 1 + known].view(np.int8))
    codes = data[at + 1 + known :]
    if samples.size < known or codes.size < -(-count * bits // 8):
        return None
    levels[:known] = samples
    return Packed(count, codes, levels)


def scattered(data: Array, wide: bool, alpha: Array) -> Scattered | None:
    """Codes that differ from zero, with the steps between them; None when the buffer is too short.

    alpha: scales, or minima and scales: then what is left out is the code nearest to 0.
    """
    dims, at = _dims(data, wide)
    if not dims or data.size < at + 5 or not 0 < math.prod(dims) <= _MOST:
        return None
    many, bits = int(data[at : at + 4].view("<u4")[0]), int(data[at + 4])
    steps, at = _run(data, at + 5, bits, many)
    if steps is None or at >= data.size:
        return None
    known = _number(data[at])
    levels = np.unique(data[at + 1 : at + 1 + known].view(np.int8))
    width = max(1, (known - 1).bit_length())
    index, _ = _run(data, at + 1 + known, width, many)
    places = np.cumsum(steps, dtype=np.int64)
    if index is None or (many and (int(places[-1]) >= math.prod(dims) or int(index.max()) >= levels.size)):
        return None
    last = np.append(places[1:] != places[:-1], True)[:many]  # of two codes for one place the later one stands
    return Scattered(math.prod(dims), _usual(dims[0], width, alpha), places[last], levels[index][last])


def _usual(rows: int, bits: int, alpha: Array) -> Array:
    """What codes are that a sparse buffer leaves out, for each row."""
    least = -(1 << (bits - 1))
    if alpha.size != 2 * rows:
        return np.zeros(1, np.int8)
    low, scale = alpha[0::2].astype(np.float32), alpha[1::2].astype(np.float32)
    with np.errstate(all="ignore"):
        nearest = np.where(scale > 1e-6, np.trunc(-low / scale + np.copysign(np.float32(0.5), -low)), 0)
        found: Array = (np.nan_to_num(nearest).astype(np.int64) + least).astype(np.int8)
    return found


def _dims(data: Array, wide: bool) -> tuple[list[int], int]:
    """The dims at the start of a buffer, none when they are cut off, and where they end."""
    width = 4 if wide else 2
    number = int(data[0]) if data.size else 0
    end = 1 + number * width
    if not 1 <= number <= 32 or end > data.size:
        return [], 0
    return [int(dim) for dim in data[1:end].view(f"<u{width}")], end


def _number(byte: np.uint8) -> int:
    return int(byte) or 256


def _run(data: Array, at: int, bits: int, count: int) -> tuple[Array | None, int]:
    """`count` codes of `bits` bits at a place, None when there are not as many, and where they end."""
    end = at + -(-count * bits // 8)
    if not 1 <= bits <= 8 or end > data.size:
        return None, end
    return unpack(data[at:end], bits, count), end


def unpack(data: Array, bits: int, count: int) -> Array:
    """`count` codes of `bits` bits as uint8, the first in the highest bits."""
    if bits == 8:
        return data[:count]
    if bits == 4:
        return np.stack((data >> 4, data & 15), axis=1).reshape(-1)[:count]
    planes = np.unpackbits(data)[: count * bits].reshape(count, bits)
    return planes @ (1 << np.arange(bits - 1, -1, -1, dtype=np.uint8))
