"""Trying a file in a child: what runs, at which sizes, and what the error says when something fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from converted import CNN, LOOP, cnn_weights, convert, random

from graphkit.errors import MnnError, ModelError, UsageError
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.trial import try_document
from graphkit.mnn.worker import RunError

DYNAMIC = "g (float[N, 3, H, W] x) => (float[N, 4, P, Q] y) { y = Conv<strides = [2, 2]>(x, w, b) }"
SUM = """g (float[4, N] x, int64[4, N] i) => (float[4, N] y, float[4, N] z)
    { f = Cast<to = 1>(i) y = Add(x, f) z = Abs(x) }"""


def changed(path: Path, change: Callable[[Document], object]) -> Path:
    doc = read(path)
    change(doc)
    write(doc, path.with_name("changed.mnn"))
    return path.with_name("changed.mnn")


def test_declared_sizes_are_used(tmp_path: Path) -> None:
    trial = try_document(convert(tmp_path / "m.mnn", CNN, cnn_weights()))
    assert trial.loads
    assert trial.shapes == {"x": (1, 3, 8, 8)}
    assert trial.outputs == {"y": (1, 4, 4, 4)}
    assert trial.note == "loads, runs at [1,3,8,8]"


def test_open_dimensions_are_filled_with_a_batch_of_one(tmp_path: Path) -> None:
    weights = {name: array for name, array in cnn_weights().items() if name != "two"}
    path = convert(tmp_path / "m.mnn", DYNAMIC, weights)
    assert try_document(path).note == "loads, runs at [1,3,32,32]"
    trial = try_document(path, {"x": (2, 3, 9, 11)})
    assert trial.shapes == {"x": (2, 3, 9, 11)}
    assert trial.outputs == {"y": (2, 4, 4, 5)}


def test_several_inputs_and_outputs_are_named(tmp_path: Path) -> None:
    trial = try_document(convert(tmp_path / "m.mnn", SUM))
    assert trial.note == "loads, runs at x [4,32], i [4,32]"
    assert trial.outputs == {"y": (4, 32), "z": (4, 32)}


def test_loops_run(tmp_path: Path) -> None:
    assert try_document(convert(tmp_path / "m.mnn", LOOP)).outputs == {"y": (2, 3)}


def test_sizes_that_only_fit_together_leave_a_model_loaded(tmp_path: Path) -> None:
    text = "g (float[4, N] x, float[4, M] z) => (float[4, K] y) { c = Concat<axis = 1>(x, z) y = Add(c, w) }"
    path = convert(tmp_path / "m.mnn", text, {"w": random(4, 7)})
    trial = try_document(path)
    assert trial.loads
    assert trial.shapes is None
    assert trial.note.startswith("loads; not run: no sizes were found")
    assert try_document(path, {"x": (4, 3), "z": (4, 4)}).outputs == {"y": (4, 7)}
    with pytest.raises(RunError):
        try_document(path, {"x": (4, 3), "z": (4, 5)})


def test_a_crash_at_loading_says_so(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())
    broken = changed(path, lambda doc: doc.net["oplists"][0].fields.pop("main"))
    with pytest.raises(MnnError, match=r"MNN crashed loading the model \(SIGSEGV\)") as caught:
        try_document(broken)
    assert caught.value.exit_code == 3
    assert caught.value.file == str(broken)


def test_a_crash_at_running_says_so(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())

    def no_stride(doc: Document) -> None:
        pool = next(op for op in doc.net["oplists"] if op.label("type") == "Pooling")
        pool["main"].fields |= {"strideX": 0, "strideY": 0}

    with pytest.raises(RunError, match=r"MNN crashed running the model \(SIG\w+\)"):
        try_document(changed(path, no_stride))


def test_a_shape_that_does_not_fit_names_the_operator(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())

    def more_channels(doc: Document) -> None:
        doc.net["oplists"][0]["main"].fields["dims"] = np.array([1, 5, 8, 8], "<i4")

    with pytest.raises(RunError, match="Compute Shape Error") as caught:
        try_document(changed(path, more_channels))
    assert caught.value.mnn_op == "c"


def test_a_hang_is_an_error(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())
    with pytest.raises(RunError, match=r"did not finish within 0\.01 s") as caught:
        try_document(path, timeout=0.01)
    assert caught.value.timed_out


def test_missing_weights_are_an_error_though_mnn_runs(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights(), saveExternalData=True)
    assert try_document(path).note == "loads, runs at [1,3,8,8]"
    path.with_name("m.mnn.weight").unlink()
    with pytest.raises(MnnError, match=r"does not find the weights that are kept in 'm\.mnn\.weight'"):
        try_document(path)


def test_a_model_without_named_outputs_is_loaded(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())
    trial = try_document(changed(path, lambda doc: doc.net.fields.pop("outputName")))
    assert trial.note == "loads; it names no outputs, so it was not run"


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = convert(tmp_path / "m.mnn", CNN, cnn_weights())
    with pytest.raises(UsageError, match="no input 'data'") as caught:
        try_document(path, {"data": (1, 3, 8, 8)})
    assert caught.value.hint == "inputs: 'x'"
    with pytest.raises(UsageError, match=r"\[1, -1\] is no shape"):
        try_document(path, {"x": (1, -1)})
    (tmp_path / "no.mnn").write_bytes(b"no model")
    with pytest.raises(ModelError):
        try_document(tmp_path / "no.mnn")
