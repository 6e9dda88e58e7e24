"""Lazy weights: tensors whose bytes stay in the file (or in one shared buffer) until somebody asks.

A `WeightStore` owns the buffers: the model file itself, its external data files, and arrays that passes made.
A `Weight` is a view of one tensor: its type and shape at once, its values on demand.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import SparseTensorProto, TensorProto

from graphkit._wire import MARK, MAX_MESSAGE, THRESHOLD, Ref, parse_ref
from graphkit.errors import ModelError

_PACKED = {  # types with two or four values a byte: bits of one value
    getattr(TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(TensorProto, name)
}


_np_dtype = lru_cache(maxsize=None)(onnx.helper.tensor_dtype_to_np_dtype)


def tensor_nbytes(data_type: int, dims: tuple[int, ...]) -> int:
    """Bytes that a tensor of this ONNX type and shape takes as raw data; 0 for strings and unknown types."""
    count = math.prod(dims)
    if data_type in _PACKED:
        return (count * _PACKED[data_type] + 7) // 8
    if data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return 0
    return count * _np_dtype(data_type).itemsize


@dataclass(eq=False)
class Buffer:
    """Bytes that tensors point into: a file, mapped when first read, or memory."""

    path: Path | None = None
    memory: memoryview | None = None

    @cached_property
    def view(self) -> memoryview:
        """All bytes, read-only. Raises ModelError when the file cannot be read."""
        if self.memory is not None:
            return self.memory
        if self.path is None:
            return memoryview(b"")
        try:
            with self.path.open("rb") as file:
                if not self.path.stat().st_size:
                    return memoryview(b"")  # an empty file cannot be mapped
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read weights: {error}", file=self.path) from error


class WeightStore:
    """The buffers of one model and of all models derived from it; buffers are added, never changed."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._files: dict[Path, int] = {}

    def add_file(self, path: Path) -> int:
        """Number of the buffer for this file, made on first use."""
        if path not in self._files:
            self._files[path] = len(self.buffers)
            self.buffers.append(Buffer(path=path))
        return self._files[path]

    def add_memory(self, data: memoryview) -> int:
        """Number of a new buffer over `data`, which must not change afterwards."""
        self.buffers.append(Buffer(memory=data))
        return len(self.buffers) - 1

    def adopt(self, buffer: Buffer) -> int:
        """Number of another store's buffer in this one; the bytes are shared."""
        if buffer.path is not None:
            return self.add_file(buffer.path)
        for number, known in enumerate(self.buffers):
            if known is buffer:
                return number
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def read(self, ref: Ref) -> memoryview:
        """The bytes a reference stands for. Raises ModelError when the file became shorter."""
        view = self.buffers[ref.buffer].view
        if ref.offset + ref.length > len(view):
            raise ModelError("weights end before their declared length", file=self.buffers[ref.buffer].path)
        return view[ref.offset : ref.offset + ref.length]

    def files(self) -> list[Path]:
        """Files that weights may still be read from."""
        return list(self._files)


