"""Comparing any two models: files and models in memory, ONNX and MNN, on either side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import ModelError, UsageError
from graphkit.mnn.road import convert
from graphkit.testing import parse
from graphkit.verification.outputs import verify

RELU = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"
ABS = "g (float[N, 4] x) => (float[N, 4] y) { y = Abs(x) }"


def test_models_in_memory() -> None:
    assert verify(parse(RELU), parse(RELU)).ok
    result = verify(parse(RELU), parse(ABS))
    assert not result.ok
    assert result.to_dict()["reference"] is None
    assert "output 'y'" in result.proof.reason


def test_onnx_and_mnn_on_either_side(tmp_path: Path) -> None:
    onnx, mnn = tmp_path / "m.onnx", tmp_path / "m.mnn"
    parse(RELU).save(onnx)
    convert(onnx, mnn)
    feeds = [{"x": np.array([[1, -2, 3, -4]], np.float32)}]
    assert verify(onnx, mnn).ok
    assert verify(mnn, onnx, inputs=feeds).ok
    assert verify(mnn, mnn, inputs=feeds).ok
    assert not verify(mnn, parse(ABS), inputs=feeds).ok


def test_an_mnn_reference_needs_inputs(tmp_path: Path) -> None:
    parse(RELU).save(tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    with pytest.raises(UsageError, match="needs inputs"):
        verify(tmp_path / "m.mnn", tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["no.onnx", "no.mnn"])
def test_a_missing_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError):
        verify(parse(RELU), tmp_path / name)
