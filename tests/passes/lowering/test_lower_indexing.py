"""Gather and Scatter: signs, depths, reductions; equality in ONNX for many forms, in MNN for one of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, assert_unchanged
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)
REDUCTIONS = ("none", "add", "mul", "max", "min")
CACHE = "g (float[1,2,4,8] x, float[1,4,8] u) => (float[1,2,4,8] y) <int64[1,2] i = {0,1}> { y = ScatterND(x, i, u) }"


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_slabs_of_a_cache_are_rows_of_a_matrix(tmp_path: Path) -> None:
    after = """g (float[1,2,4,8] x, float[1,4,8] u) => (float[1,2,4,8] y)
        <int64[3] m = {-1,4,8}, int64[1,1] r = {1}, int64[4] s = {1,2,4,8}> {
        a = Reshape(x, m)
        b = ScatterND(a, r, u)
        y = Reshape(b, s)
    }"""
    plain = after.replace("int64[3] m = {-1,4,8}", "int64[1] n = {-1}, int64[2] k = {4,8}")
    plain = plain.replace("a = Reshape(x, m)", "m = Concat<axis=0>(n, k)\n a = Reshape(x, m)")
    assert_rewrites(LowerForMnn(), CACHE, plain)
    assert_right_in_mnn(CACHE, tmp_path)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "indices"),
    [
        ((3, 4), [[0, -1], [2, 3], [0, 3]]),
        ((3, 4, 2), [[0, 1], [-1, -2], [0, 1]]),
        ((3, 4), [[[0], [-1]], [[0], [1]]]),
        ((5,), [[0], [-1], [0]]),
        ((2, 3, 2, 2), [[[1, 2, -1]], [[0, -3, 0]]]),
    ],
)
def test_scatternd_of_all_depths(reduction: str, shape: tuple[int, ...], indices: Any) -> None:
    where = np.array(indices, np.int64)
    if reduction == "none":  # the order of writes to one place is not defined
        where = where[:1]
    updates = where.shape[:-1] + shape[where.shape[-1] :]
    text = f"""g (float{list(shape)} x, int64{list(where.shape)} i, float{list(updates)} u) => (float{list(shape)} y)
        {{ y = ScatterND<reduction="{reduction}">(x, i, u) }}"""
    lowered(text, feeds={"x": floats(*shape), "i": where, "u": floats(*updates)})


@pytest.mark.parametrize("dtype", ["float16", "int64", "int32"])
def test_scatternd_keeps_the_element_type(dtype: str) -> None:
    text = f"""g ({dtype}[3,4] x, {dtype}[2,4] u) => ({dtype}[3,4] y) <int64[2,1] i = {{0,-1}}>
        {{ y = ScatterND(x, i, u) }}"""
    assert "ScatterND" in lowered(text)


def test_scatternd_of_dynamic_dims(tmp_path: Path) -> None:
    text = "g (float[b,h,s,4] x, int64[k,2] i, float[k,s,4] u) => (float[b,h,s,4] y) { y = ScatterND(x, i, u) }"
    feeds = {"x": floats(2, 3, 5, 4), "i": np.array([[0, 1], [1, -1], [1, 0]]), "u": floats(3, 5, 4)}
    lowered(text, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_scatter_elements_with_a_reduction(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    small = [data.draw(st.integers(1, dim)) for dim in shape]
    small[axis] = data.draw(st.integers(1, 5))
    reduction = data.draw(st.sampled_from(REDUCTIONS[1:]))
    indices = RNG.integers(-shape[axis], shape[axis], small)
    text = f"""g (float{shape} x, int64{small} i, float{small} u) => (float{shape} y)
        {{ y = ScatterElements<axis={axis},reduction="{reduction}">(x, i, u) }}"""
    lowered(text, feeds={"x": floats(*shape), "i": indices, "u": floats(*small)})


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_scatter_elements_takes_both_index_types(dtype: str) -> None:
    text = f"""g (float[2,3] x, {dtype}[2,2] i, float[2,2] u) => (float[2,3] y)
        {{ y = ScatterElements<axis=1>(x, i, u) }}"""
    feeds = {"x": floats(2, 3), "i": np.array([[0, -1], [1, -3]], dtype), "u": floats(2, 2)}
    assert "Where" in lowered(text, feeds=feeds)


def test_old_scatter() -> None:
    text = "g (float[2,3] x, int64[2,2] i, float[2,2] u) => (float[2,3] y) { y = Scatter<axis=1>(x, i, u) }"
    feeds = {"x": floats(2, 3), "i": np.array([[0, -1], [1, -3]]), "u": floats(2, 2)}
    assert lowered(text, opset=10, feeds=feeds)[-1] == "Scatter"


@pytest.mark.parametrize(
    ("op", "shape", "indices", "result"),
    [
        ("GatherElements<axis=1>", (2, 3), [[0, -1], [-3, 2]], (2, 2)),
        ("GatherElements<axis=-2>", (3, 2), [[0, -1]], (1, 2)),
        ("GatherND", (3, 4, 2), [[0, -1], [-3, 2]], (2, 2)),
        ("GatherND<batch_dims=1>", (2, 3, 4), [[1, 2], [0, -1]], (2,)),
        ("GatherND<batch_dims=1>", (2, 3, 4), [[1], [-1]], (2, 4)),
        ("GatherND<batch_dims=2>", (2, 2, 3), [[[1], [-1]], [[0], [2]]], (2, 2)),
    ],
)
def test_gathers_with_negative_indices(op: str, shape: Any, indices: Any, result: Any) -> None:
    where = np.array(indices, np.int64)
    text = f"""g (float{list(shape)} x, int64{list(where.shape)} i) => (float{list(result)} y) {{ y = {op}(x, i) }}"""
    lowered(text, feeds={"x": floats(*shape), "i": where})


def test_gathers_in_mnn(tmp_path: Path) -> None:
    text = """g (float[n,m] x, int64[n,k] i, int64[k,2] j, float[2,3,4] z, int64[2,2] b)
        => (float[n,k] y, float[k] w, float[2] v) {
        y = GatherElements<axis=1>(x, i)
        w = GatherND(x, j)
        v = GatherND<batch_dims=1>(z, b)
    }"""
    feeds = {"x": floats(2, 3), "i": np.array([[0, -1], [-3, 2]]), "j": np.array([[0, -1], [-2, 1]])}
    feeds |= {"z": floats(2, 3, 4), "b": np.array([[1, -2], [-1, 0]])}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize("reduction", REDUCTIONS[1:])
def test_reductions_in_mnn(reduction: str, tmp_path: Path) -> None:
    text = f"""g (float[3,4] x, int64[3,1] i, float[3,4] u, int64[2,5] j, float[2,5] v)
        => (float[3,4] y, float[3,4] z) {{
        y = ScatterND<reduction="{reduction}">(x, i, u)
        z = ScatterElements<axis=1,reduction="{reduction}">(x, j, v)
    }}"""
    feeds = {"x": floats(3, 4), "i": np.array([[0], [-1], [0]]), "u": floats(3, 4)}
    feeds |= {"j": RNG.integers(-4, 4, (2, 5)), "v": floats(2, 5)}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3,4] x) => (float[2,4] y) <int64[2,4] i = {0,1,2,0,1,1,1,1}> { y = GatherElements(x, i) }",
        "g (float[3,4] x) => (float[3,1] y) { i = ArgMax<axis=1>(x)\n y = GatherElements<axis=1>(x, i) }",
        "g (float[3,4] x, float[1,4] u) => (float[3,4] y) <int64[1,1] i = {2}> { y = ScatterND(x, i, u) }",
        """g (float[3,4] x) => (float[n] y) { i = NonZero(x)
            j = Transpose<perm=[1,0]>(i)
            y = GatherND(x, j) }""",
    ],
)
def test_indices_that_are_never_negative_stay(text: str) -> None:
    assert_unchanged(LowerForMnn(), text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float x, int64[a,b] i) => (float[k] y) { y = GatherND(x, i) }", "depth"),
        ("g (float[n,4] x, int64[k,4] i, float[k,4] u) => (float[n,4] y)"
         ' { y = ScatterElements<reduction="add">(x, i, u) }', "static"),
        ("g (float[n,4] x, int64[k,1] i, float[k,4] u) => (float[n,4] y)"
         ' { y = ScatterND<reduction="add">(x, i, u) }', "static"),
        ("g (float[n,4] x, int64[n,1] i) => (float[n] y) { y = GatherND<batch_dims=1>(x, i) }", "batch_dims"),
        ("g (float[9000,9000] x, int64[9000,1] i, float[9000,9000] u) => (float[9000,9000] y)"
         ' { y = ScatterND<reduction="add">(x, i, u) }', "too large"),
        ("g (float[9000,9000] x, int64[9000,9000] i, float[9000,9000] u) => (float[9000,9000] y)"
         ' { y = ScatterElements<reduction="add">(x, i, u) }', "memory"),
    ],
)  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason)


def test_axis_is_the_first_attribute_of_scatter_elements(tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (float[a,b] y) <int64[2,2] at = {0,2,1,3}, float[2,2] new = {5,6,7,8}>
        { y = ScatterElements<reduction="none",axis=1>(x, at, new) }"""
    after = text.replace('reduction="none",', "")
    assert_rewrites(LowerForMnn(), text, after, inputs={"x": np.zeros((2, 4), np.float32)})
    assert_right_in_mnn(text, tmp_path, feeds={"x": np.zeros((2, 4), np.float32)})
