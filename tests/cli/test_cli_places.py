"""Outputs never overwrite an input, each other, or what is no ordinary file; nothing is touched then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.model import Model

Contents = dict[str, tuple[int, bytes]]


def contents() -> Contents:
    """Mode and bytes of every ordinary file below the current folder."""
    found = (path for path in Path().rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in found}


@pytest.fixture
def inputs(folder: Path) -> Path:
    """Besides the models: one with external data (in a folder of its own) and weights inside, and samples."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>g (float[2048] x) => (float[2048] y) { y = Add(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2048, np.float32), "w"))
    Model.from_proto(proto).save("big.onnx", external=True)
    Path("samples").mkdir()
    for number in range(2):
        np.savez(f"samples/{number}.npz", x=np.ones((2, 3), np.float32), x2=np.ones((2, 3), np.float32))
    Path("old.mnn.weight").write_bytes(b"weights")
    Path("link").symlink_to("two.onnx")
    os.link("two.onnx", "hard.onnx")
    return folder


@pytest.mark.parametrize("flag", ["-o", "--report"])
@pytest.mark.parametrize(
    ("args", "place"),
    [
        (["two.onnx"], "two.onnx"),
        (["two.onnx"], "./samples/../two.onnx"),
        (["two.onnx"], "link"),
        (["two.onnx"], "hard.onnx"),
        (["big.onnx"], "big.onnx.data"),
        (["two.onnx", "--inputs", "samples"], "samples/1.npz"),
        (["two.onnx", "--inputs", "samples/0.npz"], "samples/0.npz"),
        (["two.onnx", "--plugin", "plugin.py"], "plugin.py"),
        (["two.onnx", "--plugin", "plugin"], "plugin.py"),
    ],
)
def test_inputs_are_never_overwritten(
    run: Any, inputs: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], place: str, flag: str
) -> None:
    monkeypatch.syspath_prepend(str(inputs))
    before = contents()
    result = run("optimize", *args, flag, place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{Path(place)}: would overwrite an input; nothing was written" in result.stderr
    assert f"help: choose another place with {flag}" in result.stderr
    assert contents() == before


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (["convert", "big.onnx"], "big.onnx.data"),
        (["convert", "old.mnn", "-o", "new.mnn"], "old.mnn.weight"),
        (["verify", "two.onnx", "big.onnx"], "big.onnx.data"),
        (["verify", "big.onnx", "two.onnx"], "big.onnx.data"),
        (["verify", "two.onnx", "sub.onnx"], "sub.onnx"),
        (["verify", "two.onnx", "old.mnn"], "old.mnn.weight"),
        (["verify", "two.onnx", "sub.onnx", "--inputs", "samples"], "samples/0.npz"),
    ],
)
def test_reports_of_other_commands(run: Any, inputs: Path, args: list[str], place: str) -> None:
    if "old.mnn" in args:
        assert run("convert", "two.onnx", "-o", "old.mnn", "--passes", "cleanup", "-q").exit_code == 0
        Path("old.mnn.weight").write_bytes(b"weights")
    before = contents()
    result = run(*args, "--report", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{place}: would overwrite an input" in result.stderr
    assert contents() == before


@pytest.mark.parametrize(
    ("args", "place", "what"),
    [
        (["big.onnx", "big.onnx"], "big.onnx.data", "an input"),
        (["two.onnx", "sub.onnx"], "sub.onnx", "an input"),
        (["two.onnx", "sub.onnx", "--inputs", "samples"], "samples/0.npz", "an input"),
        (["two.onnx", "sub.onnx", "--report", "out"], "out", "the other output"),
    ],
)
def test_the_table_of_layers_overwrites_nothing(run: Any, inputs: Path, args: list[str], place: str, what: str) -> None:
    before = contents()
    result = run("verify", *args, "--layers", "--csv", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{place}: would overwrite {what}" in result.stderr
    assert "help: choose another place with --csv" in result.stderr
    assert contents() == before


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (["optimize", "two.onnx", "-o", "x.onnx"], "x.onnx"),
        (["optimize", "two.onnx"], "two.opt.onnx"),
        (["optimize", "two.onnx", "-o", "x.onnx"], "x.onnx.data"),
        (["convert", "two.onnx"], "two.mnn"),
        (["convert", "two.onnx"], "two.mnn.weight"),
    ],
)
def test_outputs_do_not_overwrite_each_other(run: Any, args: list[str], place: str) -> None:
    before = contents()
    result = run(*args, "--report", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{place}: would overwrite the other output" in result.stderr
    assert contents() == before


def test_data_beside_the_output_are_no_input_either(run: Any, inputs: Path) -> None:
    proto = onnx.load("big.onnx", load_external_data=False)
    Path("other.onnx").write_bytes(proto.SerializeToString())
    before = contents()
    result = run("optimize", "other.onnx", "-o", "big.onnx")
    assert result.exit_code == 2
    assert "big.onnx.data: would overwrite an input" in result.stderr
    assert contents() == before
    assert run("optimize", "other.onnx", "-o", "big.onnx", "--no-external-data", "-q").exit_code == 0
    assert contents()["big.onnx.data"] == before["big.onnx.data"]


@pytest.mark.parametrize("flag", ["-o", "--report"])
def test_only_files_are_outputs(run: Any, folder: Path, flag: str) -> None:
    os.mkfifo("queue")
    Path("null").symlink_to("/dev/null")
    for place, problem in (("queue", "is a pipe"), ("null", "is a device"), ("/dev/null", "is a device")):
        result = run("optimize", "two.onnx", flag, place)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{place}: {problem}; outputs are files" in result.stderr
    result = run("optimize", "two.onnx", flag, "-")
    assert result.exit_code == 2
    assert "outputs are files; '-' is not taken for standard output" in result.stderr
    assert Path("null").is_symlink()
    assert Path("queue").is_fifo()
    assert Path("/dev/null").is_char_device()


def test_a_link_and_the_mode_of_an_output_stay(run: Any, folder: Path) -> None:
    Path("deep").mkdir()
    Path("deep/real.onnx").touch()
    Path("deep/real.onnx").chmod(0o640)
    Path("out.onnx").symlink_to("deep/real.onnx")
    assert run("optimize", "two.onnx", "--passes", "cleanup", "-o", "out.onnx").exit_code == 0
    assert Path("out.onnx").is_symlink()
    assert Path("deep/real.onnx").stat().st_mode & 0o777 == 0o640
    assert onnx.load("deep/real.onnx").graph.node[0].op_type == "Add"


def test_a_report_that_cannot_be_written_says_what_was(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        from graphkit._write import _output_error

        raise _output_error(OSError(28, "No space left on device"), path)

    monkeypatch.setattr("graphkit._write.write_bytes", full)
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--report", "r.json")
    assert result.exit_code == 2
    problem = "r.json: cannot be written: no space left on the disk; two.opt.onnx was written before"
    assert result.stderr == f"error: {problem}\n"


def test_the_hint_for_a_report_is_not_about_the_output(run: Any) -> None:
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--report", "/proc/r.json")
    assert result.exit_code == 2
    assert "help: choose another place with --report" in result.stderr
    assert "with -o" not in result.stderr
