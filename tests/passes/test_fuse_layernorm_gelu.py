"""fuse-layernorm-gelu: both in one pass, pairs counted, whatever the spelling."""

from __future__ import annotations

import pytest

from graphkit.passes.fuse_layernorm_gelu import FuseLayernormGelu
from graphkit.testing import assert_rewrites, assert_unchanged

CONSTANTS = """<float[4] w = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}, float two = {2}, float e = {0.00001},
    float q = {1.4142135}, float o = {1}, float h = {0.5}, int64[1] last = {-1}>"""
HEAD = f"g (float[2,S,4] x) => (float[2,S,4] y) {CONSTANTS}"
NORM = """m = ReduceMean<axes = [-1], keepdims = 1>(x) d = Sub(x, m) p = Pow(d, two)
    v = ReduceMean<axes = [-1], keepdims = 1>(p) a = Add(v, e) s = Sqrt(a) n = Div(d, s)
    u = Mul(n, w) z = Add(u, b)"""
OPERATOR = "z = LayerNormalization<axis = -1, epsilon = 0.00001>(x, w, b)"
GELU = "f = Div(z, q) g = Erf(f) k = Add(g, o) i = Mul(z, h) y = Mul(i, k)"
FOR_MNN = "f = Div(z, q) g = Erf(f) k = Add(g, o) i = Mul(z, k) y = Mul(i, h)"


def input_axes(body: str) -> str:
    """The same with axes as an input (opset 18)."""
    return body.replace("<axes = [-1], keepdims = 1>(x)", "(x, last)").replace(
        "<axes = [-1], keepdims = 1>(p)", "(p, last)"
    )


def test_pair_becomes_two_operators() -> None:
    before, after = f"{HEAD} {{ {input_axes(NORM)} {GELU} }}", f"{HEAD} {{ {OPERATOR} y = Gelu(z) }}"
    result = assert_rewrites(FuseLayernormGelu(), before, after, opset=20)
    assert result.counters == {"layernorm": 1, "gelu": 1, "layernorm-gelu": 1}


@pytest.mark.parametrize(("opset", "form"), [(17, "auto"), (17, "mnn"), (18, "mnn")])
def test_pair_as_mnn_fuses_it(opset: int, form: str) -> None:
    body = NORM if opset < 18 else input_axes(NORM)
    before, after = f"{HEAD} {{ {body} {GELU} }}", f"{HEAD} {{ {OPERATOR} {FOR_MNN} }}"
    pass_ = FuseLayernormGelu(form=form)  # type: ignore[arg-type]
    result = assert_rewrites(pass_, before, after, opset=opset)
    assert result.counters["layernorm-gelu"] == 1


def test_pair_below_opset_17() -> None:
    before, after = f"{HEAD} {{ {NORM} {GELU} }}", f"{HEAD} {{ {NORM} {FOR_MNN} }}"
    result = assert_rewrites(FuseLayernormGelu(), before, after, opset=13)
    assert result.counters == {"gelu": 1, "layernorm-gelu": 1}


def test_operator_then_spelled_gelu() -> None:
    before, after = f"{HEAD} {{ {OPERATOR} {GELU} }}", f"{HEAD} {{ {OPERATOR} y = Gelu(z) }}"
    assert assert_rewrites(FuseLayernormGelu(), before, after, opset=20).counters["layernorm-gelu"] == 1


def test_gelu_alone_is_no_pair() -> None:
    before, after = f"{HEAD} {{ z = Relu(x) {GELU} }}", f"{HEAD} {{ z = Relu(x) y = Gelu(z) }}"
    assert assert_rewrites(FuseLayernormGelu(), before, after, opset=20).counters == {"gelu": 1}


def test_pairs_of_an_optimized_graph_are_still_counted() -> None:
    text = f"{HEAD} {{ {OPERATOR} y = Gelu(z) }}"
    assert assert_unchanged(FuseLayernormGelu(), text, opset=20).counters == {"layernorm-gelu": 1}


def test_refusals_of_both() -> None:
    head = HEAD.replace("=> (float[2,S,4] y)", "=> (float[2,S,4] y, float[2,S,4] d, float[2,S,4] k)")
    text = f"{head} {{ {NORM} {GELU} }}"
    result = assert_unchanged(FuseLayernormGelu(), text, refuses="'k' inside the Gelu", opset=17)
    assert {refusal.rule for refusal in result.refusals} == {"layernorm", "gelu"}
