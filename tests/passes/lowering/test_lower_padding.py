"""Pad and CenterCropPad: equality in ONNX for many forms, in MNN for some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.passes.lowering.padding import center_crop_pad
from graphkit.rewrite import Refusal
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

MODES = ("constant", "edge", "reflect", "wrap")


def padded(mode: str, pads: list[int], *, shape: str = "2,4,5", dtype: str = "float", more: str = "") -> str:
    axes = [0, 1, 2] if not more else [1, 2]
    amounts = ",".join(map(str, pads))
    init = f"int64[{len(pads)}] p = {{{amounts}}}" + (f", int64[2] a = {{{axes[0]},{axes[1]}}}" if more else "")
    call = "x, p, , a" if more else "x, p"
    return f'g ({dtype}[{shape}] x) => ({dtype}[a,b,c] y) <{init}> {{ y = Pad<mode="{mode}">({call}) }}'


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "pads", [[0, 1, 2, 0, 2, 1], [0, -1, 2, 0, 2, -1], [0, -1, -2, 0, -1, -1], [0, -2, 0, 0, 0, 0]]
)
def test_amounts_of_both_signs(mode: str, pads: list[int]) -> None:
    ops = lowered(padded(mode, pads), opset=19)
    assert mode != "wrap" or "Pad" not in ops


@pytest.mark.parametrize("mode", MODES)
def test_amounts_for_some_axes(mode: str) -> None:
    lowered(padded(mode, [1, 2, 2, 1], more="axes"), opset=19)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "float16"])
def test_wrap_keeps_the_element_type(dtype: str) -> None:
    assert lowered(padded("wrap", [1, 1, 0, 0, 0, 7], dtype=dtype), opset=19) == ["Gather"] * 3


def test_all_axes_are_named(tmp_path: Path) -> None:
    text = padded("constant", [1, 2, 2, 1], more="axes")
    after = padded("constant", [0, 1, 2, 0, 2, 1])
    assert_rewrites(LowerForMnn(), text, after)
    assert_right_in_mnn(text, tmp_path)


def test_fill_value_of_opset_9(tmp_path: Path) -> None:
    text = "g (float[n,2,3] x) => (float[a,b,c] y) { y = Pad<pads=[0,1,0,0,0,2],value=2.5>(x) }"
    feeds = {"x": np.array([[[1, np.inf, -1], [0, 5, 6]]], np.float32)}
    assert lowered(text, opset=9, feeds=feeds) == ["Pad", "Add"]
    assert_right_in_mnn(text, tmp_path, opset=9)


@pytest.mark.parametrize("mode", MODES)
def test_in_mnn(mode: str, tmp_path: Path) -> None:
    assert_right_in_mnn(padded(mode, [0, -1, 2, 0, 2, -1]), tmp_path, opset=19)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (padded("edge", [0, -1, 2, 0, 2, 1], shape="2,n,5"), "static sizes"),
        ('g (float[2,3] x, int64[4] p) => (float[a,b] y) { y = Pad<mode="wrap">(x, p) }', "computed"),
        ("g (float[2,3] x, int64[2] p) => (float[a,b] y) <int64[1] k = {1}> { y = Pad(x, p, , k) }", "computed"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=19)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[2,n] x) => (float[a,b] y) { y = Pad<pads=[0,1,0,0],value=2.5>(x) }", "padded dims"),
        ("g (float[2,4] x) => (float[a,b] y) { y = Pad<pads=[0,1,0,-1],value=2.5>(x) }", "cuts and fills"),
    ],
)
def test_old_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=9)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_plain_pads_stay(mode: str) -> None:
    assert_unchanged(LowerForMnn(), padded(mode, [0, 1, 2, 0, 2, 1], shape="n,m,5"))


@pytest.mark.parametrize(
    ("wanted", "axes"), [("2,7,4", ""), ("9,2,3", ""), ("2,7", "<axes=[0,1]>"), ("7,2", "<axes=[-1,0]>"), ("5,4,3", "")]
)
def test_center_crop_pad(wanted: str, axes: str) -> None:
    count = wanted.count(",") + 1
    text = f"""g (float[5,4,3] x) => (float[a,b,c] y) <int64[{count}] s = {{{wanted}}}>
        {{ y = CenterCropPad{axes}(x, s) }}"""
    assert "CenterCropPad" not in lowered(text, standard=True)


def test_center_crop_pad_in_mnn(tmp_path: Path) -> None:
    text = "g (float[5,4,3] x) => (float[2,7,4] y) <int64[3] s = {2,7,4}> { y = CenterCropPad(x, s) }"
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[5,4] x, int64[2] s) => (float[a,b] y) { y = CenterCropPad(x, s) }", "computed"),
        ("g (float[n,4] x) => (float[2,2] y) <int64[2] s = {2,2}> { y = CenterCropPad(x, s) }", "axis 0"),
    ],
)
def test_open_sizes_are_left_to_the_body_of_the_standard(text: str, reason: str, tmp_path: Path) -> None:
    graph = graph_of(text)
    refused = center_crop_pad.match(graph, next(iter(graph.nodes)))
    assert isinstance(refused, Refusal)
    assert reason in refused.reason
    feeds = {"x": np.arange(20, dtype=np.float32).reshape(5, 4)}
    feeds |= {"s": np.array([2, 7])} if "computed" in reason else {}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


@pytest.mark.parametrize("pads", [[0, 1, 2, 0, 2, 1], [0, 4, 0, 0, 7, -1], [0, -1, 2, 0, 5, 1]])
@pytest.mark.parametrize("shape", ["n,4,5", "2,n,5", "n,h,w"])
def test_wrap_of_sizes_that_are_not_known(pads: list[int], shape: str, tmp_path: Path) -> None:
    text = padded("wrap", pads, shape=shape)
    lowered(text, opset=19)
    assert_right_in_mnn(text, tmp_path, opset=19)