def ref_of(tensor: TensorProto) -> Ref | None:
    """The reference that stands in `tensor` in place of its data, None if it holds its data itself."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    return parse_ref({entry.key: entry.value for entry in tensor.external_data})


class Weight:
    """A constant tensor: type and shape known, values read on demand.

    `data_type` is the ONNX element type, `dims` the shape, `nbytes` the size of the values in bytes.
    """

    __slots__ = ("_array", "dims", "proto", "ref", "store")

    def __init__(self, proto: TensorProto, store: WeightStore) -> None:
        self.proto = proto
        self.store = store
        self.dims: tuple[int, ...] = tuple(proto.dims)
        self.ref = ref_of(proto) if proto.data_location else None
        self._array: np.ndarray | None = None

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.proto.name

    @property
    def data_type(self) -> int:
        """ONNX element type (TensorProto.FLOAT, …)."""
        return self.proto.data_type

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return self.ref.length if self.ref else tensor_nbytes(self.data_type, self.dims)

    def array(self) -> np.ndarray:
        """The values as a read-only array; file-backed weights are views over the mapped file.

        Raises ModelError when the data are shorter than the shape needs.
        """
        if self._array is None:
            try:
                array = self._read()
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ModelError(f"damaged tensor: {error}", tensor=self.name) from error
            array.flags.writeable = False
            self._array = array
        return self._array

    def _read(self) -> np.ndarray:
        if self.ref is None:
            if self.proto.data_location == TensorProto.EXTERNAL:  # onnx would look in the working directory
                raise ValueError("its external data were not resolved")
            data: bytes | memoryview = self.proto.raw_data
            if not data or self.data_type in _PACKED:
                return onnx.numpy_helper.to_array(self.proto)
        elif self.data_type in _PACKED:
            return onnx.numpy_helper.to_array(self.materialized())
        else:
            data = self.store.read(self.ref)
        return np.frombuffer(data, dtype=_np_dtype(self.data_type)).reshape(self.dims)

    def materialized(self) -> TensorProto:
        """A TensorProto that holds its data itself."""
        if self.ref is None:
            return self.proto
        tensor = TensorProto(name=self.proto.name, data_type=self.data_type, dims=self.dims)
        tensor.raw_data = bytes(self.store.read(self.ref))
        return tensor


def make_weight(name: str, array: np.ndarray, store: WeightStore) -> Weight:
    """A weight made by a pass from values; large ones go to a buffer of the store, not into the protobuf."""
    array = np.asarray(array)
    if array.nbytes < THRESHOLD or array.dtype.kind in "OUS":
        return Weight(onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name), store)
    data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if data_type in _PACKED:
        tensor = onnx.numpy_helper.from_array(array, name)
        data = memoryview(tensor.raw_data)
    else:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    tensor = TensorProto(name=name, data_type=data_type, dims=array.shape)
    refer(tensor, Ref(store.add_memory(data), 0, len(data)))
    return Weight(tensor, store)


def renamed_weight(weight: Weight, name: str) -> Weight:
    """The same values under another name."""
    proto = TensorProto()
    proto.CopyFrom(weight.proto)
    proto.name = name
    renamed = Weight(proto, weight.store)
    renamed._array = weight._array
    return renamed


def moved_weight(weight: Weight, store: WeightStore) -> Weight:
    """The same weight with its bytes known to `store`, where another model's graph is to use it."""
    if weight.store is store:
        return weight
    proto = TensorProto()
    proto.CopyFrom(weight.proto)
    if weight.ref is not None:
        refer(proto, weight.ref._replace(buffer=store.adopt(weight.store.buffers[weight.ref.buffer])))
    return Weight(proto, store)


def dense_weight(sparse: SparseTensorProto, store: WeightStore) -> Weight:
    """A sparse initializer as an ordinary weight. Raises ModelError when it is damaged or over 2 GB."""
    name, dims = sparse.values.name, tuple(sparse.dims)
    if not isinstance(name, str):
        raise ModelError(f"the name {name!r} is not valid UTF-8")
    values = Weight(sparse.values, store).array()
    indices = Weight(sparse.indices, store).array()
    if not 0 <= math.prod(dims) * values.itemsize <= MAX_MESSAGE or min(dims, default=0) < 0:
        raise ModelError(f"sparse tensor of shape {list(dims)} is too large or damaged", tensor=name)
    dense = np.zeros(dims, dtype=values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"damaged sparse tensor: {error}", tensor=name) from error
    return make_weight(name, dense, store)


def refer(tensor: TensorProto, ref: Ref) -> None:
    """Make `tensor` point at data in a buffer of its store."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", f"{MARK}{ref.buffer}"), ("offset", ref.offset), ("length", ref.length)):
        tensor.external_data.add(key=key, value=str(value))
