"""Room for codes outside of memory, and letting go of pages that were read: a model of any size in little memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from typing import Any, Self

import numpy as np
from onnx import TensorProto

from graphkit._wire import THRESHOLD, Ref
from graphkit.errors import OutputError
from graphkit.quant.codes import Array
from graphkit.weights import Buffer, Weight, WeightStore, refer

_ALIGN = 64


class _Mapped(Buffer):
    """A file that is mapped anew for each reader, so that its pages count as memory only while somebody reads."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    @property
    def view(self) -> memoryview:
        """All bytes, read-only."""
        return memoryview(mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ))


class Spill:
    """A temporary file without a name that holds new weights of one store; a context manager for the time of writing.

    What was written stays readable, and its room is freed with the last weight. capacity: bytes that will be written
    at most; what does not fit stays in memory. Raises OutputError when the temporary folder has no room.
    """

    def __init__(self, store: WeightStore, capacity: int) -> None:
        self.store = store
        self.capacity = max(capacity, 1)
        self._end = 0
        self._file: Any = None
        self._buffer = -1

    def weight(self, name: str, array: Array, data_type: int, dims: tuple[int, ...]) -> Weight:
        """A weight of this ONNX type and shape whose stored bytes are `array`'s (uint8, or any for wider types)."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        tensor = TensorProto(name=name, data_type=data_type, dims=dims)
        if data.nbytes < THRESHOLD:
            tensor.raw_data = data.tobytes()
            return Weight(tensor, self.store)
        if self._end + data.nbytes > self.capacity:
            refer(tensor, Ref(self.store.add_memory(data.data), 0, data.nbytes))
            return Weight(tensor, self.store)
        offset = self._write(data)
        refer(tensor, Ref(self._buffer, offset, data.nbytes))
        return Weight(tensor, self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self.capacity = None, 0

    def _write(self, data: Array) -> int:
        try:
            if self._file is None:
                self._open()
            offset = self._end
            self._file.seek(offset)
            rest = data.data
            while rest:  # one call writes 2 GB at most
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OutputError(
                f"no room for quantized weights in the temporary folder: {error.strerror}",
                hint="set TMPDIR to a folder with room",
            ) from error
        self._end = -(-(offset + data.nbytes) // _ALIGN) * _ALIGN
        return offset

    def _open(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="graphkit-quant-", buffering=0)  # noqa: SIM115  # lives as long as we
        self._file.truncate(self.capacity)
        self._buffer = self.store.adopt(_Mapped(os.dup(self._file.fileno())))


def let_go(weight: Weight) -> None:
    """Tell the system that the pages of a file-backed weight are not needed for now; later they are read again."""
    if weight.ref is None:
        return
    mapped = weight.store.buffers[weight.ref.buffer].view.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mapped, "madvise"):
        return
    page = mmap.PAGESIZE
    first = -(-weight.ref.offset // page) * page
    last = (weight.ref.offset + weight.ref.length) // page * page
    if last > first:
        with contextlib.suppress(OSError, ValueError):  # advice only
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
