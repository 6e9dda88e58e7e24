"""MNN's own JSON dialect: what `MNNConvert -f MNN --JsonFile` writes and `MNNConvert -f JSON` reads.

All is text in one file, so that it is large. Floats have nine digits here, from which each float32 comes back; MNN
prints six decimals (an epsilon of 1e-12 is 0 in its files, and stays 0 when such a file is read). An infinity is
written as 1e39, which MNN reads as one. What MNN's reader does not know or crashes on is refused: NaN, enums without
a name, vectors of enums, strings that are not UTF-8. Weights that MNN keeps outside stay in a file of their own,
`<file>.weight`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graphkit._write import atomic
from graphkit.errors import ModelError
from graphkit.mnn.document import _json_files as files
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document._json_arrays import ArrayDecoder
from graphkit.mnn.document._json_lines import Spool, net_lines
from graphkit.mnn.document._json_names import NamingEncoder
from graphkit.mnn.document._json_text import Run, loads
from graphkit.mnn.document.files import Document, companion, weights_name
from graphkit.mnn.document.json_form import JsonFiles
from graphkit.mnn.document.schema import Field, Schema, schema_for
from graphkit.mnn.document.tree import Array, Table

_SHORT = 64  # elements; longer arrays are streamed
_PIECE = 8192  # numbers that are formatted at a time
_INFINITY = "1e39"  # a double, and above every float32
_LARGEST = 1e300  # in absolute value; above this a number is no infinity but a mistake
_HINT = "write the lossless form instead: without --compat"
_BARE = re.compile(r"-0,|inf,")  # what nine digits make of -0 and of infinity


def to_compat(document: Document, path: Path | str, *, drop_unknown: bool = False) -> JsonFiles:
    """Write a document in MNN's JSON dialect, outside weights to `<path>.weight`; what was written.

    Raises ModelError for what the dialect cannot hold, OutputError for a path that cannot be written or is an input.
    """
    path = Path(path)
    files.refuse_unknown(document, drop_unknown)
    document.check_source()
    spool = Spool(_numbers)
    lines = net_lines(document.net, _Encoder(document.schema, spool))
    weights = weights_name(path) if document.weights else None
    others = [weights] if weights else []
    files.protect_inputs(document, [*others, path])
    size = copied = 0
    try:
        with atomic(*others, path) as opened:
            if document.weights is not None:
                copied, _ = files.copy_weights(document.weights, opened[0])
            for line in lines:
                for piece in spool.pieces(line):
                    size += opened[-1].write(piece.encode("utf-8"))
            opened[-1].write(b"\n")
            document.check_source()
    except ModelError as error:
        error.file = error.file or (str(document.source) if document.source else None)
        raise
    return JsonFiles(path, size + 1, weights=weights, weights_bytes=copied)


class _Encoder(NamingEncoder):
    """Writes all as numbers and lists; raises ModelError for what MNN's reader cannot take."""

    named = False

    def __init__(self, schema: Schema, spool: Spool) -> None:
        super().__init__(schema)
        self._spool = spool

    def order(self, table: Table) -> list[str]:
        """The fields of a table in the schema's order, as MNN writes them."""
        return [name for name in table.type.fields if name in table.fields]

    def value(self, value: Any, field: Field, path: str) -> Any:
        """One value of a field."""
        if isinstance(value, str):
            return _text(value, path)
        found = super().value(value, field, path)
        if field.vector:
            return found
        if field.type == "float" and isinstance(found, str):
            return _infinite(value, path)
        if field.kind in ("enum", "utype") and isinstance(found, int):
            raise ModelError(f"{path}: MNN's JSON has no {field.type} without a name ({found})", hint=_HINT)
        return found

    def items(self, items: list[Any], field: Field, path: str) -> list[Any]:
        """A vector of strings or tables."""
        for k, item in enumerate(items):
            if isinstance(item, str):
                _text(item, f"{path}[{k}]")
        return super().items(items, field, path)

    def array(self, array: Array, field: Field, path: str) -> Any:
        """A vector of numbers."""
        if field.kind == "enum" and array.size:
            raise ModelError(f"{path}: MNN crashes on a list of {field.type} in its JSON", hint=_HINT)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise _no_nan(f"{path}[{np.flatnonzero(np.isnan(array))[0]}]")
        if field.type != "bool" and (array.size > _SHORT or array.dtype.kind == "f"):
            return self._spool.put(array)
        return super().array(array, field, path)


