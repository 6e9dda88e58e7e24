"""An emitter that computes on quantized numbers in float32, folding what constants decide.

Integers up to 2^24 are exact in float32; so are sums and products of them that stay below. Rounding to the nearest
with ties to even is x + 1.5·2^23 − 1.5·2^23 (exact for |x| < 2^22): MNN's own Round rounds halves away from zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from graphkit.node import Dim
from graphkit.passes._dequantize import RANGES, Layout
from graphkit.passes._emit import Emit

MAGIC = 12582912.0  # 1.5 · 2^23: the last bit of a float32 of this size is worth one
WIDE = float(2**20)  # beyond all codes of up to 16 bits and their zero points
Operand = str | np.ndarray  # a value's name, or numbers that are known now
Shape = Sequence[Dim] | None

_FOLD = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}


class MisfitError(ValueError):
    """Parameters that do not fit the tensor, or whose shapes are not known."""


def limits(dtype: int) -> tuple[float, float]:
    """Least and largest code of a type. Raises MisfitError for other types."""
    if dtype not in RANGES:
        raise MisfitError("the type of its codes is unknown" if not dtype else "its codes are no small integers")
    return float(RANGES[dtype][0]), float(RANGES[dtype][1])


class QuantizedEmit(Emit):
    """Adds arithmetic on codes, scales and zero points; operands are names or arrays."""

    def floats(self, value: str) -> Operand:
        """A value of the graph as float32."""
        array = self.graph.constant(value)
        if array is not None:
            return array.astype(np.float32)
        return value if self.graph.dtype(value) == TensorProto.FLOAT else self.cast(value, TensorProto.FLOAT)

    def named(self, x: Operand) -> str:
        """The name of an operand; an array becomes a constant."""
        return x if isinstance(x, str) else self.const(x.astype(np.float32), "float")

    def binary(self, op: str, a: Operand, b: Operand) -> Operand:
        """Add, Sub, Mul or Div in float32; no node for known numbers or neutral ones.

        Raises MisfitError for known numbers whose shapes do not fit together.
        """
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if not _broadcast(a.shape, b.shape):
                raise MisfitError(f"parameters of shapes {list(a.shape)} and {list(b.shape)} do not fit together")
            with np.errstate(all="ignore"):
                return np.asarray(_FOLD[op](a, b, dtype=np.float32))
        if isinstance(b, np.ndarray) and isinstance(a, str) and bool(np.all(b == _NEUTRAL[op])):
            return a
        return self.op(op, self.named(a), self.named(b))

    def spread(self, value: str, layout: Layout, shape: Shape) -> Operand:
        """A scale or zero point as float32, in a shape that broadcasts over a tensor of this shape.

        Raises MisfitError when it does not fit, or when how it lies is not known.
        """
        values = self.floats(value)
        own = list(values.shape) if isinstance(values, np.ndarray) else self.graph.shape(value)
        if own is None:
            raise MisfitError(f"the shape of '{value}' is unknown")
        if all(dim == 1 for dim in own):
            return values.reshape(()) if isinstance(values, np.ndarray) else values
        if shape is None:
            raise MisfitError("the rank of what it quantizes is unknown")
        rank = len(shape)
        axis = layout.axis % rank if rank and -rank <= layout.axis < rank else None
        if axis is None:
            raise MisfitError(f"axis {layout.axis} of {rank} axes does not exist")
        if len(own) == 1 and (not layout.block or rank == 1 == own[0]):
            if isinstance(own[0], int) and isinstance(shape[axis], int) and own[0] != shape[axis]:
                raise MisfitError(f"'{value}' has {own[0]} numbers for an axis of {shape[axis]}")
            return self._reshaped(values, [-1 if i == axis else 1 for i in range(rank)])
        if layout.block and len(own) == rank:
            return self._blocks(values, list(own), axis, layout.block, shape[axis])
        raise MisfitError(f"'{value}' of shape {list(own)} does not fit a tensor of {rank} axes")

    def _reshaped(self, values: Operand, sizes: Sequence[int]) -> Operand:
        if isinstance(values, np.ndarray):
            return values.reshape(sizes)
        return self.op("Reshape", values, self.ints(*sizes))

    def _blocks(self, values: Operand, own: list[Dim], axis: int, block: int, size: Dim) -> Operand:
        """Each number `block` times along an axis, cut to the tensor's size."""
        if not isinstance(size, int) or not all(isinstance(dim, int) for dim in own):
            raise MisfitError("scales in blocks over a tensor of unknown size")
        sizes = [int(dim) for dim in own if isinstance(dim, int)]
        if sizes[axis] != -(-size // block):
            raise MisfitError(f"{sizes[axis]} blocks of {block} do not fit an axis of {size}")
        if isinstance(values, np.ndarray):
            return np.repeat(values, block, axis)[tuple(slice(size if i == axis else None) for i in range(len(own)))]
        split = [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]
        wide = [block if i == axis + 1 else dim for i, dim in enumerate(split)]
        full = self.op("Expand", self.op("Reshape", values, self.ints(*split)), self.ints(*wide))
        sizes[axis] *= block
        full = self.op("Reshape", full, self.ints(*sizes))
        return full if sizes[axis] == size else self.slice(full, axis, 0, size)

    def steps(self, codes: str, zero: str, layout: Layout, shape: Shape) -> Operand:
        """Codes without their zero point, as float32: exact integers."""
        values = self.floats(codes)
        return self.binary("Sub", values, self.spread(zero, layout, shape)) if zero else values

    def rounded_steps(self, x: Operand, zero: Operand | None, dtype: int) -> Operand:
        """x to the nearest integer, ties to even, so far that x + zero stays in the range of `dtype`."""
        point = _single(zero)
        if zero is None or point is not None:
            return self._saturated(x, point or 0.0, 0.0, dtype)
        return self.binary("Sub", self.rounded_codes(x, zero, dtype), zero)

    def rounded_codes(self, x: Operand, zero: Operand | None, dtype: int) -> str:
        """round(x) + zero, saturated: the codes, as float32."""
        point = _single(zero)
        if zero is None or point is not None:
            return self._saturated(x, point or 0.0, point or 0.0, dtype)
        nearest = self._round(self.between(x, -WIDE, WIDE), MAGIC)
        return self.between(self.binary("Add", nearest, zero), *limits(dtype))

    def _saturated(self, x: Operand, point: float, plus: float, dtype: int) -> str:
        """round(x) + plus, where round(x) + point stays in the range of `dtype`."""
        low, high = limits(dtype)
        return self._round(self.between(x, low - point, high - point), MAGIC - plus)

    def rounded_sum(self, x: Operand, zero: Operand | None, dtype: int) -> str:
        """round(x + zero), saturated: how onnxruntime's QLinear kernels round, zero point first."""
        low, high = limits(dtype)
        total = x if zero is None else self.binary("Add", x, zero)
        return self._round(self.between(total, low, high), MAGIC)

    def between(self, x: Operand, low: float, high: float) -> str:
        """x between two numbers."""
        return self.clip(self.named(x), self.number(low), self.number(high))

    def _round(self, x: str, back: float) -> str:
        return self.op("Sub", self.op("Add", x, self.number(MAGIC)), self.number(back))

    def codes(self, floats: str, dtype: int) -> str:
        """Float integers as a tensor of the code's type. Raises MisfitError for types that MNN has no tensors of."""
        if dtype not in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16):
            kind = TensorProto.DataType.Name(dtype).lower()
            raise MisfitError(f"MNN has no tensors of {kind}")
        return self.cast(floats, dtype)

    def result(self, x: Operand, dtype: int) -> str:
        """A float32 operand as a tensor of the wanted float type."""
        return self.named(x) if dtype in (TensorProto.FLOAT, 0) else self.cast(self.named(x), dtype)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """True when numpy can broadcast two shapes."""
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _single(zero: Operand | None) -> float | None:
    """The zero point when it is known and one for all."""
    if not isinstance(zero, np.ndarray) or not zero.size or np.any(zero != zero.flat[0]):
        return None
    return float(zero.flat[0])
