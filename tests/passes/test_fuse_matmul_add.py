"""fuse-matmul-add: what goes into weight and bias, what stays, and where it says why."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.passes.fuse_matmul_add import FuseMatmulAdd
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

CONSTANTS = """<float[3,2] w = {1, 2, 3, 4, 5, 6}, float[3,2] w2 = {2, 4, 6, 8, 10, 12}, float k = {2},
    float half = {0.5}, float[2] b = {1, 2}, float[2] c = {3, 4}, float[2] bc = {4, 6}, float[2] bk = {2, 4},
    float[2] nb = {-1, -2}, float[1,1,2] b3 = {1, 2}, float[1,2] b2 = {1, 2}, float[1] one = {1},
    float[2] ones = {1, 1}, float[3,2] nw = {-1, -2, -3, -4, -5, -6}, float[2] v = {2, 3},
    float[3,2] wv = {2, 6, 6, 12, 10, 18}, float[2] bv = {2, 6}, float[5,2] rows = {1, 2, 3, 4, 5, 6, 7, 8, 9,
    10}, float[3,2] wh = {0.5, 1, 1.5, 2, 2.5, 3}, float[2,3] wt = {1, 2, 3, 4, 5, 6}, float huge = {1e38},
    float[2,3] wt2 = {2, 4, 6, 8, 10, 12}, float[1,1,1,2] b4 = {1, 2}, float zero = {0},
    float[2] b4k = {4, 8}>"""
TWO = f"g (float[N,3] x) => (float[N,2] y) {CONSTANTS}"
THREE = f"g (float[2,S,3] x) => (float[2,S,2] y) {CONSTANTS}"

AT_RANK_2 = {
    "bias": ("m = MatMul(x, w) y = Add(m, b)", "y = Gemm(x, w, b)"),
    "bias in front": ("m = MatMul(x, w) y = Add(b, m)", "y = Gemm(x, w, b)"),
    "bias of rank 2": ("m = MatMul(x, w) y = Add(m, b2)", "y = Gemm(x, w, b)"),
    "bias of one number": ("m = MatMul(x, w) y = Add(m, one)", "y = Gemm(x, w, ones)"),
    "subtracted": ("m = MatMul(x, w) y = Sub(m, b)", "y = Gemm(x, w, nb)"),
    "subtracted from": ("m = MatMul(x, w) y = Sub(b, m)", "y = Gemm(x, nw, b)"),
    "two biases": ("m = MatMul(x, w) a = Add(m, b) y = Add(a, c)", "y = Gemm(x, w, bc)"),
    "scaled": ("m = MatMul(x, w) a = Add(m, b) y = Mul(a, k)", "y = Gemm(x, w2, bk)"),
    "Gemm and bias": ("m = Gemm(x, w) y = Add(m, b)", "y = Gemm(x, w, b)"),
    "Gemm with bias and bias": ("m = Gemm(x, w, b) y = Add(m, c)", "y = Gemm(x, w, bc)"),
    "Gemm scaled": ("m = Gemm(x, w, b) y = Mul(m, v)", "y = Gemm(x, wv, bv)"),
    "Gemm transposed, scaled": (
        "m = Gemm<transB = 1>(x, wt, b) y = Div(m, half)",
        "y = Gemm<transB = 1>(x, wt2, bk)",
    ),
    "alpha and beta": ("y = Gemm<alpha = 2.0, beta = 2.0>(x, w, b)", "y = Gemm(x, w2, bk)"),
    "beta and bias": ("m = Gemm<beta = 2.0>(x, w, b) y = Add(m, bk)", "y = Gemm(x, w, b4k)"),
    "scaled only": ("m = MatMul(x, w) y = Mul(m, k)", "y = MatMul(x, w2)"),
    "scaled input": ("i = Mul(x, k) y = Gemm(i, w, b)", "y = Gemm(x, w2, b)"),
}
AT_RANK_3 = {
    "scaled": ("m = MatMul(x, w) y = Mul(m, k)", "y = MatMul(x, w2)"),
    "scaled, then bias": ("m = MatMul(x, w) a = Mul(k, m) y = Add(a, b)", "m = MatMul(x, w2) y = Add(m, b)"),
    "bias, then scaled": ("m = MatMul(x, w) a = Add(m, b) y = Mul(a, k)", "m = MatMul(x, w2) y = Add(m, bk)"),
    "divided": ("m = MatMul(x, w) a = Add(b, m) y = Div(a, half)", "m = MatMul(x, w2) y = Add(m, bk)"),
    "each channel": ("m = MatMul(x, w) a = Add(m, b3) y = Mul(a, v)", "m = MatMul(x, wv) y = Add(m, bv)"),
    "two biases": ("m = MatMul(x, w) a = Add(m, b3) y = Add(a, c)", "m = MatMul(x, w) y = Add(m, bc)"),
    "subtracted": ("m = MatMul(x, w) y = Sub(m, b)", "m = MatMul(x, w) y = Add(m, nb)"),
    "scaled input": ("i = Mul(x, k) m = MatMul(i, w) y = Add(m, b)", "m = MatMul(x, w2) y = Add(m, b)"),
    "divided input": ("i = Div(x, k) m = MatMul(i, w) y = Add(m, b)", "m = MatMul(x, wh) y = Add(m, b)"),
}


@pytest.mark.parametrize(("before", "after"), AT_RANK_2.values(), ids=AT_RANK_2)
@pytest.mark.parametrize("opset", [13, 18])
def test_rank_2(before: str, after: str, opset: int) -> None:
    assert_rewrites(FuseMatmulAdd(), f"{TWO} {{ {before} }}", f"{TWO} {{ {after} }}", opset=opset)


@pytest.mark.parametrize(("before", "after"), AT_RANK_3.values(), ids=AT_RANK_3)
def test_more_axes_stay_matmul_and_add(before: str, after: str) -> None:
    assert_rewrites(FuseMatmulAdd(), f"{THREE} {{ {before} }}", f"{THREE} {{ {after} }}")


def test_matmul_and_add_is_what_it_should_be() -> None:
    for body in ("m = MatMul(x, w) y = Add(m, b)", "m = MatMul(x, w) y = Add(b3, m)", "y = MatMul(x, w)"):
        assert not assert_unchanged(FuseMatmulAdd(), f"{THREE} {{ {body} }}").refusals


def test_two_products_of_one_input_are_left_alone() -> None:
    body = "m = MatMul(x, w) n = MatMul(x, w2) y = Add(m, n)"
    assert not assert_unchanged(FuseMatmulAdd(), f"{THREE} {{ {body} }}").refusals


def test_unchanged_weight_keeps_its_name() -> None:
    graph = graph_of(f"{TWO} {{ m = MatMul(x, w) y = Add(m, b) }}")
    FuseMatmulAdd().run(graph)
    assert next(graph.nodes).inputs[1] == "w"


def test_half_precision() -> None:
    text = """g (float16[N,3] x) => (float16[N,2] y)
        <float16[3,2] w = {15360, 16384, 16896, 17408, 17664, 17920}, float16[2] b = {15360, 16384},
        float16 k = {12288}> { m = MatMul(x, w) a = Add(m, b) y = Mul(a, k) }"""
    graph = graph_of(text)
    assert FuseMatmulAdd().run(graph).modified
    assert graph.op_counts() == {"Gemm": 1}
    assert_equal_outputs(parse(text), graph.to_model(), rtol=2e-3)


def test_inside_a_subgraph() -> None:
    head = THREE.replace("(float[2,S,3] x)", "(bool i, float[2,S,3] x)").replace("[2,S,2] y", "[2,S,2] z")

    def model(body: str) -> str:
        other = "else_branch = l () => (float[2,S,2] u) { u = MatMul(x, w2) }"
        return f"{head} {{ z = If(i) <then_branch = t () => (float[2,S,2] y) {{ {body} }}, {other}> }}"

    before, after = "m = MatMul(x, w) a = Add(m, b) y = Mul(a, v)", "m = MatMul(x, wv) y = Add(m, bv)"
    feeds = {"i": np.array(True), "x": np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)}
    assert_rewrites(FuseMatmulAdd(), model(before), model(after), inputs=feeds)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("m = MatMul(x, w) a = Add(m, b) s = Mul(a, k) y = Add(s, a)", "'a' is used elsewhere too"),
        ("m = MatMul(x, w) s = Mul(m, k) n = MatMul(x, w) y = Add(s, n)", "the weight 'w' is shared"),
        ("i = Mul(x, k) m = MatMul(i, w) n = MatMul(x, w) y = Add(m, n)", "the weight 'w' is shared"),
        ("m = MatMul(x, w) s = Mul(m, huge) y = Mul(s, huge)", "would not be finite"),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    graph = graph_of(f"{THREE} {{ {body} }}")
    assert any(reason in refusal.reason for refusal in FuseMatmulAdd().run(graph).refusals)


def test_constants_of_other_axes_are_refused() -> None:
    fixed = THREE.replace("[2,S,", "[2,5,")
    text = f"{fixed} {{ m = MatMul(x, w) y = Add(m, rows) }}"
    assert_unchanged(FuseMatmulAdd(), text, refuses="does not fit the last axis")
    more = THREE.replace("=> (float[2,S,2] y)", "=> (float[1,2,S,2] y)")
    text = f"{more} {{ m = MatMul(x, w) y = Add(m, b4) }}"
    assert_unchanged(FuseMatmulAdd(), text, refuses="does not fit the last axis")


@pytest.mark.parametrize(
    "body",
    ["m = MatMul(x, w) y = Div(b, m)", "m = MatMul(x, w) y = Div(m, zero)", "i = Div(k, x) y = MatMul(i, w)"],
)
def test_what_is_not_affine_stays(body: str) -> None:
    assert_unchanged(FuseMatmulAdd(), f"{THREE} {{ {body} }}")


ATTENTION = """m = MatMul(x, w) a = Add(m, b) r = Reshape(a, heads) t = Transpose<perm = [0, 2, 1, 3]>(r)
    m2 = MatMul(x, w2) r2 = Reshape(m2, heads) t2 = Transpose<perm = [0, 2, 3, 1]>(r2) """


@pytest.mark.parametrize("scale", ["s = MatMul(t, t2) y = {}", "q = {} y = MatMul(q, t2)"])
def test_scale_of_attention_goes_into_the_query(scale: str) -> None:
    head = THREE.replace("=> (float[2,S,2] y)", "=> (float[2,2,S,S] y)")
    head = head.replace("float zero = {0},", "float zero = {0}, int64[4] heads = {0, -1, 2, 1},")
    after = ATTENTION.replace("MatMul(x, w)", "MatMul(x, wh)").replace("Add(m, b)", "Add(m, bh)")
    head = head.replace("float zero = {0},", "float zero = {0}, float[2] bh = {0.5, 1},")
    value = "s" if scale.startswith("s") else "t"
    for call in (f"Mul({value}, half)", f"Mul(half, {value})", f"Div({value}, k)"):
        before = f"{head} {{ {ATTENTION} {scale.format(call)} }}"
        result = assert_rewrites(FuseMatmulAdd(), before, f"{head} {{ {after} y = MatMul(t, t2) }}")
        assert result.counters == {"matmul-scaled-later": 1}


def test_scale_of_a_view_that_others_use_stays() -> None:
    head = THREE.replace("=> (float[2,S,2] y)", "=> (float[2,S,2] y, float[2,2,S] t)")
    body = "m = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(m) e = Mul(t, k) y = Transpose<perm = [0, 2, 1]>(e)"
    assert_unchanged(FuseMatmulAdd(), f"{head} {{ {body} }}")


def test_gelu_between_two_products_stays_whole() -> None:
    body = """m = MatMul(x, w) u = Add(m, b) d = Div(u, root) f = Erf(d) g = Add(f, one0) i = Mul(u, g)
        j = Mul(i, half) y = MatMul(j, square)"""
    more = "float root = {1.4142135}, float one0 = {1}, float[2,2] square = {1, 2, 3, 4}"
    text = f"{THREE} {{ {body} }}".replace("float zero = {0},", f"float zero = {{0}}, {more},")
    assert not assert_unchanged(FuseMatmulAdd(), text).refusals


def test_graph_output_inside_is_kept() -> None:
    text = THREE.replace("=> (float[2,S,2] y)", "=> (float[2,S,2] y, float[2,S,2] m)")
    body = "m = MatMul(x, w) y = Mul(m, k)"
    assert_unchanged(FuseMatmulAdd(), f"{text} {{ {body} }}", refuses="'m' is used elsewhere")


def test_input_that_is_scaled_for_others_too() -> None:
    head = THREE.replace("=> (float[2,S,2] y)", "=> (float[2,S,2] y, float[2,S,3] i)")
    assert not assert_unchanged(FuseMatmulAdd(), f"{head} {{ i = Mul(x, k) y = MatMul(i, w) }}").refusals
