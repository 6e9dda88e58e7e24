"""Pools: windows out of slices, positions, norms; equality in ONNX for many forms, in MNN for some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, graph_of
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)


def pool(op: str, attrs: str, shape: str = "1,2,9,8", dtype: str = "float") -> str:
    names = ",".join("abcde"[: shape.count(",") + 1])
    return f"g ({dtype}[{shape}] x) => ({dtype}[{names}] y) {{ y = {op}<{attrs}>(x) }}"


DILATED = "kernel_shape=[2,3],strides=[2,1],dilations=[2,3],pads=[1,2,0,1]"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_windows_of_all_kinds(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(1, 3)) for _ in range(count)]
    pads = [data.draw(st.integers(0, size - 1)) for size in sizes * 2]
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    attrs = {
        "kernel_shape": sizes,
        "strides": [data.draw(st.integers(1, 3)) for _ in range(count)],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(count)],
        "pads": pads,
    }
    if op != "LpPool":  # onnxruntime's LpPool does not round up
        attrs["ceil_mode"] = data.draw(st.integers(0, 1))
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    shape = [1, 2, *(data.draw(st.integers(5, 9)) for _ in range(count))]
    written = ",".join(f"{key}={value}" for key, value in attrs.items())
    lowered(pool(op, written, ",".join(map(str, shape))), opset=19)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_small_integers_with_pads(dtype: str, tmp_path: Path) -> None:
    text = pool("MaxPool", "kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]", dtype=dtype)
    feeds = {
        "x": RNG.integers(-128 if dtype == "int8" else 0, 0 if dtype == "int8" else 255, (1, 2, 9, 8)).astype(dtype)
    }
    lowered(text, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


def test_dynamic_sizes(tmp_path: Path) -> None:
    text = pool("MaxPool", DILATED, "n,2,h,w")
    feeds = {"x": RNG.standard_normal((2, 2, 7, 8)).astype(np.float32)}
    assert "MaxPool" not in lowered(text, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize(
    "text",
    [
        pool("AveragePool", DILATED + ",count_include_pad=1"),
        pool("AveragePool", "kernel_shape=[3,3],strides=[2,2],pads=[1,1,0,1],ceil_mode=1,count_include_pad=1"),
        pool("AveragePool", "kernel_shape=[2,2,2],dilations=[2,2,2],strides=[1,2,1]", "1,2,5,6,7"),
        pool("LpPool", 'kernel_shape=[3,2],strides=[2,1],auto_pad="SAME_UPPER",p=3'),
        pool("LpPool", "kernel_shape=[2,2,2],strides=[2,1,1],p=1", "1,2,6,5,6"),
        pool("GlobalLpPool", "p=4", "1,2,3,4,5"),
    ],
)
def test_sums_in_mnn(text: str, tmp_path: Path) -> None:
    assert_right_in_mnn(text, tmp_path, opset=19)


@pytest.mark.parametrize(
    "attrs",
    [
        "kernel_shape=[3,2],strides=[2,2],pads=[1,0,1,1]",
        "kernel_shape=[3,2],strides=[2,2],pads=[1,0,1,1],storage_order=1",
        "kernel_shape=[2,2],dilations=[2,3],storage_order=1",
        "kernel_shape=[3,3],strides=[2,2],ceil_mode=1",
    ],
)
@pytest.mark.parametrize("dtype", ["float", "int8"])
def test_positions(attrs: str, dtype: str) -> None:
    text = f"""g ({dtype}[2,2,6,7] x) => ({dtype}[a,b,c,d] y, int64[a,b,c,d] i) {{ y, i = MaxPool<{attrs}>(x) }}"""
    feeds = {"x": RNG.integers(-2, 2, (2, 2, 6, 7)).astype(np.float32 if dtype == "float" else np.int8)}
    assert "ArgMax" in lowered(text, feeds=feeds)


def test_positions_and_back_in_mnn(tmp_path: Path) -> None:
    text = """g (float[2,3,4,6] x) => (float[a,b,c,d] y, int64[a,b,e,f] i) {
        p, i = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)
        y = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(p, i)
    }"""
    assert_right_in_mnn(text, tmp_path)
    assert "ScatterND" in lowered(text)


@pytest.mark.parametrize(
    "text",
    [
        pool("MaxPool", "kernel_shape=[2,2,2],strides=[2,1,2],pads=[1,0,0,0,1,1]", "2,3,5,6,7"),
        pool("AveragePool", "kernel_shape=[2,2,2],strides=[2,1,2]", "n,3,d,h,w"),
        pool("AveragePool", "kernel_shape=[3,2,3],pads=[1,0,1,1,0,1]", "2,3,5,6,7"),
        pool("GlobalMaxPool", "", "n,3,d,h,w").replace("<>", ""),
        pool("GlobalAveragePool", "", "2,3,4,2,5").replace("<>", ""),
    ],
)
def test_batches_in_three_dims(text: str, tmp_path: Path) -> None:
    feeds = {"x": RNG.standard_normal((2, 3, 5, 6, 7) if "2,3,4" not in text else (2, 3, 4, 2, 5)).astype(np.float32)}
    lowered(text, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (pool("MaxPool", "kernel_shape=[3,3],dilations=[2,2],ceil_mode=1", "1,2,h,w"), "ceil_mode"),
        (pool("MaxPool", 'kernel_shape=[3,3],dilations=[2,2],auto_pad="SAME_UPPER"', "1,2,h,w"), "auto_pad"),
        (pool("AveragePool", "kernel_shape=[3],dilations=[2],pads=[1,1]", "1,2,n"), "counted by"),
        (pool("AveragePool", 'kernel_shape=[3],auto_pad="SAME_LOWER"', "1,2,n"), "auto_pad"),
        (pool("LpPool", 'kernel_shape=[3],auto_pad="SAME_LOWER"', "1,2,n"), "auto_pad"),
        ("g (float[1,1,h,w] x) => (float[a,b,c,d] y, int64[a,b,c,d] i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }",
         "positions"),
        ("g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,3,3] y) <int64[4] s = {1,1,3,3}>"
         " { y = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(x, i, s) }", "smaller than"),
        ("g (float[1,1,n,2] x, int64[1,1,n,2] i) => (float[a,b,c,d] y)"
         " { y = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(x, i) }", "static"),
    ],
)  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=19)


@pytest.mark.parametrize(
    "text",
    [
        pool("MaxPool", "kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]", "n,2,h,w"),
        pool("AveragePool", "kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1"),
        pool("AveragePool", "kernel_shape=[3,3],strides=[2,2],pads=[1,0,0,1],ceil_mode=1"),
        pool("LpPool", "kernel_shape=[2,2],strides=[2,2],p=2"),
        pool("GlobalLpPool", "p=2"),
    ],
)
def test_what_mnn_runs_right_stays(text: str) -> None:
    assert_unchanged(LowerForMnn(), text)


def test_max_unpool_before_scatternd() -> None:
    text = """g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y)
        { p, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(p, i) }"""
    graph = graph_of(text, opset=10)
    refusals = LowerForMnn().run(graph).refusals
    assert any("takes ScatterND, which operator set 10" in refusal.reason for refusal in refusals)
    graph.check()


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "kernel"), [("1, 2, 9", "3"), ("1, 2, 5, 6", "2, 3"), ("2, 1, 3, 5, 5", "3, 2, 2")])
def test_max_pool_of_bytes(shape: str, kernel: str, kind: str, tmp_path: Path) -> None:
    dims = ", ".join("ABCDE"[: shape.count(",") + 1])
    text = f"g ({kind}[{shape}] x) => ({kind}[{dims}] y) {{ y = MaxPool<kernel_shape = [{kernel}]>(x) }}"
    sizes = [int(size) for size in shape.split(",")]
    low, high = (-128, 0) if kind == "int8" else (0, 256)
    x = np.random.default_rng(0).integers(low, high, sizes).astype(kind)
    assert_right_in_mnn(text, tmp_path, feeds={"x": x})
