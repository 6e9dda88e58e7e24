"""Outputs are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphkit import _write
from graphkit.errors import ModelError, OutputError
from graphkit.model import Model, load
from graphkit.testing import parse


@pytest.fixture
def model() -> Model:
    """A model with two weights of 8 KiB."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>g (float[2048] x) => (float[2048] y) { a = Add(x, w) y = Mul(a, v) }'
    )
    for name in "wv":
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(2048, np.float32), name))
    return Model.from_proto(proto)


def fail_on(call: int, error: BaseException) -> Callable[[memoryview, BinaryIO], None]:
    """A `_copy` that writes half and raises in its n-th call."""
    calls = iter(range(1, 100))

    def copy(data: memoryview, file: BinaryIO) -> None:
        if next(calls) == call:
            file.write(data[: len(data) // 2])
            raise error
        file.write(data)

    return copy


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutputError),
        (OSError(errno.EIO, "Input/output error"), OutputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ModelError("weights end before their declared length"), ModelError),
    ],
    ids=["full", "broken", "ctrl-c", "input"],
)
def test_a_failure_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    error: BaseException,
    raised: type[BaseException],
    call: int,
    external: bool,
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"before")
    monkeypatch.setattr(_write, "_copy", fail_on(call, error))
    with pytest.raises(raised) as caught:
        model.save(tmp_path / "m.onnx", external=external)
    if raised is OutputError:
        assert "cannot be written" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == b"before"


def test_a_really_full_disk(tmp_path: Path) -> None:
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"), full.open("wb") as file:
        file.write(b"x" * 100_000)

    def fill() -> None:
        with _write.atomic(tmp_path / "m.onnx") as (file,):
            with full.open("wb") as sink:
                os.dup2(sink.fileno(), file.fileno())
            file.write(b"x")  # stays in Python's buffer: only closing the file finds out

    with pytest.raises(OutputError, match="no space left on the disk"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path: "is a directory",
        tmp_path / "gone" / "m.onnx": "No such file or directory",
        tmp_path / "file" / "m.onnx": "Not a directory",
        tmp_path / ("n" * 300): "File name too long",
    }
    for path, problem in cases.items():
        with pytest.raises(OutputError, match=problem):
            model.save(path)

    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_write.tempfile, "mkstemp", refuse)
    with pytest.raises(OutputError, match="Permission denied") as caught:
        model.save(tmp_path / "m.onnx")
    assert caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_output_is_an_ordinary_file(tmp_path: Path, model: Model) -> None:
    (tmp_path / "plain").touch()
    model.save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode
    model.save(tmp_path / ("n" * 250))
    _write.write_bytes(tmp_path / "small", b"bytes")
    assert (tmp_path / "small").read_bytes() == b"bytes"


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o755])
def test_an_existing_output_keeps_its_permissions(tmp_path: Path, model: Model, mode: int) -> None:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "m.onnx").chmod(mode)
    model.save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == mode


def test_only_ordinary_files_are_replaced(tmp_path: Path, model: Model) -> None:
    os.mkfifo(tmp_path / "pipe")
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(tmp_path / "socket"))
        (tmp_path / "null").symlink_to("/dev/null")
        before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
        cases = {"pipe": "is a pipe", "socket": "is a socket", "null": "is a device"}
        for name, problem in cases.items():
            with pytest.raises(OutputError, match=problem):
                model.save(tmp_path / name)
            with pytest.raises(OutputError, match=problem):
                _write.write_bytes(tmp_path / name, b"x")
    finally:
        server.close()
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before
    with pytest.raises(OutputError, match="is a device"):
        _write.write_bytes(Path("/dev/null"), b"x")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, model: Model, there: bool) -> None:
    (tmp_path / "deep").mkdir()
    if there:
        (tmp_path / "deep" / "real.onnx").write_bytes(b"before")
    (tmp_path / "m.onnx").symlink_to(Path("deep") / "real.onnx")
    model.save(tmp_path / "m.onnx", external=False)
    assert (tmp_path / "m.onnx").is_symlink()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["real.onnx"]
    assert load(tmp_path / "m.onnx").proto.graph.node[0].op_type == "Add"
    with pytest.raises(OutputError, match="is a link to another folder"):
        model.save(tmp_path / "m.onnx", external=True)


def test_external_data_of_a_link_in_the_same_folder(tmp_path: Path, model: Model) -> None:
    (tmp_path / "m.onnx").symlink_to("real.onnx")
    model.save(tmp_path / "m.onnx", external=True)
    for name in ("m.onnx", "real.onnx"):
        assert next(load(tmp_path / name).weights()).array()[0] == 1


def test_links_in_a_circle(tmp_path: Path, model: Model) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="go in a circle"):
        model.save(tmp_path / "a")


SLOW_SAVE = """
import sys, time
from graphkit import _write
from graphkit.model import load
def slow(data, file):
    file.write(data); file.flush(); print("writing", flush=True); time.sleep(60)
model = load(sys.argv[1])
_write._copy = slow
model.save(sys.argv[2])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_stopped_in_the_middle(tmp_path: Path, model: Model, how: signal.Signals) -> None:
    model.save(tmp_path / "in.onnx")
    (tmp_path / "out.onnx").write_bytes(b"before")
    command = [sys.executable, "-c", SLOW_SAVE, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        time.sleep(0.05)
        child.send_signal(how)
        assert child.wait(30) != 0
    assert (tmp_path / "out.onnx").read_bytes() == b"before"
    parts = list(tmp_path.glob(".*.part"))
    assert len(parts) == (1 if how == signal.SIGKILL else 0)  # nobody can clean up after a kill


def test_external_data_start_on_pages_and_load_in_onnxruntime(tmp_path: Path, model: Model) -> None:
    import onnxruntime

    model.save(tmp_path / "m.onnx", external=True)
    offsets = [
        int(entry.value)
        for tensor in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets == [0, 8192]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = np.ones(2048, np.float32)
    assert (session.run(None, {"x": x})[0] == 2).all()


def test_a_small_model_can_have_external_data_too(tmp_path: Path) -> None:
    parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").save(tmp_path / "m.onnx", external=True)
    assert (tmp_path / "m.onnx.data").read_bytes() == b""
    assert load(tmp_path / "m.onnx").proto.graph.node[0].op_type == "Relu"
