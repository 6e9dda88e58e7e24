"""Convolutions: paddings, dilations, computed weights; equality in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, parse
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)


def conv(op: str, x: str, w: str, attrs: str = "", *, fixed: bool = False, bias: int = 0) -> str:
    """A convolution of x with weights that are a graph input, or constants (`fixed`)."""
    names = ",".join("abcde"[: x.count(",") + 1])
    shape = [int(dim) for dim in w.split(",")]
    numbers = ",".join(f"{value:.3f}" for value in RNG.standard_normal(int(np.prod(shape))))
    ins = f"float[{x}] x" + ("" if fixed else f", float[{w}] w") + (f", float[{bias}] b" if bias else "")
    init = f"<float[{w}] w = {{{numbers}}}>" if fixed else ""
    call = f"{op}<{attrs}>" if attrs else op
    return f"g ({ins}) => (float[{names}] y) {init} {{ y = {call}(x, w{', b' if bias else ''}) }}"


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", ["3,2", "4,5"])
def test_same_lower_of_dynamic_sizes(stride: int, kernel: str) -> None:
    text = conv("Conv", "n,2,h,w", f"3,2,{kernel}", f'auto_pad="SAME_LOWER",strides=[{stride},{stride}]', fixed=True)
    for size in ((6, 7), (5, 9)):
        feeds = {"x": RNG.standard_normal((2, 2, *size)).astype(np.float32)}
        assert lowered(text, feeds=feeds)[-2:] == ["Pad", "Conv"]


def test_same_lower_in_mnn(tmp_path: Path) -> None:
    text = conv("Conv", "n,2,h", "3,2,4", 'auto_pad="SAME_LOWER",strides=[2]', fixed=True)
    assert_right_in_mnn(text, tmp_path, feeds={"x": RNG.standard_normal((2, 2, 7)).astype(np.float32)})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_dilations_in_three_dims(op: str, tmp_path: Path) -> None:
    text = conv(op, "1,2,5,6,7", "2,2,2,3,2", "dilations=[2,1,3],strides=[1,2,1]", fixed=True)
    assert lowered(text) == [op]
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("bias", [0, 4])
@pytest.mark.parametrize(
    "attrs",
    ["", "pads=[1,0,1,0,1,2],strides=[2,1,2],dilations=[1,2,1]", "group=2,pads=[1,1,1,1,1,1]", 'auto_pad="VALID"'],
)
def test_computed_weights_in_three_dims(attrs: str, bias: int) -> None:
    text = conv("Conv", "2,4,5,6,7", "4,2,3,3,3" if "group" in attrs else "4,4,3,3,3", attrs, bias=bias)
    assert lowered(text).count("Conv") == 3


def test_computed_weights_at_opset_6() -> None:
    text = conv("Conv", "2,1,4,4,4", "2,1,2,2,2", "pads=[1,0,0,1,0,0],kernel_shape=[2,2,2]", bias=2)
    assert "Sum" in lowered(text, opset=6)


@pytest.mark.parametrize(
    "attrs", ["", "strides=[2,2,1],pads=[1,1,1,1,0,1],output_padding=[1,0,0]", "dilations=[2,1,1]"]
)
@pytest.mark.parametrize("bias", [0, 3])
def test_computed_weights_of_a_transposed_convolution(attrs: str, bias: int) -> None:
    assert "ConvTranspose" not in lowered(conv("ConvTranspose", "1,2,3,4,5", "2,3,2,3,3", attrs, bias=bias))


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_computed_weights_in_mnn(op: str, tmp_path: Path) -> None:
    assert_right_in_mnn(conv(op, "2,2,3,4,5", "2,2,2,3,2", "strides=[2,1,1]"), tmp_path)


@pytest.mark.parametrize("bias", [0, 6])
def test_groups_of_computed_weights(bias: int, tmp_path: Path) -> None:
    text = conv("ConvTranspose", "1,4,4,5", "4,3,3,3", "strides=[2,2],group=2", bias=bias)
    assert "Split" in lowered(text)
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    "attrs",
    [
        "strides=[3,2],output_shape=[10,8]",
        "strides=[3,2],output_shape=[10,8],output_padding=[1,1]",
        "strides=[3,3],output_shape=[11,8]",
        'strides=[3,2],output_shape=[8,6],auto_pad="SAME_LOWER"',
        'strides=[3,2],output_shape=[8,6],auto_pad="SAME_UPPER"',
        'strides=[2,2],auto_pad="SAME_UPPER"',
        'strides=[2,2],auto_pad="SAME_LOWER"',
        "strides=[1,1],output_shape=[4,4],dilations=[2,1]",
    ],
)
def test_pads_are_written_out(attrs: str) -> None:
    lowered(conv("ConvTranspose", "1,2,3,3", "2,3,3,3", attrs, fixed=True))


def test_output_shape_in_mnn(tmp_path: Path) -> None:
    text = conv("ConvTranspose", "1,2,3,3", "2,3,3,3", "strides=[3,2],output_shape=[10,8]", fixed=True)
    after = text.replace("output_shape=[10,8]", "pads=[0,0,0,0],output_padding=[1,1]")
    assert_rewrites(LowerForMnn(), text, after)
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (conv("ConvTranspose", "1,2,h,3", "2,3,3,3", "output_shape=[10,8]", fixed=True), "axis 2"),
        (conv("ConvTranspose", "1,2,d,3,4", "2,3,3,3,3"), "static shapes"),
        (conv("Conv", "n,2,4,3,4", "2,2,3,3,3"), "static shapes"),
        (conv("ConvTranspose", "1,2,3,3,4", "2,3,1,3,3", "pads=[1,0,0,0,0,0]"), "cuts more"),
        ("g (float[1,4,3,3] x, float[c,d,3,3] w) => (float[a,e,f,h] y) { y = ConvTranspose<group=2>(x, w) }", "shape"),
        ('g (float[1,4,3,3] x, float[c,4,k,l] w) => (float[a,e,f,h] y) { y = Conv<auto_pad="SAME_LOWER">(x, w) }',
         "weights"),
        ('g (float[1,4,3,3] x, float[4,c,k,l] w) => (float[a,e,f,h] y) { y = ConvTranspose<auto_pad="SAME_LOWER">(x, w)'
         " }", "weights"),
    ],
)  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason)


@pytest.mark.parametrize(
    "text",
    [
        conv("Conv", "n,2,h,w", "3,2,3,3", "dilations=[2,2]"),
        conv("Conv", "1,2,5,6,7", "3,2,3,3,3", fixed=True),
        conv("ConvTranspose", "1,4,4,5", "4,3,3,3", "group=2", fixed=True),
        conv("ConvTranspose", "1,2,3,4,5", "2,3,2,3,3", fixed=True),
    ],
)
def test_what_mnn_runs_right_stays(text: str) -> None:
    assert_unchanged(LowerForMnn(), text)


def test_same_lower_of_operator_set_11() -> None:
    text = """g (float[1, 1, A, B] x) => (float[1, 2, C, D] y)
        <float[2, 1, 3, 2] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}>
        { y = Conv<auto_pad = "SAME_LOWER", strides = [2, 2]>(x, w) }"""
    model = parse(text, opset=11)
    assert_equal_outputs(model, optimize(model, "lower-for-mnn", verify="none").model)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_computed_bias(op: str, dims: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kernel, sizes = ", ".join(["2"] * dims), ", ".join(["4"] * dims)
    weights = ", ".join(f"{value:.3f}" for value in rng.standard_normal(4 * 2**dims))
    result = ", ".join("ABCDE"[: dims + 2])
    text = f"""g (float[1, 2, {sizes}] x, float[2] b) => (float[{result}] y) <float[2, 2, {kernel}] w = {{{weights}}}>
        {{ y = {op}(x, w, b) }}"""
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("shape", ["n,4,3,4,3", "2,4,3,4,3"])
def test_transposed_in_three_dims_with_bias(group: int, shape: str, tmp_path: Path) -> None:
    text = f"""g (float[{shape}] x) => (float[a,b,c,d,e] y)
        <float[4,{8 // group},2,2,2] w = {{{",".join(f"{i % 7 - 3}" for i in range(256 // group))}}},
        float[8] bias = {{1,2,3,4,5,6,7,8}}> {{ y = ConvTranspose<strides=[2,2,2],group={group}>(x, w, bias) }}"""
    lowered(text)
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("after", ["Relu(c)", "Clip(c, low, high)"])
def test_rectified_output_in_three_dims(after: str, tmp_path: Path) -> None:
    text = f"""g (float[n,2,3,4,3] x) => (float[a,b,c,d,e] y) <float low = {{0}}, float high = {{6}},
        float[1,2,2,2,2] w = {{{",".join(f"{i % 5 - 2}" for i in range(16))}}}> {{ c = Conv(x, w) y = {after} }}"""
    assert lowered(text)[1] == "Max"
    assert_right_in_mnn(text, tmp_path)
