"""Arrays in the JSON form: short ones as lists, long ones in a sidecar or as base64."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document._json_lines import Spool
from graphkit.mnn.document._json_names import NamingDecoder, NamingEncoder
from graphkit.mnn.document._json_sidecar import Arrays, Sidecar, array_bytes, digest
from graphkit.mnn.document._json_text import Repeated, Run
from graphkit.mnn.document.schema import Field, Schema
from graphkit.mnn.document.tree import Array

SHORT = 64  # elements; longer arrays are kept out of the text
_PIECE = 3 << 18  # bytes that are made base64 at a time; three bytes are four characters
_FORMS = ({"array", "dtype", "length", "sha256"}, {"base64", "dtype"})


class SidecarEncoder(NamingEncoder):
    """Puts long arrays into `arrays` and notes their hashes."""

    def __init__(self, schema: Schema, arrays: Arrays) -> None:
        super().__init__(schema)
        self._arrays = arrays

    def array(self, array: Array, field: Field, path: str) -> Any:
        """A vector of numbers."""
        if array.size <= SHORT:
            return super().array(array, field, path)
        name, sha256 = self._arrays.put(path, array), digest(array_bytes(array))
        return {"array": name, "dtype": array.dtype.name, "length": array.size, "sha256": sha256}


class InlineEncoder(NamingEncoder):
    """Puts long arrays into a spool that writes them as base64."""

    def __init__(self, schema: Schema, spool: Spool) -> None:
        super().__init__(schema)
        self._spool = spool

    def array(self, array: Array, field: Field, path: str) -> Any:
        """A vector of numbers."""
        if array.size <= SHORT:
            return super().array(array, field, path)
        return {"dtype": array.dtype.name, "base64": self._spool.put(array)}


def base64_pieces(array: Array) -> Iterator[str]:
    """The little-endian bytes of an array as a JSON string."""
    data = array_bytes(array)
    yield '"'
    for start in range(0, len(data), _PIECE):
        yield binascii.b2a_base64(data[start : start + _PIECE], newline=False).decode("ascii")
    yield '"'


class ArrayDecoder(NamingDecoder):
    """Reads arrays in all their forms; those of a sidecar are views of it."""

    def __init__(self, schema: Schema, sidecar: Sidecar | None) -> None:
        super().__init__(schema)
        self._sidecar = sidecar

    def array(self, raw: Any, field: Field, where: str) -> Array:
        """A vector of numbers."""
        if isinstance(raw, Run):
            found = raw.numbers()
            if found is None:
                raise ModelError(f"{where}: is no list of numbers")
            return numbers.array_of_numbers(found, field, where)
        if not isinstance(raw, dict):
            return super().array(raw, field, where)
        if isinstance(raw, Repeated) or not any(raw.keys() <= form for form in _FORMS) or "dtype" not in raw:
            raise ModelError(
                f'{where}: expected a list, {{"base64", "dtype"}} or {{"array", "dtype", "length", "sha256"}}'
            )
        assert field.dtype is not None
        if raw["dtype"] != field.dtype.name:
            raise ModelError(f"{where}: has dtype {numbers.show(raw['dtype'])}, the field takes {field.dtype.name}")
        if "base64" in raw:
            return _from_base64(raw["base64"], field, where)
        return self._from_sidecar(raw, field, where)

    def _from_sidecar(self, raw: dict[str, Any], field: Field, where: str) -> Array:
        name, length, sha256 = (raw.get(key) for key in ("array", "length", "sha256"))
        if not isinstance(name, str):
            raise numbers.wrong(f"{where}: array", "the name of an array", name)
        if self._sidecar is None:
            raise ModelError(f"{where}: names array {numbers.show(name)}, but the file names no sidecar")
        entry, data = self._sidecar.read(name, where)
        if type(length) is not int or length != entry.length or entry.dtype != raw["dtype"]:
            raise ModelError(
                f"{where}: expected {numbers.show(length)} elements of {raw['dtype']}, "
                f"array {numbers.show(name)} has {entry.length} of {entry.dtype}"
            )
        if sha256 is not None and digest(data) != sha256:
            raise ModelError(
                f"{where}: array {numbers.show(name)} is not the one that was written: its hash differs",
                hint='if you changed it on purpose, take "sha256" out of the JSON; else copy the sidecar again',
            )
        return np.frombuffer(data, field.dtype)


def _from_base64(raw: Any, field: Field, where: str) -> Array:
    if not isinstance(raw, Run | str):
        raise numbers.wrong(f"{where}: base64", "text", raw)
    assert field.dtype is not None
    try:
        data = raw.decode() if isinstance(raw, Run) else binascii.a2b_base64(raw, strict_mode=True)
    except ValueError as error:
        raise ModelError(f"{where}: is no base64 ({str(error).lower()})") from None
    if len(data) % field.dtype.itemsize:
        raise ModelError(f"{where}: {len(data)} bytes are no whole number of {field.dtype.name}")
    return np.frombuffer(data, field.dtype)
