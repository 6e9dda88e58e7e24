"""`canonicalize`: chains of views and of Concats."""

from __future__ import annotations

import pytest

from graphkit.passes.canonicalize import Canonicalize
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of

PASS = Canonicalize()


@pytest.mark.parametrize(
    "view",
    [
        "a = Reshape(x, p)",
        "a = Unsqueeze(x, k)",
        "a = Flatten<axis = 1>(x)",
    ],
)
def test_reshape_needs_no_view_before_it(view: str) -> None:
    weights = "<int64[4] p = {-1, 1, 2, 6}, int64[1] k = {1}, int64[2] s = {-1, 3}>"
    head = "agraph (float[n,2,6] x) => (float[m,3] y)"
    assert_rewrites(
        PASS,
        f"{head} {weights} {{ {view} y = Reshape(a, s) }}",
        f"{head} {weights} {{ y = Reshape(x, s) }}",
    )


def test_reshape_that_copies_a_size_of_the_view_keeps_it() -> None:
    weights = "<int64[2] p = {6, 2}, int64[3] s = {0, 1, -1}>"
    assert_unchanged(PASS, f"agraph (float[4,3] x) => (y) {weights} {{ a = Reshape(x, p) y = Reshape(a, s) }}")
    head = "agraph (float[n,2,6] x) => (float[n,12] y)"
    weights = "<int64[4] p = {0, 2, 3, 2}, int64[2] s = {0, -1}>"
    assert_rewrites(
        PASS,
        f"{head} {weights} {{ a = Reshape(x, p) y = Reshape(a, s) }}",
        f"{head} {weights} {{ y = Reshape(x, s) }}",
    )


def test_reshape_to_a_computed_shape_keeps_the_view_unless_zeros_mean_zero() -> None:
    head = "agraph (float[n,2,6] x, int64[2] s) => (y) <int64[2] p = {0, 12}>"
    assert_unchanged(PASS, f"{head} {{ a = Reshape(x, p) y = Reshape(a, s) }}")
    graph = graph_of(f"{head} {{ a = Reshape(x, p) y = Reshape<allowzero = 1>(a, s) }}")
    PASS.run(graph)
    assert len(graph) == 1


def test_squeeze_and_unsqueeze_of_the_same_axes_go() -> None:
    head = "agraph (float[n,4] x) => (float[n,4] y) <int64[1] k = {1}, int64[1] l = {-2}>"
    assert_rewrites(
        PASS,
        f"{head} {{ a = Unsqueeze(x, k) b = Squeeze(a, l) y = Neg(b) }}",
        f"{head} {{ y = Neg(x) }}",
    )
    assert_unchanged(
        PASS,
        """agraph (float[n,1,4] x) => (y) <int64[1] k = {1}, int64[1] l = {0}>
        { a = Squeeze(x, k) y = Unsqueeze(a, l) }""",
    )


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [("{0}", "{1}", "{0, 1}"), ("{2}", "{0}", "{0, 3}"), ("{0}", "{0}", "{0, 1}"), ("{1}", "{3}", "{1, 3}")],
)
def test_two_unsqueezes_are_one(first: str, second: str, both: str) -> None:
    head = "agraph (float[n,4] x) => (float[a,b,c,d] y)"
    assert_rewrites(
        PASS,
        f"{head} <int64[1] k = {first}, int64[1] l = {second}> {{ a = Unsqueeze(x, k) y = Unsqueeze(a, l) }}",
        f"{head} <int64[2] k = {both}> {{ y = Unsqueeze(x, k) }}",
    )


def test_two_unsqueezes_of_an_old_operator_set() -> None:
    graph = graph_of(
        """agraph (float[n,4] x) => (float[1,n,1,4] y)
        { a = Unsqueeze<axes = [1]>(x) y = Unsqueeze<axes = [0]>(a) }""",
        opset=11,
    )
    PASS.run(graph)
    assert [node.attr("axes") for node in graph.nodes] == [[0, 2]]


def test_concats_along_one_axis_are_joined() -> None:
    head = "agraph (float[n,2] x, float[n,3] z)"
    assert_rewrites(
        PASS,
        f"{head} => (float[n,7] y) {{ a = Concat<axis = 1>(x, z) y = Concat<axis = 1>(a, x) }}",
        f"{head} => (float[n,7] y) {{ y = Concat<axis = 1>(x, z, x) }}",
    )
    assert_unchanged(
        PASS,
        "agraph (float[n,2] x) => (y) { a = Concat<axis = 1>(x, x) y = Concat<axis = 0>(a, a) }",
    )
