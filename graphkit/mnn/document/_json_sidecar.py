"""The file of arrays beside a JSON skeleton, in the safetensors format.

The format: eight bytes that tell the size of a JSON header (little-endian); the header, an object that gives dtype,
shape and the place of each array by name, filled up with spaces; the arrays one after another without gaps. Any
safetensors library opens it. It is written here and not by the safetensors package because that copies all arrays
into one piece of memory first; it is read here so that arrays stay views of the mapped file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document._json_lines import dumps
from graphkit.mnn.document._json_numbers import show
from graphkit.mnn.document._json_text import loads
from graphkit.mnn.document.files import Origin
from graphkit.mnn.document.tree import Array

_CODES = {
    "uint8": "U8", "int8": "I8", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "float32": "F32"
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_ALIGN = 8
_HEADER = 100_000_000  # bytes; the limit of the safetensors package
_CHUNK = 1 << 20


def digest(data: Any) -> str:
    """The hash that a skeleton notes of an array: sha256 of its little-endian bytes, in hex.

    sha256 is what processors have instructions for: 2.1 GB/s where blake2b makes 1.4.
    """
    return hashlib.sha256(data).hexdigest()


def array_bytes(array: Array) -> memoryview:
    """The bytes of an array, without a copy when they lie in one piece."""
    return np.ascontiguousarray(array).view(np.uint8).data if array.size else memoryview(b"")


class Arrays:
    """Arrays that will be written to a sidecar, by name; names are made unique."""

    def __init__(self) -> None:
        self._found: dict[str, Array] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def put(self, path: str, array: Array) -> str:
        """Note an array of the field `path` and return its name."""
        name = base = "".join(char if char.isprintable() else "?" for char in path)
        number = 1
        while name in self._found:
            number += 1
            name = f"{base}#{number}"
        self._found[name] = array
        return name

    def write(self, file: BinaryIO) -> int:
        """Write the file; the number of bytes."""
        # Elements of eight bytes first, then of four, two, one: so that all lie where processors like them.
        order = sorted(self._found.items(), key=lambda item: -item[1].itemsize)
        header: dict[str, Any] = {"__metadata__": {"format": "graphkit-mnn"}}
        start = 0
        for name, array in order:
            header[name] = {
                "dtype": _CODES[array.dtype.name], "shape": [array.size], "data_offsets": [start, start + array.nbytes]
            }  # fmt: skip
            start += array.nbytes
        text = dumps(header).encode("utf-8")
        text += b" " * (-len(text) % _ALIGN)
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in order:
            data = array_bytes(array)
            for at in range(0, len(data), _CHUNK):
                file.write(data[at : at + _CHUNK])
        return 8 + len(text) + start


@dataclass(frozen=True)
class Entry:
    """One array of a sidecar: numpy's name of its dtype, its elements, where its bytes are."""

    dtype: str
    length: int
    start: int
    end: int


class Sidecar:
    """A sidecar that is read; arrays are views of the mapped file."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises ModelError when the file is missing, cut or no sidecar."""
        self.path = path
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(
                f"its arrays are in {show(path.name)}, which is not there",
                hint=f"put {show(path.name)} beside the JSON file",
            ) from None
        except (OSError, ValueError) as error:
            raise self._broken(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
        self.origin = Origin(path, self._data, (status.st_dev, status.st_ino, status.st_mtime_ns))
        self._start, self._entries = self._header()

    def _broken(self, why: str) -> ModelError:
        return ModelError(f"{show(self.path.name)} {why}", hint="write the JSON form again: `graphkit mnn to-json`")

    def _header(self) -> tuple[int, dict[str, Entry]]:
        size = struct.unpack("<Q", self._data[:8])[0] if len(self._data) >= 8 else 0
        if not 2 <= size <= min(_HEADER, len(self._data) - 8):
            raise self._broken("is no safetensors file, or it is cut short")
        raw = loads(self._data[8 : 8 + size].rstrip(), self.path.name)
        if type(raw) is not dict:
            raise self._broken("has no header of names")
        raw.pop("__metadata__", None)
        body = len(self._data) - 8 - size
        return 8 + size, {name: self._entry(name, item, body) for name, item in raw.items()}

    def _entry(self, name: str, raw: Any, body: int) -> Entry:
        match raw:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                length = _product(shape)
                if end > body:
                    raise self._broken(f"is cut short: array {show(name)} ends at byte {end} of {body}")
                if dtype in _NAMES and length >= 0 and 0 <= start <= end:
                    found = Entry(_NAMES[dtype], length, start, end)
                    if end - start == length * np.dtype(found.dtype).itemsize:
                        return found
        raise self._broken(f"describes its array {show(name)} wrongly")

    def read(self, name: str, where: str) -> tuple[Entry, memoryview]:
        """The array of the field `where` by its name: what it is, and its bytes. Raises ModelError for none."""
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(
                f"{where}: {show(self.path.name)} holds no array {show(name)}",
                hint="is it the sidecar of another file? copy both again",
            )
        return entry, memoryview(self._data)[self._start + entry.start : self._start + entry.end]


def _product(shape: list[Any]) -> int:
    """Elements of an array, -1 when that is no shape."""
    total = 1
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= 1 << 40 or total > 1 << 40:
            return -1
        total *= dim
    return total
