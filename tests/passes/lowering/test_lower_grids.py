"""GridSample and AffineGrid: all modes in ONNX and in MNN."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.passes.lowering.grids import affine_grid
from graphkit.rewrite import Refusal
from graphkit.testing import assert_unchanged, graph_of
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)
FORMS = list(itertools.product(("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)))


def sample(mode: str, padding: str, aligned: int, *, shape: str = "2,3,5,6", grid: str = "2,4,3,2") -> str:
    names = ",".join("abcde"[: shape.count(",") + 1])
    return f"""g (float[{shape}] x, float[{grid}] g) => (float[{names}] y)
        {{ y = GridSample<mode="{mode}",padding_mode="{padding}",align_corners={aligned}>(x, g) }}"""


def feeds(shape: tuple[int, ...], grid: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Grid points beyond the borders and on ties."""
    points = RNG.integers(-14, 14, grid) / 8
    return {"x": RNG.standard_normal(shape).astype(np.float32), "g": points.astype(np.float32)}


@pytest.mark.parametrize(("mode", "padding", "aligned"), FORMS)
def test_two_dims(mode: str, padding: str, aligned: int) -> None:
    ops = lowered(sample(mode, padding, aligned), opset=20, feeds=feeds((2, 3, 5, 6), (2, 4, 3, 2)))
    assert ("GridSample" in ops) == (mode != "cubic")
    assert (ops == ["GridSample"]) == (mode == "linear" and padding != "reflection")


@pytest.mark.parametrize(("mode", "padding", "aligned"), [form for form in FORMS if form[0] != "cubic"])
def test_three_dims(mode: str, padding: str, aligned: int) -> None:
    text = sample(mode, padding, aligned, shape="1,2,3,4,5", grid="1,3,4,2,3")
    lowered(text, opset=20, feeds=feeds((1, 2, 3, 4, 5), (1, 3, 4, 2, 3)))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_old_names(mode: str) -> None:
    lowered(sample(mode, "reflection", 0), opset=16, feeds=feeds((2, 3, 5, 6), (2, 4, 3, 2)))


@pytest.mark.parametrize(
    "form", [("nearest", "zeros", 0), ("nearest", "reflection", 1), ("linear", "reflection", 0), ("cubic", "zeros", 1),
             ("cubic", "border", 0), ("cubic", "reflection", 0)]
)  # fmt: skip
def test_in_mnn(form: tuple[str, str, int], tmp_path: Path) -> None:
    assert_right_in_mnn(sample(*form), tmp_path, opset=20, feeds=feeds((2, 3, 5, 6), (2, 4, 3, 2)))


def test_a_dim_of_one(tmp_path: Path) -> None:
    text = sample("nearest", "zeros", 1, shape="1,2,5,1", grid="1,4,3,2")
    assert_right_in_mnn(text, tmp_path, opset=20, feeds=feeds((1, 2, 5, 1), (1, 4, 3, 2)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (sample("nearest", "zeros", 0, shape="1,2,h,w"), "static spatial sizes"),
        (sample("cubic", "zeros", 0, grid="2,h,w,2"), "cubic needs"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=20)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("sizes", ["2,3,4,5", "2,3,3,4,5", "2,3,2,7"])
def test_affine_grid(aligned: int, sizes: str) -> None:
    count = sizes.count(",") + 1
    names = ",".join("abcde"[:count])
    text = f"""g (float[2,{count - 2},{count - 1}] t) => (float[{names}] y) <int64[{count}] s = {{{sizes}}}>
        {{ y = AffineGrid<align_corners={aligned}>(t, s) }}"""
    assert lowered(text, opset=20, standard=True) == ["Transpose", "MatMul", "Reshape"]


def test_affine_grid_in_mnn(tmp_path: Path) -> None:
    text = """g (float[2,2,3] t, float[2,3,5,6] x) => (float[a,b,c,d] y) <int64[4] s = {2,3,4,5}> {
        g = AffineGrid(t, s)
        y = GridSample(x, g)
    }"""
    assert_right_in_mnn(text, tmp_path, opset=20)


def test_an_affine_grid_of_a_single_point_is_left() -> None:
    text = """g (float[2,2,3] t) => (float[2,1,5,2] y) <int64[4] s = {2,3,1,5}>
        { y = AffineGrid<align_corners=1>(t, s) }"""
    assert_unchanged(LowerForMnn(), text, refuses="single point", opset=20)


@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grids_of_computed_sizes(aligned: int) -> None:
    text = f"g (float[2,2,3] t, int64[4] s) => (float[a,b,c,d] y) {{ y = AffineGrid<align_corners={aligned}>(t, s) }}"
    graph = graph_of(text, opset=20)
    outcome = affine_grid.match(graph, next(iter(graph.nodes)))
    assert isinstance(outcome, Refusal)
    assert "computed" in outcome.reason
    assert LowerForMnn().run(graph).modified != bool(aligned)  # the body of the standard divides by size − 1


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_nearest_of_a_constant_grid(padding: str, aligned: int, tmp_path: Path) -> None:
    points = ", ".join(f"{value:.3f}" for value in np.random.default_rng(0).uniform(-1.4, 1.4, 24))
    text = f"""g (float[1, 2, 4, 5] x) => (float[1, 2, 4, 3] y) <float[1, 4, 3, 2] at = {{{points}}}> {{
        y = GridSample<mode = "nearest", padding_mode = "{padding}", align_corners = {aligned}>(x, at) }}"""
    assert_right_in_mnn(text, tmp_path, opset=20)


@pytest.mark.parametrize("opset", [16, 20])
def test_the_mode_left_out_is_that_of_the_operator_set(opset: int, tmp_path: Path) -> None:
    text = """g (float[1, 2, 4, 5] x, float[1, 2, 3, 2] at) => (float[1, 2, 2, 3] y)
        { y = GridSample<padding_mode = "reflection">(x, at) }"""
    assert_right_in_mnn(text, tmp_path, opset=opset)


@pytest.mark.parametrize(
    ("mode", "padding"), [("nearest", "zeros"), ("linear", "reflection"), ("cubic", "zeros"), ("cubic", "reflection")]
)
def test_a_batch_that_is_not_known(mode: str, padding: str, tmp_path: Path) -> None:
    text = sample(mode, padding, 0, shape="n,3,5,6", grid="n,4,3,2")
    lowered(text, opset=20, feeds=feeds((2, 3, 5, 6), (2, 4, 3, 2)))
    assert_right_in_mnn(text, tmp_path, opset=20, feeds=feeds((3, 3, 5, 6), (3, 4, 3, 2)))


def test_affine_grid_of_a_batch_that_is_not_known(tmp_path: Path) -> None:
    text = """g (float[n,2,3] t, float[n,3,5,6] x) => (float[a,b,c,d] y)
        <int64[3] size = {3,5,6}, int64[1] first = {0}> {
        shape = Shape(x)
        batch = Gather(shape, first)
        s = Concat<axis=0>(batch, size)
        g = AffineGrid(t, s)
        y = GridSample(x, g)
    }"""
    assert_right_in_mnn(text, tmp_path, opset=20)
