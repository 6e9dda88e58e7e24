"""Bad source files are told before MNN's converter sees them, good ones pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkit.errors import ModelError
from graphkit.mnn.sources import check_source
from graphkit.testing import parse

GRAPH_DEF = b"\x0a\x03abc\x0a\x00\x22\x02\x08\x01"  # two nodes and versions
CAFFE = b"\x0a\x03net\xa2\x06\x02ab"  # name and one layer (field 100)
FIXED = b"\x0a\x01n\x0d\0\0\0\0\x11\0\0\0\0\0\0\0\0"  # fields of four and eight bytes


def onnx_bytes() -> bytes:
    return parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").proto.SerializeToString()


GOOD: list[tuple[str, bytes]] = [
    ("TFLITE", b"\x1c\0\0\0TFL3" + bytes(16)),
    ("TF", GRAPH_DEF),
    ("CAFFE", CAFFE),
    ("JSON", b' \n{"oplists": [], "tensorName": []}'),
    ("JSON", b'{"oplists": [{"alpha": nan, "b": [-inf, inf]}]}'),
]
BAD: list[tuple[str, Callable[[], bytes], str, str]] = [
    ("MNN", lambda: b"some text", "is not an MNN model", ""),
    ("MNN", lambda: b"", "is empty", ""),
    ("MNN", onnx_bytes, "is not an MNN model", "it looks like ONNX: use --framework ONNX"),
    ("TFLITE", onnx_bytes, "is not a TFLite model", "it looks like ONNX: use --framework ONNX"),
    ("TFLITE", lambda: b"TFL", "is not a TFLite model", ""),
    ("TF", onnx_bytes, "is not a frozen TensorFlow graph", "it looks like ONNX: use --framework ONNX"),
    ("TF", lambda: b"node { name: 'x' }", "is not a frozen TensorFlow graph", ""),
    ("TF", lambda: GRAPH_DEF[:-1], "is not a frozen TensorFlow graph", ""),
    ("TF", lambda: b"\xff" * 20, "is not a frozen TensorFlow graph", ""),
    ("TF", lambda: GOOD[0][1], "is not a frozen TensorFlow graph", "it looks like TFLITE: use --framework TFLITE"),
    ("CAFFE", lambda: GRAPH_DEF[:5], "is not a Caffe model", ""),
    ("CAFFE", lambda: FIXED, "is not a Caffe model", ""),
    ("CAFFE", lambda: b"\x0f", "is not a Caffe model", ""),
    ("JSON", lambda: b"[1]", "is not a JSON object", ""),
    ("JSON", lambda: b'{"oplists": [}', "is not JSON: ", ""),
    ("JSON", lambda: b'{"a": "\xff"}', "is not JSON: ", ""),
    ("JSON", lambda: b'{"a":' + b"[" * 100_000, "is not JSON: ", ""),
    ("JSON", lambda: b"{}", "it has no 'oplists'", ""),
]


@pytest.mark.parametrize(("framework", "data"), GOOD)
def test_good_files_pass(tmp_path: Path, framework: str, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    check_source(tmp_path / "file", framework)


@pytest.mark.parametrize(("framework", "make", "problem", "hint"), BAD)
def test_bad_files_are_told(tmp_path: Path, framework: str, make: Callable[[], bytes], problem: str, hint: str) -> None:
    (tmp_path / "file").write_bytes(make())
    with pytest.raises(ModelError) as caught:
        check_source(tmp_path / "file", framework)
    assert problem in caught.value.message
    assert (caught.value.hint or "") == hint
    assert caught.value.exit_code == 2


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not there"):
        check_source(tmp_path / "none", "TF")
    with pytest.raises(ModelError, match="is not a file"):
        check_source(tmp_path, "TF")


def test_large_json_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.mnn.sources._JSON_LIMIT", 8)
    (tmp_path / "file").write_text(json.dumps({"anything": 1}))
    check_source(tmp_path / "file", "JSON")
