"""fuse-transposes: what cancels or merges, and what must not."""

from __future__ import annotations

import pytest

from graphkit.passes.fuse_transposes import FuseTransposes
from graphkit.testing import assert_rewrites, assert_unchanged

CONSTANTS = """<int64[2] flat = {2, -1}, int64[3] three = {2, 12, 5}, int64[2] copy = {0, -1}, float k = {2},
    int64[1] one = {1}, int64[1] last = {-1}, int64[1] two = {2}, float lo = {0}, float hi = {6},
    int64[4] four = {2, 5, 4, 3}, int64[2] fixed = {2, 60}, int64[3] copies = {0, 0, -1}, float[1] k1 = {2},
    float[5] row = {1, 2, 3, 4, 5}, int64[2] copy2 = {2, -1}>"""
HEAD = f"g (float[2,3,4,5] x) => (float[a,b,c,d] y) {CONSTANTS}"


def model(body: str, x: str = "2,3,4,5", y: str = "a,b,c,d", more: str = "") -> str:
    """A model of this body, with the dims of x and y."""
    return f"g (float[{x}] x) => (float[{y}] y{more}) {CONSTANTS} {{ {body} }}"


T1, T2 = "Transpose<perm = [0, 2, 1, 3]>", "Transpose<perm = [0, 2, 3, 1]>"
BACK = "Transpose<perm = [0, 3, 1, 2]>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"a = {T1}(x) y = {T2}(a)", "y = Transpose<perm = [0, 1, 3, 2]>(x)"),
        ("a = Transpose(x) y = Transpose<perm = [0, 1, 3, 2]>(a)", "y = Transpose<perm = [3, 2, 0, 1]>(x)"),
        (f"a = {T1}(x) b = {T1}(a) y = Relu(b)", "y = Relu(x)"),
        (f"a = {T2}(x) b = Relu(a) y = {BACK}(b)", "y = Relu(x)"),
        (f"a = {T2}(x) b = Mul(a, k) e = Tanh(b) y = {BACK}(e)", "b = Mul(x, k) y = Tanh(b)"),
        (f"a = {T2}(x) b = Sub(k1, a) y = {BACK}(b)", "y = Sub(k1, x)"),
        (f"a = {T2}(x) b = Clip(a, lo, hi) y = {BACK}(b)", "y = Clip(x, lo, hi)"),
        (
            f"a = {T2}(x) b = LeakyRelu<alpha = 0.3>(a) y = {T2}(b)",
            "a = Transpose<perm = [0, 3, 1, 2]>(x) y = LeakyRelu<alpha = 0.3>(a)",
        ),
        ("a = Transpose<perm = [0, 1, 2, 3]>(x) y = Relu(a)", "y = Relu(x)"),
        (
            f"a = {T1}(x) b = {T2}(a) e = {T1}(b) y = Relu(e)",
            "a = Transpose<perm = [0, 3, 1, 2]>(x) y = Relu(a)",
        ),
        ("a = Unsqueeze(x, one) b = Squeeze(a, one) y = Neg(b)", "y = Neg(x)"),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    assert_rewrites(FuseTransposes(), model(before), model(after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = Reshape(x, three) y = Reshape(a, flat)", "y = Reshape(x, flat)"),
        ("a = Flatten<axis = 2>(x) y = Reshape(a, flat)", "y = Reshape(x, flat)"),
        ("a = Unsqueeze(x, one) y = Reshape(a, flat)", "y = Reshape(x, flat)"),
        ("a = Reshape(x, three) y = Reshape(a, copy)", "y = Reshape(x, flat)"),
    ],
)
def test_reshapes(before: str, after: str) -> None:
    assert_rewrites(FuseTransposes(), model(before, y="a,b"), model(after, y="a,b"))


def test_copied_symbolic_dimension_stays_a_copy() -> None:
    before, after = "a = Flatten<axis = 1>(x) y = Reshape(a, copy)", "y = Reshape(x, copy)"
    assert_rewrites(FuseTransposes(), model(before, x="N,3,4", y="a,b"), model(after, x="N,3,4", y="a,b"))


def test_copied_dimension_of_other_place_is_refused() -> None:
    body = f"a = {T1}(x) b = Flatten<axis = 2>(a) y = Reshape(b, copy)"
    assert_unchanged(FuseTransposes(), model(body, x="2,S,T,5", y="a,b"), refuses="its 0 copies a dimension")


