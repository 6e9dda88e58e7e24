"""A quantized tensor taken apart: codes, scales, zero points, each brought to the codes' shape.

What moves numbers (Transpose, Reshape, …) is applied to all three alike, so that the scale of every code stays known
whatever stood between the stored weight and the layer that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from graphkit.mnn.document.tree import Array
from graphkit.node import Node
from graphkit.passes._dequantize import view

DType = np.dtype[Any]
_FLOAT = np.dtype(np.float32)
_LOWEST, _HIGHEST = -128, 127


@dataclass(frozen=True, eq=False)
class Parts:
    """A tensor of the values `(code − zero) · scale`.

    codes: int8. scale, zero: float32 views that broadcast over the codes; zero is None where all are 0.
    kinds: float types that the product was rounded to on its way, one after another.
    """

    codes: Array
    scale: Array
    zero: Array | None
    kinds: tuple[DType, ...] = (_FLOAT,)

    def through(self, node: Node, constants: list[Array]) -> Parts | None:
        """What a node that only moves numbers (or a Cast between floats) makes of it; None for other casts, and for
        shapes that do not fit.
        """
        if node.op == "Cast":
            kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(int(node.attr("to"))))
            return replace(self, kinds=(*self.kinds, kind)) if _is_float(kind) else None
        try:
            return self.mapped(lambda array: view(node, [array, *constants]))
        except (ValueError, IndexError):
            return None

    def mapped(self, change: Callable[[Array], Array | None]) -> Parts | None:
        """Codes, scales and zero points after a change of shape; None when there is none."""
        codes, scale = change(self.codes), change(self._spread(self.scale))
        zero = None if self.zero is None else change(self._spread(self.zero))
        if codes is None or scale is None or (zero is None) != (self.zero is None):
            return None
        return Parts(codes, scale, zero, self.kinds)

    def _spread(self, array: Array) -> Array:
        return np.broadcast_to(array, self.codes.shape)


@dataclass(frozen=True, eq=False)
class Matrix:
    """Parts with two dimensions: rows are what a layer of MNN has a weight vector for."""

    parts: Parts

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.parts.codes.shape[0])

    @property
    def columns(self) -> int:
        """How many columns."""
        return int(self.parts.codes.shape[1])

    def scales(self, rows: Array | slice) -> Array:
        """Scales of some rows, float32 [rows, columns]."""
        return np.asarray(np.broadcast_to(self.parts.scale, self.parts.codes.shape)[rows])

    def zeros(self, rows: Array | slice) -> Array | None:
        """Zero points of some rows, float32 [rows, columns]."""
        zero = self.parts.zero
        return None if zero is None else np.asarray(np.broadcast_to(zero, self.parts.codes.shape)[rows])

    def values(self, rows: Array | slice) -> Array:
        """The weights of some rows, float32 [rows, columns], as ONNX defines them."""
        steps = self.parts.codes[rows].astype(np.float32)
        zero = self.zeros(rows)
        if zero is not None:
            steps -= zero
        steps *= self.scales(rows)
        for kind in self.parts.kinds:
            steps = steps.astype(kind, copy=False)
        return steps.astype(np.float32, copy=False)

    @property
    def rounded(self) -> bool:
        """True when the product was rounded to fewer digits than float32 has."""
        return any(kind.itemsize < _FLOAT.itemsize for kind in self.parts.kinds)


def signed(codes: Array, scale: Array, zero: Array | None, bits: int, kind: DType = _FLOAT) -> Parts | None:
    """Parts of stored codes, shifted to int8; None when they do not fit a byte.

    codes: integers of any width; codes without sign of `bits` bits are shifted by half their range, and zero points
    with them. scale, zero: broadcast over the codes.
    """
    unsigned = codes.dtype.kind == "u" or codes.dtype.name.startswith("uint")
    shift = 1 << (bits - 1) if unsigned else 0
    centre = None if zero is None else zero.astype(np.float32) - np.float32(shift)
    if zero is None and shift:
        centre = np.full((), -shift, np.float32)
    if bits > 8:
        narrow = _narrowed(codes, shift)
        if narrow is None:
            return None
    elif unsigned:
        narrow = (codes.astype(np.uint8) ^ np.uint8(shift)).view(np.int8) if bits == 8 else _shifted(codes, shift)
    else:
        narrow = codes.astype(np.int8)
    if centre is not None and not centre.any():
        centre = None
    return Parts(narrow, scale.astype(np.float32), centre, (kind,))


def _shifted(codes: Array, shift: int) -> Array:
    return codes.astype(np.int8) - np.int8(shift)


def _narrowed(codes: Array, shift: int) -> Array | None:
    """Codes of wide types as int8, when they are small numbers."""
    wide = codes.astype(np.int64) - shift
    fits = not wide.size or (wide.min() >= _LOWEST and wide.max() <= _HIGHEST)
    return wide.astype(np.int8) if fits else None


def _is_float(kind: DType) -> bool:
    return kind.kind == "f" or kind.name == "bfloat16"
