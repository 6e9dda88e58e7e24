"""Each pass: what it rewrites, with equal outputs, and what it refuses, with the reason."""

from __future__ import annotations

from graphkit_example_passes.flatten_concats import FlattenConcats
from graphkit_example_passes.merge_clips import MergeClips

from graphkit.testing import assert_rewrites, assert_unchanged

CLIPS = """
    g (float[N,4] x) => (float[N,4] y)
    <float lo = {-0.5}, float hi = {0.5}, float top = {6.0}> {
        a = Relu(x)
        b = Clip(a, lo, top)
        y = Clip(b, , hi)
    }
"""


def test_a_chain_becomes_one_clip() -> None:
    after = "g (float[N,4] x) => (float[N,4] y) <float lo = {0.0}, float hi = {0.5}> { y = Clip(x, lo, hi) }"
    result = assert_rewrites(MergeClips(), CLIPS, after, rtol=0)
    assert result.counters == {"merge-clips": 2}


def test_relu_is_left_alone_on_request() -> None:
    after = """
        g (float[N,4] x) => (float[N,4] y) <float lo = {-0.5}, float hi = {0.5}> {
            a = Relu(x)
            y = Clip(a, lo, hi)
        }
    """
    assert_rewrites(MergeClips(relu=False), CLIPS, after, rtol=0)


def test_a_value_that_is_used_elsewhere_is_refused() -> None:
    before = "g (float[4] x) => (float[4] y, float[4] a) <float hi = {1.0}> { a = Relu(x) y = Clip(a, , hi) }"
    assert_unchanged(MergeClips(), before, refuses="'a' is used elsewhere")


def test_a_bound_that_is_not_constant_is_refused() -> None:
    before = "g (float[4] x, float hi) => (float[4] y) { a = Relu(x) y = Clip(a, , hi) }"
    assert_unchanged(MergeClips(), before, refuses="not a constant")


def test_nested_concats_become_one() -> None:
    before = """
        g (float[N,2] x, float[N,3] z) => (float[N,9] y) {
            a = Concat<axis = 1>(x, z)
            b = Concat<axis = 1>(a, x)
            y = Concat<axis = 1>(x, b)
        }
    """
    after = "g (float[N,2] x, float[N,3] z) => (float[N,9] y) { y = Concat<axis = 1>(x, x, z, x) }"
    assert_rewrites(FlattenConcats(), before, after, rtol=0)


def test_a_concat_that_is_used_elsewhere_is_refused() -> None:
    before = """
        g (float[2,2] x) => (float[2,6] y, float[2,4] z) {
            a = Concat<axis = 1>(x, x)
            y = Concat<axis = 1>(a, x)
            z = Relu(a)
        }
    """
    assert_unchanged(FlattenConcats(), before, refuses="'a' is used elsewhere")


def test_another_axis_is_left_alone() -> None:
    before = "g (float[2,2] x) => (float[4,4] y) { a = Concat<axis = 1>(x, x) y = Concat<axis = 0>(a, a) }"
    assert_unchanged(FlattenConcats(), before)