def test_transpose_that_only_moves_ones_before_a_reshape() -> None:
    text = model("a = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(a, flat)", x="2,1,S,5", y="a,b")
    assert_rewrites(FuseTransposes(), text, model("y = Reshape(x, flat)", x="2,1,S,5", y="a,b"))
    assert_unchanged(FuseTransposes(), text.replace("2,1,S,5", "2,3,S,5"))
    assert_unchanged(FuseTransposes(), text.replace("2,1,S,5", "2,T,S,5"))


def test_axes_as_attributes() -> None:
    before = "a = Unsqueeze<axes = [1]>(x) b = Squeeze<axes = [1]>(a) y = Neg(b)"
    assert_rewrites(FuseTransposes(), model(before), model("y = Neg(x)"), opset=11)


def test_squeeze_then_unsqueeze() -> None:
    before = "a = Squeeze(x, one) b = Unsqueeze(a, one) y = Neg(b)"
    assert_rewrites(FuseTransposes(), model(before, x="2,1,4,5"), model("y = Neg(x)", x="2,1,4,5"))


def test_pair_that_cancels_though_the_first_is_used() -> None:
    before = f"z = {T1}(x) b = {T1}(z) y = Relu(b)"
    after = f"z = {T1}(x) y = Relu(x)"
    more = ", float[a,c,b,d] z"
    assert_rewrites(FuseTransposes(), model(before, more=more), model(after, more=more))


def test_graph_output_that_becomes_the_input() -> None:
    assert_rewrites(FuseTransposes(), model(f"a = {T1}(x) y = {T1}(a)"), model("y = Identity(x)"))


def test_half_precision() -> None:
    before, after = f"a = {T2}(x) b = Relu(a) y = {BACK}(b)", "y = Relu(x)"
    half = ("float[", "float16[")
    assert_rewrites(FuseTransposes(), model(before).replace(*half, 2), model(after).replace(*half, 2))


def test_inside_a_subgraph() -> None:
    def wrapped(body: str) -> str:
        other = "else_branch = l () => (float[a,b,c,d] u) { u = Identity(x) }"
        branch = f"then_branch = t () => (float[a,b,c,d] y) {{ {body} }}"
        return f"g (bool i, float[2,3,4,5] x) => (float[a,b,c,d] z) {{ z = If(i) <{branch}, {other}> }}"

    before, after = f"a = {T2}(x) e = Relu(a) y = {BACK}(e)", "y = Relu(x)"
    assert_rewrites(FuseTransposes(), wrapped(before), wrapped(after))


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (f"z = {T1}(x) y = {T2}(z)", ", float[a,c,b,d] z"),
        (f"a = {T2}(x) z = Relu(a) y = {BACK}(z)", ", float[a,c,b,d] z"),
        (f"a = {T2}(x) b = Softmax(a) y = {BACK}(b)", ""),
        ("a = Transpose<perm = [0, 1, 3, 2]>(x) b = Add(a, a) y = Transpose<perm = [0, 1, 3, 2]>(b)", ""),
        ("a = Transpose<perm = [0, 1, 3, 2]>(x) e = Unsqueeze(a, one) y = Squeeze(e, two)", ""),
        ("a = Transpose<perm = [1, 0, 3, 2]>(x) e = Add(a, k) y = Softmax(e)", ""),
    ],
)
def test_left_alone(body: str, more: str) -> None:
    x = "2,3,1,5" if "two" in body else "2,3,4,5"
    if "two" in body:
        body = body.replace("Transpose<perm = [0, 1, 3, 2]>(x)", "Relu(x)")
    assert_unchanged(FuseTransposes(), model(body, x=x, more=more))


def test_addition_along_an_axis_is_no_number() -> None:
    body = "a = Transpose<perm = [1, 0, 2, 3]>(x) e = Add(a, row) y = Transpose<perm = [1, 0, 2, 3]>(e)"
    assert_unchanged(FuseTransposes(), model(body))


def test_reshape_whose_inner_value_is_used() -> None:
    text = model("z = Reshape(x, three) y = Reshape(z, flat)", y="a,b", more=", float[e,f,g] z")
    assert_unchanged(FuseTransposes(), text)
