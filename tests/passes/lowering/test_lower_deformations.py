"""DeformConv and Col2Im: equality with ONNX's reference and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

RNG = np.random.default_rng(0)


def deformed(x: tuple[int, ...], w: tuple[int, ...], result: tuple[int, int], attrs: str = "", more: str = "") -> str:
    groups, taps = 2 if "offset_group=2" in attrs else 1, w[2] * w[3]
    size = f"{result[0]},{result[1]}"
    ins = f"float{list(x)} x, float{list(w)} w, float[{x[0]},{groups * 2 * taps},{size}] o"
    ins += f", float[{w[0]}] b" if "b" in more else ""
    ins += f", float[{x[0]},{groups * taps},{size}] m" if "m" in more else ""
    call = "x, w, o" + (", b" if "b" in more else ", " if "m" in more else "") + (", m" if "m" in more else "")
    return f"""g ({ins}) => (float[{x[0]},{w[0]},{size}] y)
        {{ y = DeformConv<kernel_shape=[{w[2]},{w[3]}]{attrs}>({call}) }}"""


CASES = [
    deformed((1, 1, 3, 3), (1, 1, 2, 2), (4, 4), ",pads=[1,1,1,1]"),
    deformed((2, 2, 5, 4), (3, 2, 2, 2), (4, 3), "", "bm"),
    deformed((2, 2, 5, 4), (3, 2, 2, 2), (4, 3), "", "m"),
    deformed(
        (1, 4, 7, 8), (4, 2, 3, 2), (3, 6), ",offset_group=2,group=2,strides=[2,1],dilations=[2,2],pads=[1,0,1,0]"
    ),
    deformed((1, 1, 5, 1), (1, 1, 2, 2), (6, 2), ",pads=[1,1,1,1]"),
]


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("opset", [19, 22])
def test_deform_conv(text: str, opset: int) -> None:
    assert "DeformConv" not in lowered(text, opset=opset)


@pytest.mark.parametrize("text", CASES[1:4:2])
def test_deform_conv_in_mnn(text: str, tmp_path: Path) -> None:
    assert_right_in_mnn(text, tmp_path, opset=19)


def col2im(x: str, image: str, block: str, attrs: str = "", dtype: str = "float") -> str:
    names = ",".join("abcde"[: image.count(",") + 3])
    count = image.count(",") + 1
    return f"""g ({dtype}[{x}] x) => ({dtype}[{names}] y)
        <int64[{count}] i = {{{image}}}, int64[{count}] b = {{{block}}}>
        {{ y = Col2Im{attrs}(x, i, b) }}"""


@pytest.mark.parametrize(
    "text",
    [
        col2im("1,5,5", "5,5", "1,5"),
        col2im("1,9,4", "5,5", "3,3", "<strides=[2,2]>"),
        col2im("1,5,15", "5,5", "1,5", "<pads=[0,1,0,1]>"),
        col2im("1,4,5", "6,6", "2,2", "<dilations=[1,5]>"),
        col2im("2,12,9", "6,5", "2,2", "<strides=[2,2],pads=[0,0,0,1]>"),
        col2im("1,10,12", "3,4,5", "1,1,5"),
        col2im("2,6,4", "6", "3"),
        col2im("1,5,5", "5,5", "1,5", dtype="float16"),
    ],
)
def test_col2im(text: str) -> None:
    assert "ConvTranspose" in lowered(text, standard=True)


@pytest.mark.parametrize(
    "text", [col2im("2,12,9", "6,5", "2,2", "<strides=[2,2],pads=[0,0,0,1]>"), col2im("1,10,12", "3,4,5", "1,1,5")]
)
def test_col2im_in_mnn(text: str, tmp_path: Path) -> None:
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CASES[0].replace("float[1, 1, 3, 3] x", "float[n,1,3,3] x"), "static"),
        (CASES[0].replace("float", "double"), "float32"),
        (col2im("1,n,5", "5,5", "1,5"), "static"),
        (col2im("1,16,8", "4,4,4", "2,2,2", "<dilations=[2,2,2]>"), "differ on dilations"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=19)


def test_col2im_of_a_batch_that_is_not_known(tmp_path: Path) -> None:
    text = col2im("n,12,9", "6,5", "2,2", "<strides=[2,2],pads=[0,0,0,1]>")
    assert "ConvTranspose" in lowered(text, standard=True)
    assert_right_in_mnn(text, tmp_path)
