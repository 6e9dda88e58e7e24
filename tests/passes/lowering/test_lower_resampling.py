"""Resize and Upsample: all modes in ONNX, what the axes become, and MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, assert_unchanged, parse
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)
TRANSFORMATIONS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
CROP = 'coordinate_transformation_mode="tf_crop_and_resize",extrapolation_value=10.0'


def resize(attrs: str, *, shape: str = "1,2,4,5", scales: str = "", sizes: str = "", roi: str = "") -> str:
    names = ",".join("abcde"[: shape.count(",") + 1])
    values = []
    for name, kind, given_ in (("r", "float", roi), ("s", "float", scales), ("z", "int64", sizes)):
        values += [f"{kind}[{given_.count(',') + 1}] {name} = {{{given_}}}"] if given_ else []
    call = f"x, {'r' if roi else ''}, {'s' if scales else ''}" + (", z" if sizes else "")
    return f"g (float[{shape}] x) => (float[{names}] y) <{', '.join(values)}> {{ y = Resize<{attrs}>({call}) }}"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_modes(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    transformation = data.draw(st.sampled_from(TRANSFORMATIONS))
    attrs = f'mode="{mode}",coordinate_transformation_mode="{transformation}"'
    attrs += f',nearest_mode="{data.draw(st.sampled_from(NEAREST))}"'
    if mode == "cubic":
        attrs += f",cubic_coeff_a={data.draw(st.sampled_from([-0.75, -0.5]))}"
        attrs += f",exclude_outside={data.draw(st.integers(0, 1))}"
    if mode != "nearest" and transformation == "half_pixel":
        attrs += f",antialias={data.draw(st.integers(0, 1))}"
    shape = [1, 1, data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9))]
    sizes = [1, 1, data.draw(st.integers(1, 13)), data.draw(st.integers(1, 13))]
    text = resize(attrs, shape=",".join(map(str, shape)), sizes=",".join(map(str, sizes)))
    lowered(text, opset=19, feeds={"x": RNG.standard_normal(shape).astype(np.float32)})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", ["1,1,2,2", "1,1,0.6,0.7", "1,1,1.5,3"])
def test_scales(mode: str, scales: str) -> None:
    text = resize(f'mode="{mode}",nearest_mode="ceil"', scales=scales)
    lowered(text, feeds={"x": RNG.standard_normal((1, 2, 4, 5)).astype(np.float32)})


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", ["7,8", "1,3"])
def test_policies_and_named_axes(policy: str, sizes: str) -> None:
    attrs = f'mode="nearest",axes=[3,2],keep_aspect_ratio_policy="{policy}"'
    lowered(resize(attrs, sizes=sizes))


def test_regions_of_interest(tmp_path: Path) -> None:
    text = resize(f'mode="linear",{CROP}', sizes="1,2,3,3", roi="0,0,0.6,0.4,1,1,0.8,1.2")
    assert "Where" in lowered(text)
    assert "Resize" not in lowered(resize(f'mode="linear",axes=[3,2],{CROP}', sizes="3,7", roi="0,0.1,0.5,0.4"))
    assert "Where" in lowered(resize(f'mode="nearest",{CROP}', sizes="1,2,7,3", roi="0,0,-0.3,0.4,1,1,0.8,0.7"))
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int8"])
def test_nearest_of_integers(dtype: str) -> None:
    text = resize('mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor"', scales="1,1,2,2")
    assert lowered(text.replace("(float[", f"({dtype}[")) == ["Gather", "Gather"]


def test_half_precision_mixes_in_float32() -> None:
    text = resize('mode="cubic"', scales="1,1,2,2").replace("(float[", "(float16[")
    after = optimize(parse(text), "lower-for-mnn", verify="none").model.proto.graph
    assert (after.node[0].op_type, after.node[-1].op_type) == ("Cast", "Cast")


@pytest.mark.parametrize(
    ("shape", "sizes"), [("4", "7"), ("4,5", "8,3"), ("1,2,3,4,5", "1,2,6,8,3"), ("1,2,4,5", "2,3,7,5")]
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_ranks(shape: str, sizes: str, mode: str) -> None:
    assert "Resize" not in lowered(resize(f'mode="{mode}"', shape=shape, sizes=sizes), standard=mode == "linear")


def test_nearest_is_one_gather_for_each_axis() -> None:
    text = resize('mode="nearest",nearest_mode="ceil",coordinate_transformation_mode="asymmetric"', scales="1,1,2,1")
    after = """g (float[1,2,4,5] x) => (float[a,b,c,d] y) <int64[8] p = {0,1,1,2,2,3,3,3}> {
        y = Gather<axis=2>(x, p)
    }"""
    assert_rewrites(LowerForMnn(), text, after)


@pytest.mark.parametrize(
    "text",
    [
        resize('mode="cubic"', scales="1,1,2,0.6"),
        resize('mode="cubic",antialias=1', shape="1,2,9,8", sizes="1,2,3,4"),
        resize('mode="linear"', shape="1,2,3,4,5", sizes="1,2,6,8,3"),
        resize('mode="nearest",nearest_mode="floor"', sizes="1,2,7,3"),
    ],
)
def test_in_mnn(text: str, tmp_path: Path) -> None:
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", ["1,1,2,3", "1,1,1.5,1.7"])
@pytest.mark.parametrize("op", ["Upsample", "Resize"])
def test_old_forms(mode: str, scales: str, op: str) -> None:
    text = f"""g (float[1,2,4,5] x) => (float[a,b,c,d] y) <float[4] s = {{{scales}}}>
        {{ y = {op}<mode="{mode}">(x, s) }}"""
    feeds = {"x": RNG.standard_normal((1, 2, 4, 5)).astype(np.float32)}
    ops = lowered(text, opset=9 if op == "Upsample" else 10, feeds=feeds)
    assert (ops == [op]) == (mode == "nearest" and "." not in scales)


@pytest.mark.parametrize("old", ["Upsample", "Resize"])
def test_old_linear_in_mnn(old: str, tmp_path: Path) -> None:
    text = f"""g (float[1,2,4,5] x) => (float[a,b,c,d] y) <float[4] s = {{1,1,2,3}}>
        {{ y = {old}<mode="linear">(x, s) }}"""
    assert_right_in_mnn(text, tmp_path, opset=9 if old == "Upsample" else 10)


def test_named_axes_of_dynamic_sizes(tmp_path: Path) -> None:
    modes = 'mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor"'
    text = resize(f"{modes},axes=[3,2]", shape="n,2,h,w", scales="3,2")
    assert_rewrites(LowerForMnn(), text, resize(modes, shape="n,2,h,w", scales="1,1,2,3"))
    assert_right_in_mnn(text, tmp_path)
    lowered(resize(f"{modes},axes=[3,2]", shape="n,2,h,w", sizes="9,8"))


@pytest.mark.parametrize(
    "text",
    [
        resize('mode="linear"', shape="n,2,h,w", scales="1,1,2,2"),
        resize('mode="linear",coordinate_transformation_mode="align_corners"', sizes="1,2,9,3"),
        resize('mode="nearest"', scales="1,1,1.5,2"),
        resize('mode="linear",coordinate_transformation_mode="asymmetric"', shape="n,2,h", sizes="2,2,9"),
    ],
)
def test_what_mnn_runs_right_stays(text: str) -> None:
    assert_unchanged(LowerForMnn(), text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (resize('mode="linear",coordinate_transformation_mode="align_corners"', scales="1,1,0.6,0.6"), "aligned"),
        (resize('mode="linear",exclude_outside=1', scales="1,1,2,2").replace("float[1,2", "uint8[1,2"), "not float"),
        (resize('mode="nearest",nearest_mode="floor",coordinate_transformation_mode="half_pixel_symmetric"',
                shape="1,1,1,5", sizes="1,1,1,3"), "whole number"),
        (resize(f'mode="linear",axes=[3,2],{CROP}', sizes="3,4", roi="0.4,0.6,1.2,0.8"), "whose size stays"),
        (resize('mode="cubic",antialias=1', shape="n,2,h,w", scales="1,1,2,2"), "computed"),
        (resize('mode="nearest",axes=[2],keep_aspect_ratio_policy="not_larger"', shape="n,2,h,w", sizes="9"), "policy"),
        ('g (float[1,1,4,6] x, float[4] s) => (float[a,b,c,d] y)'
         ' { y = Resize<mode="linear",coordinate_transformation_mode="align_corners">(x,,s) }', "aligned"),
    ],
)  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text.replace("(float[a", "(uint8[a") if "uint8" in text else text, refuses=reason,
                     opset=19)  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS[:4])
@pytest.mark.parametrize("kind", NEAREST[1:])
def test_dynamic_sizes(mode: str, transformation: str, kind: str) -> None:
    attrs = f'mode="{mode}",coordinate_transformation_mode="{transformation}",nearest_mode="{kind}"'
    attrs += f",exclude_outside={int(mode == 'cubic' and kind == 'ceil')}"
    feeds = {"x": RNG.standard_normal((2, 2, 4, 6)).astype(np.float32)}
    lowered(resize(attrs, shape="n,2,h,w", scales="1,1,2,1.5"), feeds=feeds)
    like = f"""g (float[n,2,h,w] x, float[n,2,k,l] z) => (float[n,2,k,l] y) {{
        s = Shape(z)
        y = Resize<{attrs}>(x, , , s)
    }}"""
    for size in ((7, 3), (1, 1)):
        lowered(like, feeds=feeds | {"z": np.zeros((2, 2, *size), np.float32)})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_and_regions_that_are_inputs(mode: str, tmp_path: Path) -> None:
    text = f"""g (float[2,1,4,6] x, float[4] s) => (float[a,b,c,d] y) {{ y = Resize<mode="{mode}">(x, , s) }}"""
    feeds = {"x": RNG.standard_normal((2, 1, 4, 6)).astype(np.float32), "s": np.array([1, 1, 2, 0.5], np.float32)}
    assert "Resize" not in lowered(text, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds)
    text = f"""g (float[2,1,4,6] x, float[8] r) => (float[2,1,3,4] y) <int64[4] z = {{2,1,3,4}}>
        {{ y = Resize<mode="{mode}",{CROP}>(x, r, , z) }}"""
    feeds = {"x": feeds["x"], "r": np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], np.float32)}
    lowered(text, feeds=feeds)


@pytest.mark.parametrize("op", ["Upsample", "Resize"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_scales_that_are_inputs(op: str, mode: str, tmp_path: Path) -> None:
    text = f"""g (float[1,2,4,6] x, float[4] s) => (float[a,b,c,d] y) {{ y = {op}<mode="{mode}">(x, s) }}"""
    feeds = {"x": RNG.standard_normal((1, 2, 4, 6)).astype(np.float32)}
    feeds["s"] = np.array([1, 1, 2, 1.5 if op == "Upsample" else 0.4], np.float32)
    assert op not in lowered(text, opset=9 if op == "Upsample" else 10, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, opset=9 if op == "Upsample" else 10, feeds=feeds)


def test_symmetric_scales_that_are_inputs(tmp_path: Path) -> None:
    mode = 'coordinate_transformation_mode="half_pixel_symmetric"'
    text = f"""g (float[1,2,4,6] x, float[4] s) => (float[a,b,c,d] y) {{ y = Resize<mode="linear",{mode}>(x, , s) }}"""
    feeds = {"x": RNG.standard_normal((1, 2, 4, 6)).astype(np.float32), "s": np.array([1, 1, 2.3, 0.6], np.float32)}
    lowered(text, opset=19, feeds=feeds)
    assert_right_in_mnn(text, tmp_path, opset=19, feeds=feeds)
    assert_unchanged(LowerForMnn(), text.replace("linear", "nearest"), refuses="whole number", opset=19)


@pytest.mark.parametrize("to", [{"scales": "1,1,2"}, {"sizes": "3,2,9"}])
def test_one_dim_at_half_pixels_is_one_of_two(to: dict[str, str], tmp_path: Path) -> None:
    text = resize('mode="linear"', shape="3,2,h", **to)
    assert lowered(text) == ["Unsqueeze", "Resize", "Squeeze"]
    assert_right_in_mnn(text, tmp_path)


def test_one_dim_at_half_pixels_with_a_computed_size() -> None:
    text = """g (float[2,3,h] x, float[w] z) => (float[a,b,c] y) <int64[2] front = {2,3}> {
        width = Shape(z)
        s = Concat<axis=0>(front, width)
        y = Resize<mode="linear">(x, , , s)
    }"""
    assert "Unsqueeze" in lowered(text)


def test_antialias_of_a_batch_that_is_not_known(tmp_path: Path) -> None:
    text = """g (float[n,2,8,6] x) => (float[a,b,c,d] y) <int64[1] first = {0}, int64[3] size = {2,5,3}> {
        shape = Shape(x)
        batch = Gather(shape, first)
        s = Concat<axis=0>(batch, size)
        y = Resize<mode="linear",antialias=1>(x, , , s)
    }"""
    assert "Resize" not in lowered(text)
    assert_right_in_mnn(text, tmp_path)
