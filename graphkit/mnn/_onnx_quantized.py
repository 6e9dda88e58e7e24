"""Quantized weights of .onnx models: initializers behind DequantizeLinear, and those of MatMulNBits.

The formulas are those of ONNX's operator documents (DequantizeLinear-21: axis, block_size) and of onnxruntime's
contrib operators (MatMulNBits: B is [N, blocks, bytes], the first code in the lowest bits, zero points packed the
same way for each of the N rows, 2^(bits−1) where there are none).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from graphkit.mnn.document.quantized import Scheme
from graphkit.mnn.document.tree import Array
from graphkit.weights import Weight

_BITS = {
    getattr(TensorProto, name): bits
    for name, bits in (
        ("INT8", 8),
        ("UINT8", 8),
        ("INT16", 16),
        ("UINT16", 16),
        ("INT4", 4),
        ("UINT4", 4),
        ("INT2", 2),
        ("UINT2", 2),
    )
    if hasattr(TensorProto, name)
}
_FIRST_LOW = {8: (0,), 4: (0, 4), 2: (0, 2, 4, 6)}  # bits of a byte at which its codes begin


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """One quantized initializer, with the node that dequantizes it or computes with it."""

    name: str
    node: NodeProto
    scheme: Scheme
    weight: Weight
    scale: Weight
    zero: Weight | None

    def pieces(self) -> Linear | Packed | None:
        """The weights, to be read a piece at a time; None when the arrays do not fit together.

        Raises ModelError for damaged tensors.
        """
        return _linear(self) if self.node.op_type == "DequantizeLinear" else _packed(self)


def quantized_weights(nodes: Iterable[NodeProto], weights: Mapping[str, Weight]) -> Iterator[QuantizedWeight]:
    """The quantized initializers of one graph, each once. Raises ModelError for a damaged zero point."""
    seen: set[str] = set()
    for node in nodes:
        if node.op_type not in _NAMED or len(node.input) < 2:
            continue
        name, scale, zero = _NAMED[node.op_type](node)
        if name in weights and scale in weights and name not in seen and (not zero or zero in weights):
            scheme = _scheme(node, weights[name], weights[scale], weights.get(zero))
            if scheme is not None:
                seen.add(name)
                yield QuantizedWeight(name, node, scheme, weights[name], weights[scale], weights.get(zero))


def _of_linear(node: NodeProto) -> tuple[str, str, str]:
    return node.input[0], node.input[1], node.input[2] if len(node.input) > 2 else ""


def _of_packed(node: NodeProto) -> tuple[str, str, str]:
    return node.input[1], node.input[2] if len(node.input) > 2 else "", node.input[3] if len(node.input) > 3 else ""


_NAMED = {"DequantizeLinear": _of_linear, "MatMulNBits": _of_packed}


def _scheme(node: NodeProto, weight: Weight, scale: Weight, zero: Weight | None) -> Scheme | None:
    dtype = TensorProto.DataType.Name(scale.data_type).lower() if scale.data_type else "?"
    given = _numbers(node)
    if node.op_type == "MatMulNBits":
        return Scheme(given.get("bits", 4), given.get("block_size") or None, zero is not None, dtype)
    bits = _BITS.get(weight.data_type)
    if bits is None:
        return None
    asymmetric = zero is not None and bool(np.any(_values(zero) != 0))
    return Scheme(bits, given.get("block_size") or None, asymmetric, dtype, math.prod(scale.dims) == 1)


def _numbers(node: NodeProto) -> dict[str, int]:
    return {attribute.name: int(attribute.i) for attribute in node.attribute if attribute.type == attribute.INT}


def _values(weight: Weight) -> Array:
    values: Array = weight.array().reshape(-1)
    return values.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Linear:
    """Weights of a DequantizeLinear: `(w − zero) · scale`, with one scale for all, along an axis, or for blocks."""

    array: Array
    scale: Array
    zero: Array | None
    axis: int
    block: int

    @property
    def count(self) -> int:
        """How many weights there are."""
        return int(self.array.size)

    def codes(self, start: int, stop: int) -> Array:
        """The stored integers of a piece."""
        found: Array = self.array.reshape(-1)[start:stop]
        return found.astype(np.int32)

    def values(self, start: int, stop: int) -> Array:
        """The weights of a piece as float32."""
        place = self._places(start, stop)
        codes = self.codes(start, stop).astype(np.float32)
        shifted = codes if self.zero is None else codes - self.zero[place]
        found: Array = shifted * self.scale[place]
        return found

    def _places(self, start: int, stop: int) -> Array:
        """Which scale each weight of a piece has."""
        if self.scale.size == 1:
            return np.zeros(stop - start, np.int64)
        dims = self.array.shape
        inner = math.prod(dims[self.axis + 1 :])
        number: Array = np.arange(start, stop)
        along: Array = number // inner % dims[self.axis]
        if not self.block:
            return along
        blocks = -(-dims[self.axis] // self.block)
        place: Array = (number // (inner * dims[self.axis]) * blocks + along // self.block) * inner + number % inner
        return place


def _linear(found: QuantizedWeight) -> Linear | None:
    array: Array = found.weight.array()
    scale = _values(found.scale)
    zero = _values(found.zero) if found.zero is not None else None
    given = _numbers(found.node)
    axis, block = given.get("axis", 1), given.get("block_size", 0)
    axis += array.ndim if axis < 0 else 0
    if zero is not None and zero.size != scale.size:
        return None
    if scale.size == 1:
        return Linear(array, scale, zero, 0, 0)
    if not 0 <= axis < array.ndim or block < 0:
        return None
    needed = array.shape[axis]
    if block:
        needed = array.size // max(array.shape[axis], 1) * -(-array.shape[axis] // block)
    return Linear(array, scale, zero, axis, block) if scale.size == needed else None


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights of a MatMulNBits: codes in bytes, a scale and a zero point for each block of a row."""

    data: Array
    bits: int
    block: int
    scale: Array
    zero: Array

    @property
    def count(self) -> int:
        """How many weights there are, those that fill the last blocks up included."""
        return int(self.data.size) * 8 // self.bits

    def codes(self, start: int, stop: int) -> Array:
        """The stored codes of a piece."""
        piece = self.data[start * self.bits // 8 : -(-stop * self.bits // 8)]
        return _unpacked(piece, self.bits)[: stop - start].astype(np.int32)

    def values(self, start: int, stop: int) -> Array:
        """The weights of a piece as float32."""
        place = np.arange(start, stop) // self.block
        found: Array = (self.codes(start, stop).astype(np.float32) - self.zero[place]) * self.scale[place]
        return found


def _unpacked(data: Array, bits: int) -> Array:
    planes = [data >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in _FIRST_LOW[bits]]
    return np.stack(planes, axis=-1).reshape(-1)


def _packed(found: QuantizedWeight) -> Packed | None:
    bits, block = found.scheme.bits, found.scheme.block
    data: Array = found.weight.array()
    if bits not in _FIRST_LOW or not block or data.dtype != np.uint8 or data.ndim < 1:
        return None
    scale = _values(found.scale)
    if not scale.size or data.size * 8 // bits != scale.size * block:
        return None
    zero = _zero_points(found.zero, data.shape[0], scale.size, bits)
    return None if zero is None else Packed(data.reshape(-1), bits, block, scale, zero)


def _zero_points(zero: Weight | None, rows: int, count: int, bits: int) -> Array | None:
    """The zero point of each block as float32."""
    if zero is None:
        return np.full(count, 1 << (bits - 1), np.float32)
    array: Array = zero.array()
    if array.dtype != np.uint8:
        return array.reshape(-1).astype(np.float32) if array.size == count else None
    if rows <= 0 or array.size % rows:
        return None
    unpacked = np.stack([_unpacked(row, bits) for row in array.reshape(rows, -1)])[:, : count // rows]
    return unpacked.reshape(-1).astype(np.float32) if unpacked.size == count else None


def node_text(node: NodeProto) -> str:
    """A node by its name, else by what it makes."""
    return as_text(node.name) or next((f"({as_text(name)})" for name in node.output if name), "(no name)")


def as_text(name: str | bytes) -> str:
    """A text of a protobuf, which gives bytes for what is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
