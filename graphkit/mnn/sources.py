"""Tell bad source files of other frameworks before MNN's converter crashes on them.

The looks are cheap: magic numbers, and the outermost fields of protobufs. The field numbers are those of
TensorFlow's graph.proto, Caffe's caffe.proto and ONNX's onnx.proto; TFLite's file identifier is that of its schema.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from graphkit.errors import ModelError

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}  # wire types of eight and four bytes
_GRAPH_DEF = {1: _BYTES, 2: _BYTES, 3: _VARINT, 4: _BYTES}
_CAFFE_LAYERS = (2, 100)  # of NetParameter: the old kind and the new one
_ONNX_VERSION, _ONNX_GRAPH = 1, 7
_JSON_LIMIT = 256 << 20  # bytes that are parsed here; above this only the beginning is looked at
_NO_NUMBER = re.compile(r"(?<=[\[:,\s])[-+]?(?:nan|inf(?:inity)?)(?=[\],}\s])", re.IGNORECASE)


def check_source(path: Path, framework: str) -> None:
    """Look whether a file is of a framework other than ONNX. Raises ModelError when it is missing or is not."""
    if not path.is_file():
        raise ModelError("is not a file" if path.exists() else "is not there", file=path)
    try:
        if not path.stat().st_size:
            raise ModelError("is empty", file=path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            problem = _CHECKS[framework](path, data)
            like = _looks_like(data) if problem else None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read: {error}", file=path) from error
    if problem:
        hint = f"it looks like {like}: use --framework {like}" if like and like != framework else None
        raise ModelError(problem, file=path, hint=hint)


def _mnn(path: Path, data: mmap.mmap) -> str:
    from graphkit.mnn.fileinfo import read_file_info

    try:
        read_file_info(path)
    except ModelError as error:
        return error.message
    return ""


def _json(path: Path, data: mmap.mmap) -> str:
    if data[:64].lstrip()[:1] != b"{":
        return "is not a JSON object"
    if len(data) > _JSON_LIMIT:
        return ""
    try:
        text = data[:].decode()
        # MNN writes NaN and infinity as C prints them, which JSON does not know.
        found = json.loads(_NO_NUMBER.sub("0", text))
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return "" if "oplists" in found else "is not a model in MNN's JSON: it has no 'oplists'"


def _tflite(path: Path, data: mmap.mmap) -> str:
    return "" if data[4:8] == b"TFL3" else "is not a TFLite model: bytes 4 to 8 are not 'TFL3'"


def _tensorflow(path: Path, data: mmap.mmap) -> str:
    fields = _fields(data)
    if fields is not None and 1 in fields and all(_GRAPH_DEF.get(number) == kind for number, kind in fields.items()):
        return ""
    return "is not a frozen TensorFlow graph (a binary GraphDef)"


def _caffe(path: Path, data: mmap.mmap) -> str:
    fields = _fields(data)
    if fields is not None and any(fields.get(number) == _BYTES for number in _CAFFE_LAYERS):
        return ""
    return "is not a Caffe model (a binary NetParameter)"


_CHECKS: Mapping[str, Callable[[Path, mmap.mmap], str]] = {
    "MNN": _mnn,
    "JSON": _json,
    "TFLITE": _tflite,
    "TF": _tensorflow,
    "CAFFE": _caffe,
}


def _looks_like(data: mmap.mmap) -> str | None:
    if data[4:8] == b"TFL3":
        return "TFLITE"
    fields = _fields(data) or {}
    return "ONNX" if fields.get(_ONNX_VERSION) == _VARINT and fields.get(_ONNX_GRAPH) == _BYTES else None


def _fields(data: mmap.mmap) -> dict[int, int] | None:
    """Wire types of a protobuf's outermost fields by number; None when the bytes are no protobuf."""
    try:
        return dict(_walk(data))
    except IndexError:
        return None


def _walk(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Number and wire type of each field; raises IndexError where the bytes end or make no sense."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            at += length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise IndexError(at)
        if at > len(data):
            raise IndexError(at)
        yield key >> 3, kind


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError(at)
