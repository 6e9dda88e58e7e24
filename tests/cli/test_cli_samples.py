"""What is wrong with `--inputs` is said with the file, and with the input."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphkit.cli._samples import FileFeeds, samples
from graphkit.errors import UsageError

GOOD = {"x": np.ones((2, 3), np.float32), "x2": np.ones((2, 3), np.float32)}


def text_file(folder: Path) -> None:
    np.savez(folder / "0.npz", **GOOD)
    (folder / "1.npz").write_text("this is a text")


def objects(folder: Path) -> None:
    np.savez(folder / "1.npz", x=GOOD["x"], x2=np.array([{}], dtype=object), allow_pickle=True)


def no_array(folder: Path) -> None:
    with zipfile.ZipFile(folder / "1.npz", "w") as archive:
        archive.writestr("x.npy", "no array")


def cut(folder: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, **GOOD)
    (folder / "1.npz").write_bytes(stream.getvalue()[:-40])


def one_array(folder: Path) -> None:
    np.save(folder / "a.npy", GOOD["x"])
    (folder / "a.npy").rename(folder / "1.npz")


def mixed(folder: Path) -> None:
    np.savez(folder / "1.npz", **GOOD)
    np.save(folder / "x.npy", GOOD["x"])


@pytest.mark.parametrize(
    ("make", "place", "problem"),
    [
        (text_file, "1.npz", "is not an .npz file"),
        (objects, "1.npz", "input 'x2' holds Python objects, not numbers"),
        (no_array, "1.npz", "input 'x' is not an array of numpy's"),
        (cut, "1.npz", "is not an .npz file"),
        (one_array, "1.npz", "is one array"),
        (mixed, "", "holds both .npz files (a sample each) and .npy files (an input each): '1.npz' and 'x.npy'"),
    ],
)
def test_bad_files_in_a_folder(run: Any, make: Callable[[Path], None], place: str, problem: str) -> None:
    folder = Path("samples")
    folder.mkdir()
    make(folder)
    result = run("optimize", "two.onnx", "--inputs", "samples")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {folder / place}: {problem}" in result.stderr
    assert "pickle" not in result.stderr


def test_what_is_no_file(run: Any) -> None:
    result = run("verify", "two.onnx", "two.onnx", "--inputs", "/dev/null")
    assert (result.exit_code, result.stderr) == (2, "error: /dev/null: is not a file\n")


def test_samples_know_their_files(tmp_path: Path) -> None:
    for number in (10, 2):
        np.savez(tmp_path / f"{number}.npz", **GOOD)
    found = samples(tmp_path)
    assert found is not None
    assert [feeds.file.name for feeds in found if isinstance(feeds, FileFeeds)] == ["2.npz", "10.npz"]
    assert set(found[0]) == {"x", "x2"}
    assert samples(None) is None
    with pytest.raises(UsageError, match="is not there"):
        samples(tmp_path / "none.npz")
