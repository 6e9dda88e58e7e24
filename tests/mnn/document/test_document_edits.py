"""Input sizes, and saving: validated, tried by MNN, moved into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from converted import CNN, IMAGE, Array, cnn_weights, computed, convert, convert_file, op_of, random

from graphkit.errors import MnnError, ModelError, OutputError
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.edits import add_outputs, rename, resize_input, save, set_weights

After = Callable[..., dict[str, Array]]
RESHAPED = """g (float[1, 3, 4, 4] x) => (float[1, 48] y) <int64[2] s = {1, 48}> { t = Tanh(x) y = Reshape(t, s) }"""


@pytest.fixture
def outside(folder: Path) -> Document:
    """`CNN` with its weights in a file beside it."""
    return read(convert(folder / "outside.mnn", CNN, cnn_weights(), saveExternalData=1))


def test_another_input_size(cnn: Document, after: After) -> None:
    assert resize_input(cnn, "x", (1, 3, 12, 20)).detail == "inputs[x].dims: [1,3,8,8] → [1,3,12,20]"
    assert after(cnn, {"x": random(1, 3, 12, 20)})["y"].shape == (1, 4, 6, 10)
    resize_input(cnn, 0, [1, 3, -1, -1])
    assert cnn.net["oplists"][0]["main"].ints("dims") == (1, 3, -1, -1)


def test_what_was_saved(cnn: Document, before: dict[str, Array], tmp_path: Path) -> None:
    rename(cnn, "y", "prob")
    saved = save(cnn, tmp_path / "new.mnn")
    assert (saved.path, saved.size) == (tmp_path / "new.mnn", (tmp_path / "new.mnn").stat().st_size)
    assert (saved.trial.loads, saved.trial.shapes, saved.trial.outputs) == (
        True,
        {"x": (1, 3, 8, 8)},
        {"prob": (1, 4, 4, 4)},
    )
    np.testing.assert_array_equal(computed(saved.path, IMAGE)["prob"], before["y"])
    assert [path.name for path in tmp_path.iterdir()] == ["new.mnn"]


def test_a_real_model_at_another_size(model_path: Callable[[str], Path], folder: Path, tmp_path: Path) -> None:
    doc = read(convert_file(model_path("orientation"), folder / "orientation.mnn"))
    add_outputs(doc, ["Add.9"])
    resize_input(doc, "x", [2, 3, 256, 256])
    layer = op_of(doc, "Add.9__matmul_converted")["main"]
    set_weights(doc, "Add.9__matmul_converted", {"weight": 0 * layer["weight"], "bias": [0, 0, 0, 9]})
    saved = save(doc, tmp_path / "new.mnn")
    assert saved.trial.note == "loads, runs at [2,3,256,256]"
    found = computed(saved.path, {"x": random(2, 3, 256, 256)})
    assert found["Add.9"].tolist() == [[0, 0, 0, 9]] * 2
    assert (found["fetch_name_0"].argmax(axis=1) == 3).all()


def test_a_document_that_is_not_valid(cnn: Document, tmp_path: Path) -> None:
    op_of(cnn, "t").fields["inputIndexes"] = np.array([99], "<i4")
    with pytest.raises(ModelError, match="99"):
        save(cnn, tmp_path / "new.mnn")
    assert not list(tmp_path.iterdir())


def test_a_model_that_mnn_cannot_run(folder: Path, tmp_path: Path) -> None:
    doc = read(convert(folder / "reshaped.mnn", RESHAPED))
    resize_input(doc, "x", [1, 3, 5, 5])
    target = tmp_path / "new.mnn"
    target.write_bytes(b"an older output")
    with pytest.raises(MnnError) as caught:
        save(doc, target)
    assert caught.value.file == str(target)
    assert target.read_bytes() == b"an older output"
    with pytest.raises(MnnError) as caught:
        save(doc, target, keep=True)
    assert "kept as" in str(caught.value.hint)
    assert read(target).net["oplists"][0]["main"].ints("dims") == (1, 3, 5, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["new.mnn"]


def test_inputs_are_never_written(cnn_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "model.mnn"
    shutil.copy(cnn_file, source)
    (tmp_path / "link.mnn").symlink_to(source)
    os.link(source, tmp_path / "hard.mnn")
    doc = read(source)
    for name in ("model.mnn", "link.mnn", "hard.mnn"):
        with pytest.raises(OutputError, match="would overwrite an input"):
            save(doc, tmp_path / name)
    assert source.read_bytes() == cnn_file.read_bytes()


def test_outside_weights_are_never_written(outside: Document, tmp_path: Path) -> None:
    write(outside, tmp_path / "a.mnn")
    doc = read(tmp_path / "a.mnn")
    os.link(tmp_path / "a.mnn.weight", tmp_path / "b.mnn.weight")
    for name in ("b.mnn", "a.mnn.weight"):
        with pytest.raises(OutputError, match="would overwrite an input"):
            save(doc, tmp_path / name)


def test_outside_weights_come_along_and_old_ones_go(
    outside: Document, cnn: Document, before: dict[str, Array], tmp_path: Path
) -> None:
    saved = save(outside, tmp_path / "new.mnn")
    assert outside.weights is not None
    assert (tmp_path / "new.mnn.weight").read_bytes() == outside.weights.read_bytes()
    assert saved.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    np.testing.assert_array_equal(computed(saved.path, IMAGE)["y"], before["y"])
    save(cnn, tmp_path / "new.mnn")
    assert [path.name for path in tmp_path.iterdir()] == ["new.mnn"]
    np.testing.assert_array_equal(computed(saved.path, IMAGE)["y"], before["y"])


def test_an_output_keeps_its_permissions_and_its_link(cnn: Document, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real = tmp_path / "folder" / "real.mnn"
    real.write_bytes(b"old")
    real.chmod(0o640)
    (tmp_path / "new.mnn").symlink_to(real)
    save(cnn, tmp_path / "new.mnn")
    assert (tmp_path / "new.mnn").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert read(real).net["outputName"] == ["y"]


def test_weights_are_not_left_where_a_link_points_elsewhere(outside: Document, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "new.mnn").symlink_to(tmp_path / "folder" / "real.mnn")
    with pytest.raises(OutputError, match="is a link to another folder"):
        save(outside, tmp_path / "new.mnn")


@pytest.mark.parametrize("name", ["none/new.mnn", "."])
def test_places_that_cannot_be_written(cnn: Document, tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError):
        save(cnn, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_fields_that_nobody_knows(cnn: Document, tmp_path: Path) -> None:
    """They are refused unless they may go."""
    op_of(cnn, "t").unknown = (40,)
    with pytest.raises(ModelError, match="does not know"):
        save(cnn, tmp_path / "new.mnn")
    save(cnn, tmp_path / "new.mnn", drop_unknown=True)
    assert read(tmp_path / "new.mnn").unknown() == []


def test_warnings_are_told(cnn: Document, tmp_path: Path) -> None:
    cnn.net.fields["tensorNumber"] = 3
    warnings = save(cnn, tmp_path / "new.mnn").warnings
    assert [(warning.severity, warning.where) for warning in warnings] == [("warning", "tensorNumber")]
