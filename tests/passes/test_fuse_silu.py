"""fuse-silu: the factor of quick Gelu goes into the layers around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit.mnn.convert import run_converter
from graphkit.mnn.fileinfo import read_file_info
from graphkit.passes.fuse_silu import FuseSilu
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

CONSTANTS = """<float[3,4] w = {1, -2, 3, -4, 5, 6, -7, 8, 9, 10, 11, -12}, float[4] b = {1, 2, 3, 4},
    float[4,2] v = {2, 4, 6, 8, 10, 12, 14, 16}, float[2] c = {1, 2}, float k = {2}, float q = {1.702},
    float[3,4] w2 = {2, -4, 6, -8, 10, 12, -14, 16, 18, 20, 22, -24}, float[4] b2 = {2, 4, 6, 8},
    float[4,2] v2 = {1, 2, 3, 4, 5, 6, 7, 8}, float minus = {-1}, float one = {1}>"""
HEAD = f"g (float[2,S,3] x) => (float[2,S,2] y) {CONSTANTS}"
FRONT = "m = MatMul(x, w) a = Add(m, b)"
QUICK = "u = Mul(a, k) s = Sigmoid(u) z = Mul(a, s)"
BACK = "n = MatMul(z, v) y = Add(n, c)"
AFTER = "m = MatMul(x, w2) a = Add(m, b2) s = Sigmoid(a) z = Mul(a, s) n = MatMul(z, v2) y = Add(n, c)"


@pytest.mark.parametrize("quick", [QUICK, "u = Mul(k, a) s = Sigmoid(u) z = Mul(s, a)"])
def test_factor_goes_into_both_layers(quick: str) -> None:
    before = f"{HEAD} {{ {FRONT} {quick} {BACK} }}"
    assert assert_rewrites(FuseSilu(), before, f"{HEAD} {{ {AFTER} }}").counters == {"quick-gelu": 1}


def test_gemm_and_no_bias() -> None:
    head = HEAD.replace("[2,S,", "[S,")
    before = f"{head} {{ a = Gemm(x, w, b) {QUICK} y = Gemm(z, v, c) }}"
    after = f"{head} {{ a = Gemm(x, w2, b2) s = Sigmoid(a) z = Mul(a, s) y = Gemm(z, v2, c) }}"
    assert_rewrites(FuseSilu(), before, after)
    before = f"{HEAD} {{ a = MatMul(x, w) {QUICK} y = MatMul(z, v) }}"
    after = f"{HEAD} {{ a = MatMul(x, w2) s = Sigmoid(a) z = Mul(a, s) y = MatMul(z, v2) }}"
    assert_rewrites(FuseSilu(), before, after)


def test_half_precision() -> None:
    text = """g (float16[N,2] x) => (float16[N,2] y) <float16[2,2] w = {15360, 16384, 16896, 17408},
        float16[2,2] v = {15360, 16384, 16896, 17408}, float16 q = {16079}>
        { a = MatMul(x, w) u = Mul(a, q) s = Sigmoid(u) z = Mul(a, s) y = MatMul(z, v) }"""
    graph = graph_of(text)
    assert FuseSilu().run(graph).modified
    assert_equal_outputs(parse(text), graph.to_model(), rtol=4e-3)


def test_inside_a_subgraph() -> None:
    def wrapped(body: str) -> str:
        head = HEAD.replace("(float[2,S,3] x) => (float[2,S,2] y)", "(bool i, float[2,S,3] x) => (float[2,S,2] o)")
        other = "else_branch = l () => (float[2,S,2] e) { d = Relu(x) f = MatMul(d, wo) e = Add(f, c) }"
        branch = f"then_branch = t () => (float[2,S,2] y) {{ {body} }}"
        constants = head.replace("float minus = {-1}", "float[3,2] wo = {1, 2, 3, 4, 5, 6}, float minus = {-1}")
        return f"{constants} {{ o = If(i) <{branch}, {other}> }}"

    assert_rewrites(FuseSilu(), wrapped(f"{FRONT} {QUICK} {BACK}"), wrapped(AFTER))


def test_four_mnn_operators_become_one(tmp_path: Path) -> None:
    text = f"{HEAD} {{ {FRONT} {QUICK.replace('k)', 'q)')} {BACK} }}"
    graph, totals = graph_of(text), []
    for name in ("before", "after"):
        graph.to_model().save(tmp_path / f"{name}.onnx")
        run_converter(tmp_path / f"{name}.onnx", tmp_path / f"{name}.mnn")
        totals.append(read_file_info(tmp_path / f"{name}.mnn").op_total)
        FuseSilu().run(graph)
    assert totals[0] - totals[1] >= 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"a = Relu(x) {QUICK} y = MatMul(z, wo)", "in front"),
        (f"{FRONT} {QUICK} t = Relu(z) y = MatMul(t, v)", "behind"),
        (f"{FRONT} {QUICK} n = MatMul(z, v) r = Add(a, one) t = MatMul(r, v2) y = Add(n, t)", "'a' is used"),
        (f"{FRONT} {QUICK} n = MatMul(z, v) t = MatMul(u, v2) y = Add(n, t)", "'u' is used"),
        (f"{FRONT} {QUICK} n = MatMul(z, v) m3 = MatMul(x, w) t = MatMul(m3, v2) y = Add(n, t)", "shared"),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    head = HEAD.replace("float minus = {-1}", "float[3,2] wo = {1, 2, 3, 4, 5, 6}, float minus = {-1}")
    assert_unchanged(FuseSilu(), f"{head} {{ {body} }}", refuses=reason)


@pytest.mark.parametrize("quick", ["s = Sigmoid(a) z = Mul(a, s)", QUICK.replace("k)", "minus)")])
def test_others_are_left_without_a_word(quick: str) -> None:
    assert not assert_unchanged(FuseSilu(), f"{HEAD} {{ {FRONT} {quick} {BACK} }}").refusals
