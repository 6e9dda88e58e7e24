"""`graphkit mnn to-json` and `graphkit mnn from-json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphkit.mnn import worker
from graphkit.mnn.document import read
from graphkit.mnn.document.tree import first_difference
from tests.mnn.document.converted import CNN, LOOP, cnn_weights, convert, random


@pytest.fixture
def cnn() -> Path:
    """A small model in the current folder, made by MNN."""
    return convert(Path("cnn.mnn"), CNN, cnn_weights())


def outputs(path: str, **feeds: np.ndarray[Any, Any]) -> dict[str, bytes]:
    """The bytes of what MNN computes."""
    return {name: array.tobytes() for name, array in worker.run(Path(path), feeds).outputs.items()}


@pytest.mark.parametrize("flags", [[], ["--inline"], ["--compat"]])
def test_there_and_back(run: Any, cnn: Path, flags: list[str]) -> None:
    assert run("mnn", "to-json", "cnn.mnn", *flags).exit_code == 0
    result = run("mnn", "from-json", "cnn.json", "-o", "back.mnn", *(flag for flag in flags if flag == "--compat"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("wrote back.mnn  ")
    assert result.stdout.endswith("valid, loads, runs at [1,3,8,8]\n")
    assert first_difference(read("cnn.mnn").net, read("back.mnn").net) is None
    feeds = {"x": random(1, 3, 8, 8)}
    assert outputs("back.mnn", **feeds) == outputs("cnn.mnn", **feeds)


def test_bodies_come_along(run: Any) -> None:
    convert(Path("loop.mnn"), LOOP)
    run("mnn", "to-json", "loop.mnn")
    assert run("mnn", "from-json", "loop.json", "-o", "back.mnn").exit_code == 0
    feeds = {"x": random(2, 3), "n": np.array(3)}
    assert outputs("back.mnn", **feeds) == outputs("loop.mnn", **feeds)


def test_what_is_written_is_told(run: Any, cnn: Path) -> None:
    result = run("mnn", "to-json", "cnn.mnn", "-o", "a.json", "--json", "--report", "r.json")
    data = json.loads(result.stdout)
    assert [file["path"] for file in data["files"]] == ["a.json", "a.safetensors"]
    assert [file["bytes"] for file in data["files"]] == [Path(f).stat().st_size for f in ("a.json", "a.safetensors")]
    assert (data["command"], data["ok"], data["exit_code"]) == ("mnn to-json", True, 0)
    assert json.loads(Path("r.json").read_text()) == data
    assert run("mnn", "to-json", "cnn.mnn").stdout.startswith("wrote cnn.json  ")


def test_what_was_made_is_told(run: Any, cnn: Path) -> None:
    run("mnn", "to-json", "cnn.mnn")
    data = json.loads(run("mnn", "from-json", "cnn.json", "-o", "b.mnn", "--json").stdout)
    assert (data["command"], data["output"], data["loads"], data["runs"]) == ("mnn from-json", "b.mnn", True, True)
    assert data["bytes"] == Path("b.mnn").stat().st_size
    assert "edits" not in data


def test_without_mnn(run: Any, cnn: Path) -> None:
    run("mnn", "to-json", "cnn.mnn")
    result = run("mnn", "from-json", "cnn.json", "-o", "b.mnn", "--no-run")
    assert result.exit_code == 0
    assert "loads" not in result.stdout
    assert first_difference(read("cnn.mnn").net, read("b.mnn").net) is None


@pytest.mark.parametrize("flags", [[], ["--no-run"]])
def test_an_edit_that_mnn_would_crash_on_is_refused(run: Any, cnn: Path, flags: list[str]) -> None:
    run("mnn", "to-json", "cnn.mnn")
    raw = json.loads(Path("cnn.json").read_text())
    raw["net"]["oplists"][1]["inputIndexes"] = [99]
    Path("cnn.json").write_text(json.dumps(raw))
    result = run("mnn", "from-json", "cnn.json", "-o", "b.mnn", *flags)
    assert result.exit_code == 2
    assert "99" in result.stderr
    assert not Path("b.mnn").exists()


def test_an_edit_by_hand(run: Any, cnn: Path) -> None:
    run("mnn", "to-json", "cnn.mnn")
    text = Path("cnn.json").read_text()
    assert '"dims":[1,3,8,8]' in text
    Path("cnn.json").write_text(text.replace('"dims":[1,3,8,8]', '"dims":[2,3,6,6]'))
    assert run("mnn", "from-json", "cnn.json", "-o", "b.mnn").stdout.endswith("runs at [2,3,6,6]\n")


@pytest.mark.parametrize("flags", [[], ["--compat"]])
def test_what_is_wrong_is_told_with_its_place(run: Any, cnn: Path, flags: list[str]) -> None:
    run("mnn", "to-json", "cnn.mnn", *flags)
    Path("cnn.json").write_text(Path("cnn.json").read_text().replace('"kernelX":3', '"kernelX":true'))
    result = run("mnn", "from-json", "cnn.json", "-o", "b.mnn", *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: cnn.json: ops[c].main.common.kernelX: expected a whole number, got true" in result.stderr


def test_the_wrong_form_is_recognized(run: Any, cnn: Path) -> None:
    run("mnn", "to-json", "cnn.mnn", "-o", "ours.json")
    run("mnn", "to-json", "cnn.mnn", "-o", "theirs.json", "--compat")
    assert "--compat" in run("mnn", "from-json", "theirs.json", "-o", "b.mnn").stderr
    assert "without --compat" in run("mnn", "from-json", "ours.json", "-o", "b.mnn", "--compat").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("to-json", "cnn.mnn", "-o", "x.mnn"), "mnn to-json writes JSON"),
        (("to-json", "cnn.mnn", "--inline", "--compat"), "--inline and --compat exclude each other"),
        (("to-json", "cnn.mnn", "-o", "no/x.json"), "its folder does not exist"),
        (("to-json", "gone.mnn"), "gone.mnn: cannot be read: No such file or directory"),
        (("to-json", "chain.onnx"), "is not an MNN model"),
        (("from-json", "gone.json", "-o", "x.mnn"), "gone.json: cannot be read: No such file or directory"),
        (("from-json", "cnn.mnn", "-o", "x.mnn"), "cnn.mnn: "),
        (("from-json", "cnn.json", "-o", "x.json"), "mnn from-json writes MNN"),
        (("from-json", "cnn.json"), "missing option '-o'"),
    ],
)
def test_bad_words_end_2(run: Any, cnn: Path, words: tuple[str, ...], message: str) -> None:
    result = run("mnn", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not Path("x.mnn").exists()


def test_no_input_is_overwritten(run: Any, cnn: Path) -> None:
    run("mnn", "to-json", "cnn.mnn")
    raw = json.loads(Path("cnn.json").read_text())
    Path("cnn.safetensors").rename("arrays.bin")
    raw["sidecar"]["file"] = "arrays.bin"
    Path("cnn.json").write_text(json.dumps(raw))
    before = Path("arrays.bin").read_bytes()
    result = run("mnn", "from-json", "cnn.json", "-o", "arrays.bin")
    assert result.exit_code == 2
    assert "would overwrite an input" in result.stderr
    assert Path("arrays.bin").read_bytes() == before
    assert "would overwrite an input" in run("mnn", "to-json", "cnn.mnn", "--report", "cnn.mnn").stderr


def test_weights_kept_outside(run: Any) -> None:
    convert(Path("e.mnn"), CNN, cnn_weights(), saveExternalData=True)
    run("mnn", "to-json", "e.mnn", "-o", "j.json")
    assert Path("j.weight").read_bytes() == Path("e.mnn.weight").read_bytes()
    assert run("mnn", "from-json", "j.json", "-o", "n.mnn").exit_code == 0
    feeds = {"x": random(1, 3, 8, 8)}
    assert outputs("n.mnn", **feeds) == outputs("e.mnn", **feeds)


@pytest.mark.parametrize("name", ["to-json", "from-json"])
def test_help_has_examples(run: Any, name: str) -> None:
    assert f"graphkit mnn {name} det" in run("mnn", name, "--help").stdout
