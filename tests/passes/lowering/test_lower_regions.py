"""RoiAlign in the max mode: equality with onnxruntime and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphkit
from graphkit.mnn import worker
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, parse, run
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.standard_normal((2, 3, 10, 12)).astype(np.float32),
    "r": np.array([[0, 0, 8, 9], [3, 4, 15, 19], [-2, -3, 30, 22]], np.float32),
    "b": np.array([0, 1, 1]),
}


def roi_align(more: str = "", *, ratio: int = 2, mode: str = "max", shape: str = "2,3,10,12") -> str:
    attrs = f'mode="{mode}",output_height=3,output_width=4,sampling_ratio={ratio},spatial_scale=0.5{more}'
    return f"""g (float[{shape}] x, float[3,4] r, int64[3] b) => (float[3,3,3,4] y)
        {{ y = RoiAlign<{attrs}>(x, r, b) }}"""


@pytest.mark.parametrize("kind", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_max(kind: str, ratio: int) -> None:
    text = roi_align(f',coordinate_transformation_mode="{kind}"', ratio=ratio)
    assert "RoiAlign" not in lowered(text, opset=16, feeds=FEEDS)


def test_opset_10_has_no_half_pixels() -> None:
    lowered(roi_align(), opset=11, feeds=FEEDS)


def test_max_in_mnn(tmp_path: Path) -> None:
    assert_right_in_mnn(roi_align(), tmp_path, opset=16, feeds=FEEDS)


def test_mean_stays() -> None:
    assert_unchanged(LowerForMnn(), roi_align(mode="avg"))


@pytest.mark.parametrize(
    ("text", "reason"), [(roi_align(ratio=0), "sampling_ratio"), (roi_align(shape="2,3,h,w"), "static")]
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=16)


@pytest.mark.parametrize("ratio", [0, 2])
def test_mean_of_old_operator_sets_in_mnn(ratio: int, tmp_path: Path) -> None:
    text = f"""g (float[1, 2, 6, 7] x, float[2, 4] r, int64[2] i) => (float[2, 2, 2, 3] y)
        {{ y = RoiAlign<output_height = 2, output_width = 3, sampling_ratio = {ratio}>(x, r, i) }}"""
    model = parse(text, opset=13)
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 7)).astype(np.float32)
    feeds = {"x": x, "r": np.array([[0, 0, 3, 3], [1, 1, 1.2, 1.2]], np.float32), "i": np.zeros(2, np.int64)}
    graphkit.convert(model, tmp_path / "m.mnn", inputs=[feeds])
    got = worker.run(tmp_path / "m.mnn", feeds, ["y"]).outputs["y"]
    np.testing.assert_allclose(got, run(model, feeds)["y"], atol=1e-4)


def test_boxes_by_their_centers(tmp_path: Path) -> None:
    text = """g (float[1,12,4] b, float[1,1,12] s) => (int64[K,3] y)
        <int64 m = {9}, float u = {0.2}, float t = {0.1}> {
            y = NonMaxSuppression<center_point_box = 1>(b, s, m, u, t) }"""
    feeds = {name: RNG.uniform(0, 1, shape).astype(np.float32) for name, shape in BOXES.items()}
    assert lowered(text, feeds=feeds) == ["MatMul", "NonMaxSuppression"]
    as_corners = parse(text.replace("center_point_box = 1", "center_point_box = 0"))
    assert not np.array_equal(run(as_corners, feeds)["y"], run(parse(text), feeds)["y"])
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


BOXES = {"b": (1, 12, 4), "s": (1, 1, 12)}
