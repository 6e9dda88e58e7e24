"""fuse-rmsnorm: every spelling of exporters, both ways, and where it says why not."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.passes.fuse_rmsnorm import FuseRmsnorm
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

CONSTANTS = """<float[4] w = {1, 2, 3, 4}, float two = {2}, float e = {0.000001}, float o = {1},
    float half = {0.5}, float mhalf = {-0.5}, int64[1] last = {-1}, float[4] ones = {1, 1, 1, 1},
    float[3,4] w34 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"""
HEAD = f"g (float[2,S,4] x) => (float[2,S,4] y) {CONSTANTS}"
MEAN = "p = Pow(x, two) v = ReduceMean<axes = [-1], keepdims = 1>(p) a = Add(v, e)"
CANONICAL = f"{MEAN} s = Sqrt(a) n = Div(x, s)"
SPELLINGS = {
    "Llama, TorchScript": f"{MEAN} s = Sqrt(a) r = Div(o, s) n = Mul(x, r)",
    "Llama, dynamo": f"{MEAN} s = Sqrt(a) r = Reciprocal(s) n = Mul(x, r)",
    "commuted": f"{MEAN.replace('Add(v, e)', 'Add(e, v)')} s = Sqrt(a) r = Reciprocal(s) n = Mul(r, x)",
    "power": f"{MEAN} s = Pow(a, mhalf) n = Mul(x, s)",
    "root as a power": f"{MEAN} s = Pow(a, half) n = Div(x, s)",
    "product square": f"{MEAN.replace('Pow(x, two)', 'Mul(x, x)')} s = Sqrt(a) r = Div(o, s) n = Mul(r, x)",
    "positive axis": f"{MEAN.replace('[-1]', '[2]')} s = Sqrt(a) r = Reciprocal(s) n = Mul(x, r)",
}
WEIGHTS = ("y = Mul(n, w)", "y = Mul(w, n)")


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("tail", WEIGHTS)
def test_spellings_become_the_one_mnn_fuses(body: str, tail: str) -> None:
    result = assert_rewrites(FuseRmsnorm(), f"{HEAD} {{ {body} {tail} }}", f"{HEAD} {{ {CANONICAL} {tail} }}", opset=17)
    assert result.counters == {"rmsnorm": 1}


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_become_the_operator(body: str) -> None:
    def input_axes(text: str) -> str:
        return text.replace("<axes = [-1], keepdims = 1>(p)", "(p, last)").replace(
            "<axes = [2], keepdims = 1>(p)", "(p, last)"
        )

    after = f"{HEAD} {{ y = RMSNormalization<axis = -1, epsilon = 0.000001>(x, w) }}"
    for tail in WEIGHTS:
        before = f"{HEAD} {{ {input_axes(body)} {tail} }}"
        assert_rewrites(FuseRmsnorm(), before, after, opset=23, ir_version=10)
        spelled = f"{HEAD} {{ {input_axes(CANONICAL)} {tail} }}".replace("(p, last)", "<keepdims = 1>(p, last)")
        assert_rewrites(FuseRmsnorm(form="decomposed"), before, spelled, opset=23, ir_version=10)


def test_axes_as_an_input() -> None:
    body = SPELLINGS["Llama, dynamo"].replace("<axes = [-1], keepdims = 1>(p)", "<keepdims = 1>(p, last)")
    wanted = CANONICAL.replace("<axes = [-1], keepdims = 1>(p)", "<keepdims = 1>(p, last)")
    before, after = (f"{HEAD} {{ {text} y = Mul(w, n) }}" for text in (body, wanted))
    assert_rewrites(FuseRmsnorm(), before, after, opset=18)
    assert_unchanged(FuseRmsnorm(), after, opset=18)


def test_what_mnn_fuses_already_is_left() -> None:
    for body in (CANONICAL, CANONICAL.replace("Pow(x, two)", "Mul(x, x)")):
        for tail in WEIGHTS:
            assert not assert_unchanged(FuseRmsnorm(), f"{HEAD} {{ {body} {tail} }}", opset=17).refusals


def test_without_weight() -> None:
    body = SPELLINGS["commuted"].replace(" n = ", " y = ")
    wanted = CANONICAL.replace(" n = ", " y = ")
    assert_rewrites(FuseRmsnorm(), f"{HEAD} {{ {body} }}", f"{HEAD} {{ {wanted} }}", opset=17)
    body = body.replace("<axes = [-1], keepdims = 1>(p)", "(p, last)")
    after = f"{HEAD} {{ y = RMSNormalization<axis = -1, epsilon = 0.000001>(x, ones) }}"
    assert_rewrites(FuseRmsnorm(), f"{HEAD} {{ {body} }}", after, opset=23, ir_version=10)


def test_operator_is_spelled_out() -> None:
    before = f"{HEAD} {{ y = RMSNormalization<axis = 2, epsilon = 0.000001>(x, w) }}"
    wanted = CANONICAL.replace("<axes = [-1], keepdims = 1>(p)", "<keepdims = 1>(p, last)")
    after = f"{HEAD} {{ {wanted} y = Mul(n, w) }}"
    assert_rewrites(FuseRmsnorm(form="decomposed"), before, after, opset=23, ir_version=10)
    assert_unchanged(FuseRmsnorm(), before, opset=23, ir_version=10)


def test_scale_of_ones_is_left_out() -> None:
    wanted = CANONICAL.replace("<axes = [-1], keepdims = 1>(p)", "<keepdims = 1>(p, last)").replace("n =", "y =")
    made = "f = Shape<start = -1>(x) u = ConstantOfShape<value = float[1] {1}>(f) y = RMSNormalization(x, u)"
    for body in (made, "y = RMSNormalization(x, ones)"):
        before = f"{HEAD} {{ {body} }}".replace("Normalization(x", "Normalization<epsilon = 0.000001>(x")
        after = f"{HEAD} {{ {wanted} }}"
        assert_rewrites(FuseRmsnorm(form="decomposed"), before, after, opset=23, ir_version=10)


def test_operator_over_two_axes_and_in_half_precision() -> None:
    fixed = HEAD.replace("[2,S,4]", "[2,3,4]")
    text = f"{fixed} {{ y = RMSNormalization<axis = -2>(x, w34) }}"
    graph = graph_of(text, opset=23, ir_version=10)
    assert FuseRmsnorm(form="decomposed").run(graph).modified
    assert_equal_outputs(parse(text, opset=23, ir_version=10), graph.to_model())
    text = """g (float16[2,S,4] x) => (float16[2,S,4] y) <float16[4] w = {15360, 16384, 16896, 17408}>
        { y = RMSNormalization(x, w) }"""
    graph = graph_of(text, opset=23, ir_version=10)
    assert FuseRmsnorm(form="decomposed").run(graph).modified
    assert graph.op_counts()["Cast"] == 2
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float16)
    before = parse(text, opset=23, ir_version=10)
    assert_equal_outputs(before, graph.to_model(), inputs={"x": x}, rtol=2e-3)


HALF = """g (float16[2,S,4] x) => (float16[2,S,4] y)
    <float16[4] w = {15360, 16384, 16896, 17408}, float two = {2}, float e = {0.000001}, int64[1] last = {-1}>
    { c = Cast<to = 1>(x) p = Pow(c, two) v = ReduceMean(p, last)
    a = Add(v, e) s = Sqrt(a) r = Reciprocal(s) n = Mul(c, r) h = Cast<to = 10>(n) y = Mul(w, h) }"""


@pytest.mark.parametrize(("opset", "ops"), [(18, 8), (23, 1)])
def test_half_precision_between_casts(opset: int, ops: int) -> None:
    graph = graph_of(HALF, opset=opset, ir_version=10)
    assert FuseRmsnorm().run(graph).counters == {"rmsnorm": 1}
    assert len(graph) == ops
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float16)
    before = parse(HALF, opset=opset, ir_version=10)
    assert_equal_outputs(before, graph.to_model(), inputs={"x": x}, rtol=2e-3)


def test_inside_a_subgraph() -> None:
    head = f"g (bool i, float[2,S,4] x) => (float[2,S,4] z) {CONSTANTS}"

    def model(body: str) -> str:
        other = "else_branch = l () => (float[2,S,4] u) { u = Identity(x) }"
        branch = f"then_branch = t () => (float[2,S,4] y) {{ {body} y = Mul(w, n) }}"
        return f"{head} {{ z = If(i) <{branch}, {other}> }}"

    assert_rewrites(FuseRmsnorm(), model(SPELLINGS["commuted"]), model(CANONICAL), opset=17)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{SPELLINGS['commuted']} z = Mul(n, w) y = Add(z, s)", "is used elsewhere"),
        (f"{SPELLINGS['commuted'].replace('[-1]', '[1]')} y = Mul(n, w)", "axes [-2]"),
        (f"{SPELLINGS['commuted'].replace('axes = [-1], ', '')} y = Mul(n, w)", "axes are not constant"),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    fixed = HEAD.replace("[2,S,4]", "[2,3,4]")
    assert_unchanged(FuseRmsnorm(), f"{fixed} {{ {body} }}", refuses=reason, opset=17)


def test_refusals_that_depend_on_the_model() -> None:
    text = f"{HEAD} {{ {SPELLINGS['commuted']} y = Mul(n, w) }}"
    assert_unchanged(FuseRmsnorm(form="op"), text, refuses="from opset 23", opset=17)
    output = text.replace("=> (float[2,S,4] y)", "=> (float[2,S,4] y, float[2,S,4] p)")
    assert_unchanged(FuseRmsnorm(), output, refuses="'p' inside the normalization", opset=17)
    unknown = text.replace("[2,S,4]", "[2,S,D]").replace("<axes = [-1], keepdims = 1>(p)", "(p, last)")
    assert_unchanged(FuseRmsnorm(), unknown, refuses="size of the last axes", opset=23, ir_version=10)


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceMean<axes = [-1]>(x) x2 = Sub(x, m) p = Pow(x2, two) v = ReduceMean<axes = [-1]>(p) "
        "a = Add(v, e) s = Sqrt(a) y = Div(x2, s)",
        "p = Pow(x, two) v = ReduceMean<axes = [-1]>(p) s = Sqrt(v) a = Add(s, e) y = Div(x, a)",
        "p = Pow(x, two) y = Sqrt(p)",
    ],
)
def test_look_alikes_are_left_without_a_word(body: str) -> None:
    assert not assert_unchanged(FuseRmsnorm(), f"{HEAD} {{ {body} }}", opset=17).refusals