def _text(value: str, path: str) -> str:
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ModelError(f"{path}: {value!r} is not UTF-8, which MNN's JSON has to be", hint=_HINT)
    return value


def _infinite(value: Any, path: str) -> float:
    if np.isnan(value):
        raise _no_nan(path)
    return float(_INFINITY) if value > 0 else -float(_INFINITY)


def _no_nan(path: str) -> ModelError:
    return ModelError(f"{path}: is NaN, which MNN's JSON does not have", hint=_HINT)


def _numbers(array: Array) -> Iterator[str]:
    """An array as the text of a list."""
    yield "["
    for start in range(0, array.size, _PIECE):
        piece = array[start : start + _PIECE]
        if piece.dtype.kind == "f":
            text = ("%.9g," * piece.size) % tuple(piece.tolist())
            if np.any(piece == 0) or np.any(np.isinf(piece)):
                text = _BARE.sub(_number, text)
        else:
            text = ("%d," * piece.size) % tuple(piece.tolist())
        yield text if start + _PIECE < array.size else text[:-1]
    yield "]"


def _number(match: re.Match[str]) -> str:
    return "-0.0," if match[0] == "-0," else f"{_INFINITY},"


def from_compat(path: Path | str) -> Document:
    """Read MNN's JSON dialect, as MNN or `to_compat` wrote it; bare nan and inf as MNN prints them are taken.

    Names, types and ranges of all values are checked. Raises ModelError naming operator and field.
    """
    path = Path(path)
    try:
        raw = loads(files.map_text(path), path, as_mnn=True)
        if isinstance(raw, dict) and "net" in raw and "graphkit" in raw:
            raise ModelError("is graphkit's JSON form, not MNN's", hint="read it without --compat")
        schema = schema_for(_version(raw))
        net = _Decoder(schema).table(raw, schema.root, "")
    except ModelError as error:
        error.file = error.file or str(path)
        raise
    return Document(net, schema, _version(raw), path, companion(path))


def _version(raw: Any) -> str:
    """What the file says of its converter; checked with everything else afterwards."""
    extra = raw.get("extraInfo") if isinstance(raw, dict) else None
    version = extra.get("version") if isinstance(extra, dict) else None
    return version if isinstance(version, str) else ""


class _Decoder(ArrayDecoder):
    """Reads floats as MNN does: what is above the range of float32 is infinity, what is too small is 0."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, None)

    def value(self, raw: Any, field: Field, where: str, member: str | None = None) -> Any:
        """One value of a field; `member` is the table of a union."""
        return super().value(_as_float32(raw) if field.type == "float" else raw, field, where, member)

    def array(self, raw: Any, field: Field, where: str) -> Array:
        """A vector of numbers."""
        if isinstance(raw, dict):
            raise numbers.wrong(where, "a list of numbers", raw)
        if field.type == "float" and isinstance(raw, list):
            raw = [_as_float32(item) for item in raw]
        found = raw.numbers() if field.type == "float" and isinstance(raw, Run) else None
        if found is None:
            return super().array(raw, field, where)
        with np.errstate(over="ignore", under="ignore"):
            return found.astype(np.float32)


def _as_float32(raw: Any) -> Any:
    """A number that is no float32 as the nearest that is, in the form of JSON; all else as it is."""
    if type(raw) not in (int, float) or abs(raw) > _LARGEST:
        return raw
    with np.errstate(over="ignore", under="ignore"):
        value = np.float32(raw)
    if np.isinf(value):
        return "inf" if raw > 0 else "-inf"
    return raw if value else math.copysign(0.0, raw)
