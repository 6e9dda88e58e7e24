"""TensorScatter and ReverseSequence: equality in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 6, 4), -2), ((2, 6, 4), 1), ((2, 6, 4, 3), 1), ((2, 3, 6), -1)])
def test_tensor_scatter(mode: str, shape: tuple[int, ...], axis: int, tmp_path: Path) -> None:
    new = list(shape)
    new[axis] = 2
    text = f"""g (float{list(shape)} x, float{new} u, int64[2] w) => (float{list(shape)} y)
        {{ y = TensorScatter<mode="{mode}",axis={axis}>(x, u, w) }}"""
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32), "u": RNG.standard_normal(new).astype(np.float32)}
    feeds["w"] = np.array([1, 5 if mode == "circular" else 4])
    assert "TensorScatter" not in lowered(text, opset=24, feeds=feeds, standard=True)


def test_tensor_scatter_in_mnn(tmp_path: Path) -> None:
    text = """g (float[2,6,4] x, float[2,2,4] u, int64[2] w) => (float[2,6,4] y)
        { y = TensorScatter<mode="circular">(x, u, w) }"""
    x, u = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 4), (2, 2, 4)))
    expected = x.copy()
    for batch, first in enumerate((1, 5)):
        for step in range(2):
            expected[batch, (first + step) % 6] = u[batch, step]
    feeds = {"x": x, "u": u, "w": np.array([1, 5])}
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": expected}, opset=24)


def test_tensor_scatter_without_write_indices_starts_at_zero() -> None:
    text = "g (float[2,6,4] x, float[2,2,4] u) => (float[2,6,4] y) { y = TensorScatter(x, u) }"
    lowered(text, opset=24, standard=True)


@pytest.mark.parametrize("dtype", ["float", "uint8", "int64"])
@pytest.mark.parametrize("lengths", ["", "1,4,2", "0,4,1"])
@pytest.mark.parametrize("batch", [0, 1])
def test_reverse_sequence(dtype: str, lengths: str, batch: int) -> None:
    shape, opset = [3, 4] if batch == 0 else [4, 3], 10 + batch * 8
    given = f", int64[3] l) => ({dtype}{shape} y)"
    given = f") => ({dtype}{shape} y) <int64[3] l = {{{lengths}}}>" if lengths else given
    text = f"g ({dtype}{shape} x{given} {{ y = ReverseSequence<batch_axis={batch},time_axis={1 - batch}>(x, l) }}"
    feeds = {"x": RNG.integers(0, 9, shape).astype("float32" if dtype == "float" else dtype)}
    feeds |= {} if lengths else {"l": np.array([0, 4, 2])}
    assert "ReverseSequence" in lowered(text, feeds=feeds, opset=opset)


def test_reverse_sequence_in_mnn(tmp_path: Path) -> None:
    text = """g (float[3,4] x, uint8[4,3] z, int64[3] l) => (float[3,4] y, uint8[4,3] w) {
        y = ReverseSequence<batch_axis=0,time_axis=1>(x, l)
        w = ReverseSequence<batch_axis=1,time_axis=0>(z, l)
    }"""
    feeds = {"x": RNG.standard_normal((3, 4)).astype(np.float32), "l": np.array([0, 4, 2])}
    feeds["z"] = RNG.integers(0, 255, (4, 3)).astype(np.uint8)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[n,6,4] x, float[n,2,4] u) => (float[n,6,4] y) { y = TensorScatter(x, u) }", "static"),
        ("g (float[2,6] x, float[2,2] u) => (float[2,6] y) { y = TensorScatter<axis=0>(x, u) }", "batch axis"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=24)


def test_known_lengths_stay() -> None:
    text = "g (float[4,3] x) => (float[4,3] y) <int64[3] l = {1,4,2}> { y = ReverseSequence(x, l) }"
    assert_unchanged(LowerForMnn(), text)
