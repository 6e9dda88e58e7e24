"""Slice and Split: bounds and parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, assert_unchanged
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

TWO_BACK = """g (float[4,5] x) => (float[4,2] y)
    <int64[2] s = {-1,4}, int64[2] e = {-9,0}, int64[2] a = {0,1}, int64[2] t = {-1,-2}> { y = Slice(x, s, e, a, t) }"""
EARLY = "g (float[4,5] x) => (float[3,5] y) <int64[1] s = {-10}, int64[1] e = {3}, int64[1] a = {0}>"


def test_a_start_before_the_axis_is_its_first_element(tmp_path: Path) -> None:
    text = EARLY + " { y = Slice(x, s, e, a) }"
    assert_rewrites(LowerForMnn(), text, text.replace("{-10}", "{0}"))
    assert_right_in_mnn(text, tmp_path)


def test_backwards_on_two_axes_takes_two_slices(tmp_path: Path) -> None:
    assert lowered(TWO_BACK) == ["Slice", "Slice"]
    assert_right_in_mnn(TWO_BACK, tmp_path)


def test_a_start_before_the_axis_backwards() -> None:
    text = EARLY + " <int64[1] t = {-1}> { y = Slice(x, s, e, a, t) }"
    text = text.replace("> <", ", ").replace("{3}", "{-20}").replace("[3,5] y", "[n,5] y")
    assert lowered(text) == ["Slice"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,5] x) => (float[m,5] y) <int64[1] s = {-10}, int64[1] e = {3}> { y = Slice(x, s, e) }",
        "g (float[4,5] x, int64[1] s) => (float[m,5] y) <int64[1] e = {3}> { y = Slice(x, s, e) }",
        "g (float[4,5] x, int64[1] a) => (float[m,n] y) <int64[1] s = {-9}, int64[1] e={3}> { y = Slice(x, s, e, a) }",
        "g (float[4,5] x) => (float[2,5] y) <int64[1] s = {-3}, int64[1] e = {3}> { y = Slice(x, s, e) }",
        "g (float[6] x) => (float[3] y, float[3] z) { y, z = Split<num_outputs=2>(x) }",
        "g (float[n] x) => (float[a] y, float[b] z) { y, z = Split<num_outputs=2>(x) }",
    ],
)
def test_what_stays(text: str) -> None:
    assert_unchanged(LowerForMnn(), text)


def test_old_slices_stay() -> None:
    text = "g (float[4,5] x) => (float[2,5] y) { y = Slice<axes=[0],starts=[-3],ends=[3]>(x) }"
    assert_unchanged(LowerForMnn(), text, opset=9)


def test_uneven_parts_are_written_out(tmp_path: Path) -> None:
    text = "g (float[7,2] x) => (float[3,2] y, float[3,2] z, float[1,2] w) { y, z, w = Split<num_outputs=3>(x) }"
    after = text.replace("{ y", "<int64[3] s = {3,3,1}> { y").replace("<num_outputs=3>(x)", "<axis=0>(x, s)")
    assert_rewrites(LowerForMnn(), text, after)
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("shape", ["2,3,4,5", "n,3,h,5"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize(("start", "end", "step"), [(-1, -(2**63) + 1, -1), (1, 0, -1), (-2, -99, -2)])
def test_backwards_in_a_batch(shape: str, axis: int, start: int, end: int, step: int, tmp_path: Path) -> None:
    text = f"""g (float[{shape}] x) => (float[a,b,c,d] y) <int64[1] s = {{{start}}}, int64[1] e = {{{end}}},
        int64[1] a = {{{axis}}}, int64[1] t = {{{step}}}> {{ y = Slice(x, s, e, a, t) }}"""
    assert lowered(text)[-1] == "Gather"
    if start == -1:
        assert_right_in_mnn(text, tmp_path)


def test_backwards_in_a_batch_below_opset_11() -> None:
    text = """g (float[n,3,h,5] x) => (float[a,b,c,d] y) <int64[1] s = {-1}, int64[1] e = {-9},
        int64[1] a = {2}, int64[1] t = {-1}> { y = Slice(x, s, e, a, t) }"""
    assert_unchanged(LowerForMnn(), text, refuses="not known, below opset 11", opset=10)
