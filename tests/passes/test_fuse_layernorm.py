"""fuse-layernorm: every spelling of exporters, what it must leave alone, and where it says why."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.passes.fuse_layernorm import FuseLayernorm
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

VECTORS = "float[4] w = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}, float[4] ones = {1, 1, 1, 1}"
CONSTANTS = f"""<{VECTORS}, float[4] zeros = {{0, 0, 0, 0}}, float[1,1,4] w3 = {{1, 2, 3, 4}},
    float[1,4] b2 = {{4, 3, 2, 1}}, float two = {{2}}, float e = {{0.00001}}, float o = {{1}},
    float half = {{0.5}}, float mhalf = {{-0.5}}, int64[1] last = {{-1}}, float[3,4] w34 = {{1, 2, 3, 4, 5, 6,
    7, 8, 9, 10, 11, 12}}, float[1,1,1,4] w4 = {{1, 2, 3, 4}}, float[4] ww = {{1, 4, 9, 16}},
    float[4] wb = {{4, 6, 6, 4}}, float[4] wb2 = {{8, 9, 8, 5}}>"""
HEAD = f"g (float[2,S,4] x) => (float[2,S,4] y) {CONSTANTS}"

MEAN = "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m)"
ROOT = "p = Pow(d, two) v = ReduceMean<axes = [-1]>(p) a = Add(v, e) s = Sqrt(a)"
NORM = f"{MEAN} {ROOT} n = Div(d, s)"
AFFINE = "q = Mul(n, w) y = Add(q, b)"
SPELLINGS = {
    "torch": f"{NORM} {AFFINE}",
    "commuted": f"{NORM.replace('Add(v, e)', 'Add(e, v)')} q = Mul(w, n) y = Add(b, q)",
    "product square": f"{NORM.replace('Pow(d, two)', 'Mul(d, d)')} {AFFINE}",
    "reciprocal": f"{MEAN} {ROOT} r = Reciprocal(s) n = Mul(d, r) {AFFINE}",
    "one over": f"{MEAN} {ROOT} r = Div(o, s) n = Mul(r, d) {AFFINE}",
    "power -1/2": f"{MEAN} {ROOT.replace('s = Sqrt(a)', 's = Pow(a, mhalf)')} n = Mul(d, s) {AFFINE}",
    "power 1/2": f"{MEAN} {ROOT.replace('s = Sqrt(a)', 's = Pow(a, half)')} n = Div(d, s) {AFFINE}",
    "twice": f"{MEAN} {ROOT} d2 = Sub(x, m) n = Div(d2, s) {AFFINE}",
    "mean twice": f"{MEAN} {ROOT} m2 = ReduceMean<axes = [-1]>(x) d2 = Sub(x, m2) n = Div(d2, s) {AFFINE}",
    "shapes of constants": f"{NORM} q = Mul(n, w3) y = Add(q, b2)",
    "positive axis": f"{NORM.replace('[-1]', '[2]')} {AFFINE}",
}
OPERATOR = f"{HEAD} {{ y = LayerNormalization<axis = -1, epsilon = 0.00001>(x, w, b) }}"


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_become_the_operator(body: str) -> None:
    result = assert_rewrites(FuseLayernorm(), f"{HEAD} {{ {body} }}", OPERATOR, opset=17)
    assert result.counters == {"layernorm": 1}


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_axes_as_an_input(opset: int) -> None:
    body = f"{NORM} {AFFINE}".replace("ReduceMean<axes = [-1]>(x)", "ReduceMean(x, last)")
    body = body.replace("ReduceMean<axes = [-1]>(p)", "ReduceMean(p, last)")
    assert_rewrites(FuseLayernorm(), f"{HEAD} {{ {body} }}", OPERATOR, opset=opset, ir_version=10)


def test_two_trailing_axes() -> None:
    head = HEAD.replace("[2,S,4] x", "[2,3,4] x").replace("[2,S,4] y", "[2,3,4] y")
    body = NORM.replace("[-1]", "[-2, -1]") + " q = Mul(n, w34) y = Add(q, b)"
    graph = graph_of(f"{head} {{ {body} }}", opset=17)
    assert FuseLayernorm().run(graph).counters == {"layernorm": 1}
    (node,) = graph.nodes
    assert node.attr("axis") == -2
    assert [graph.shape(value) for value in node.inputs[1:]] == [(3, 4), (3, 4)]
    assert_equal_outputs(parse(f"{head} {{ {body} }}", opset=17), graph.to_model())


def test_parts_of_the_affine() -> None:
    plain = "y = LayerNormalization<axis = -1, epsilon = 0.00001>"
    for tail, operands in (
        ("y = Mul(n, w)", "(x, w)"),
        ("y = Add(n, b)", "(x, ones, b)"),
        ("y = Div(d, s)", "(x, ones)"),
    ):
        norm = NORM if "n" in tail else NORM.removesuffix(" n = Div(d, s)")
        assert_rewrites(FuseLayernorm(), f"{HEAD} {{ {norm} {tail} }}", f"{HEAD} {{ {plain}{operands} }}", opset=17)


def test_scale_that_does_not_fit_stays_behind() -> None:
    head = HEAD.replace("=> (float[2,S,4] y)", "=> (float[1,2,S,4] y)")
    before = f"{head} {{ {NORM} y = Mul(n, w4) }}"
    after = f"{head} {{ n = LayerNormalization<axis = -1, epsilon = 0.00001>(x, ones) y = Mul(n, w4) }}"
    assert_rewrites(FuseLayernorm(), before, after, opset=17)
    head = HEAD.replace("(float[2,S,4] x)", "(float[2,S,4] x, float[4] u)")
    before, norm = (
        f"{head} {{ {NORM} y = Mul(n, u) }}",
        "n = LayerNormalization<axis = -1, epsilon = 0.00001>",
    )
    assert_rewrites(FuseLayernorm(), before, f"{head} {{ {norm}(x, ones) y = Mul(n, u) }}", opset=17)


def test_shared_normalization_ends_at_the_shared_value() -> None:
    head = HEAD.replace("=> (float[2,S,4] y)", "=> (float[2,S,4] y, float[2,S,4] z)")
    norm = "n = LayerNormalization<axis = -1, epsilon = 0.00001>(x, ones)"
    tail = "y = Mul(n, w) z = Mul(n, b)"
    assert_rewrites(FuseLayernorm(), f"{head} {{ {NORM} {tail} }}", f"{head} {{ {norm} {tail} }}", opset=17)


HALF = """g (float16[2,S,4] x) => (float16[2,S,4] y) <float16[4] w = {15360, 16384, 16896, 17408},
    float16[4] b = {17408, 16896, 16384, 15360}, float two = {2}, float e = {0.00001}, double two64 = {2},
    double e64 = {0.00001}, float16 two16 = {16384}, float16 e16 = {168}>"""
HALF_BODIES = {
    "between Casts": f"""x32 = Cast<to = 1>(x) {NORM.replace("(x)", "(x32)").replace("(x,", "(x32,")}
        c = Cast<to = 10>(n) q = Mul(c, w) y = Add(q, b)""",
    "TorchScript": """m = ReduceMean<axes = [-1]>(x) d16 = Sub(x, m) d = Cast<to = 11>(d16) p = Pow(d, two64)
        v = ReduceMean<axes = [-1]>(p) a = Add(v, e64) s = Sqrt(a) n = Div(d, s) c = Cast<to = 10>(n)
        q = Mul(c, w) y = Add(q, b)""",
    "in half precision": f"{NORM.replace('two', 'two16').replace('v, e', 'v, e16')} {AFFINE}",
}


@pytest.mark.parametrize("body", HALF_BODIES.values(), ids=HALF_BODIES)
def test_half_precision(body: str) -> None:
    graph = graph_of(f"{HALF} {{ {body} }}", opset=17)
    assert FuseLayernorm().run(graph).counters == {"layernorm": 1}
    assert graph.op_counts() == {"LayerNormalization": 1}
    (node,) = graph.nodes
    assert [str(graph.constant(value).dtype) for value in node.inputs[1:]] == ["float16"] * 2  # type: ignore[union-attr]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float16)
    assert_equal_outputs(parse(f"{HALF} {{ {body} }}", opset=17), graph.to_model(), inputs={"x": x}, rtol=2e-3)


def test_below_opset_17_in_the_order_mnn_fuses() -> None:
    wanted = f"{HEAD} {{ {NORM} {AFFINE} }}".replace("[-1]>", "[-1], keepdims = 1>")
    for name, body in SPELLINGS.items():
        if name not in ("torch", "shapes of constants", "positive axis"):
            assert_rewrites(FuseLayernorm(), f"{HEAD} {{ {body} }}", wanted, opset=13)
    for name in ("torch", "shapes of constants", "positive axis"):
        assert not assert_unchanged(FuseLayernorm(), f"{HEAD} {{ {SPELLINGS[name]} }}", opset=13).refusals


def test_below_opset_17_completed_for_mnn() -> None:
    body = f"{NORM} y = Mul(n, w)"
    wanted = f"{HEAD} {{ {NORM} q = Mul(n, w) y = Add(q, zeros) }}".replace("[-1]>", "[-1], keepdims = 1>")
    assert_unchanged(FuseLayernorm(), f"{HEAD} {{ {body} }}", opset=13)
    assert_rewrites(FuseLayernorm(form="mnn"), f"{HEAD} {{ {body} }}", wanted, opset=13)
    assert_unchanged(FuseLayernorm(form="mnn"), wanted, opset=13)


def test_inside_a_subgraph() -> None:
    head = f"g (bool c, float[2,S,4] x) => (float[2,S,4] z) {CONSTANTS}"
    other = "else_branch = l () => (float[2,S,4] u) { u = Identity(x) }"

    def model(body: str) -> str:
        return f"{head} {{ z = If(c) <then_branch = t () => (float[2,S,4] y) {{ {body} }}, {other}> }}"

    operator = "y = LayerNormalization<axis = -1, epsilon = 0.00001>(x, w, b)"
    assert_rewrites(FuseLayernorm(), model(f"{NORM} {AFFINE}"), model(operator), opset=17)


def test_operator_gets_a_negative_axis() -> None:
    before = f"{HEAD} {{ y = LayerNormalization<axis = 2>(x, w, b) }}"
    after = f"{HEAD} {{ y = LayerNormalization<axis = -1>(x, w, b) }}"
    assert_rewrites(FuseLayernorm(), before, after, opset=17)
    assert_unchanged(FuseLayernorm(), after, opset=17)
    more = "(float[2,S,4] y, float[2,S,1] mean)"
    before, after = (text.replace("(float[2,S,4] y)", more).replace("y =", "y, mean =") for text in (before, after))
    assert_rewrites(FuseLayernorm(), before, after, opset=17)


def test_operator_takes_scale_and_bias_in() -> None:
    norm = "n = LayerNormalization<axis = -1>"
    for before, after in (
        (f"{norm}(x, w, b) y = Mul(n, w)", "(x, ww, wb)"),
        (f"{norm}(x, w) y = Add(n, b)", "(x, w, b)"),
        (f"{norm}(x, w, b) q = Mul(w, n) y = Add(q, b)", "(x, ww, wb2)"),
    ):
        wanted = f"{HEAD} {{ y = LayerNormalization<axis = -1>{after} }}"
        assert_rewrites(FuseLayernorm(), f"{HEAD} {{ {before} }}", wanted, opset=17)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            f"{NORM} q = Mul(n, w) z = Add(q, b) y = Add(z, d)",
            "'d' inside the normalization is used elsewhere",
        ),
        (f"{NORM.replace('[-1]', '[1]')} y = Mul(n, w)", "axes [-2]"),
        (
            f"{NORM.replace('(p)', '(p)').replace('<axes = [-1]>(p)', '(p)')} y = Mul(n, w)",
            "axes are not constant",
        ),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    assert_unchanged(FuseLayernorm(), f"{HEAD} {{ {body} }}", refuses=reason, opset=17)


def test_refusals_that_depend_on_the_model() -> None:
    body = f"{NORM} {AFFINE}"
    assert_unchanged(FuseLayernorm(form="op"), f"{HEAD} {{ {body} }}", refuses="from opset 17", opset=16)
    unknown = HEAD.replace("[2,S,4]", "[2,S,D]")
    assert_unchanged(FuseLayernorm(), f"{unknown} {{ {body} }}", refuses="size of the normalized axes", opset=17)
    output = HEAD.replace("=> (float[2,S,4] y)", "=> (float[2,S,4] y, float[2,S,4] d)")
    assert_unchanged(FuseLayernorm(), f"{output} {{ {body} }}", refuses="'d' inside", opset=17)


@pytest.mark.parametrize(
    "body",
    [
        f"{ROOT.replace('d,', 'x,')} n = Div(x, s) {AFFINE}",
        f"{MEAN} p = Pow(d, two) v = ReduceMean<axes = [-1]>(p) s = Sqrt(v) a = Add(s, e) n = Div(d, a) {AFFINE}",
        f"{MEAN} {ROOT} n = Div(s, d) {AFFINE}",
        f"{MEAN} {ROOT} n = Div(x, s) {AFFINE}",
        f"{NORM.replace('Pow(d, two)', 'Pow(d, half)')} {AFFINE}",
        "a = Add(x, o) y = Sqrt(a)",
    ],
)
def test_look_alikes_are_left_without_a_word(body: str) -> None:
    assert not assert_unchanged(FuseLayernorm(), f"{HEAD} {{ {body} }}", opset=17).refusals
