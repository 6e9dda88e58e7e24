"""fuse-gelu: every spelling of exporters, what it must leave alone, and where it says why."""

from __future__ import annotations

import pytest

from graphkit.passes.fuse_gelu import FuseGelu
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of

CONSTANTS = """<float r = {0.70710677}, float q = {1.4142135}, float h = {0.5}, float[1] h1 = {0.5},
    float o = {1.0}, float two = {2.0}, float three = {3.0}, float k = {0.044715}, float c = {0.7978846},
    float ck = {0.035677407}, float c2 = {1.5957692}, float ck2 = {0.071354814}, float wrong = {0.6},
    float quick = {1.702}, float[1,1,1,1] high = {0.5}>"""
HEAD = f"g (float[2,S,8] x) => (float[2,S,8] y) {CONSTANTS}"
OP = {"none": f"{HEAD} {{ y = Gelu(x) }}", "tanh": f'{HEAD} {{ y = Gelu<approximate="tanh">(x) }}'}
MNN_ERF = f"{HEAD} {{ a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h) }}"
MNN_TANH = f"""{HEAD} {{ s = Mul(x, x) m = Mul(s, ck2) a = Add(m, c2) u = Mul(x, a) t = Sigmoid(u)
    y = Mul(x, t) }}"""

ERF = {
    "torch": "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h)",
    "commuted": "a = Mul(r, x) b = Erf(a) d = Add(o, b) e = Mul(d, x) y = Mul(h, e)",
    "half on x": "a = Mul(x, r) b = Erf(a) d = Add(b, o) e = Mul(x, h) y = Mul(e, d)",
    "half on the sum": "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(d, h) y = Mul(x, e)",
    "divided by two": "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Div(e, two)",
    "half of x divided": "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Div(x, two) y = Mul(d, e)",
    "distribution": "a = Div(x, q) b = Erf(a) d = Mul(b, h) e = Add(d, h) y = Mul(x, e)",
    "rank-1 half": "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h1)",
    "root in the graph": "s = Sqrt(two) a = Div(x, s) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h)",
    "Constant nodes": """u = Constant<value = float {1.4142135}>() v = Constant<value = float {1.0}>()
        w = Constant<value = float {0.5}>()
        a = Div(x, u) b = Erf(a) d = Add(b, v) e = Mul(x, d) y = Mul(e, w)""",
}
TANH = {
    "MNN's": "p = Pow(x, three) m = Mul(p, k) a = Add(x, m) n = Mul(a, c) t = Tanh(n) "
    "d = Add(t, o) e = Mul(d, h) y = Mul(x, e)",
    "Hugging Face": "p = Pow(x, three) m = Mul(k, p) a = Add(x, m) n = Mul(c, a) t = Tanh(n) "
    "d = Add(o, t) e = Mul(h, x) y = Mul(e, d)",
    "torch products": "s = Mul(x, x) p = Mul(s, x) m = Mul(p, k) a = Add(x, m) n = Mul(a, c) t = Tanh(n) "
    "d = Add(t, o) e = Mul(x, h) y = Mul(e, d)",
    "fast": "xc = Mul(x, c) xk = Mul(x, k) s = Mul(xk, x) a = Add(s, o) n = Mul(xc, a) t = Tanh(n) "
    "d = Add(t, o) e = Mul(x, h) y = Mul(e, d)",
    "expanded": "p = Pow(x, three) m = Mul(p, ck) xc = Mul(x, c) n = Add(xc, m) t = Tanh(n) "
    "d = Add(t, o) e = Mul(x, d) y = Mul(e, h)",
}


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("body", ERF.values(), ids=ERF)
def test_erf_spellings_become_the_operator(body: str, opset: int) -> None:
    result = assert_rewrites(FuseGelu(), f"{HEAD} {{ {body} }}", OP["none"], opset=opset, ir_version=10)
    assert result.counters == {"gelu": 1}


@pytest.mark.parametrize("body", TANH.values(), ids=TANH)
def test_tanh_spellings_become_the_operator(body: str) -> None:
    assert_rewrites(FuseGelu(), f"{HEAD} {{ {body} }}", OP["tanh"], opset=20)


@pytest.mark.parametrize("body", [v for k, v in ERF.items() if k != "torch" and "Constant" not in k])
def test_erf_spellings_become_mnns_below_opset_20(body: str) -> None:
    assert_rewrites(FuseGelu(), f"{HEAD} {{ {body} }}", MNN_ERF, opset=17)
    assert_rewrites(FuseGelu(form="mnn"), f"{HEAD} {{ {body} }}", MNN_ERF, opset=20)


@pytest.mark.parametrize("body", TANH.values(), ids=TANH)
def test_tanh_spellings_become_exact_ones_for_mnn(body: str) -> None:
    for opset in (17, 20):
        assert_rewrites(FuseGelu(form="mnn"), f"{HEAD} {{ {body} }}", MNN_TANH, opset=opset)
    assert not assert_unchanged(FuseGelu(), f"{HEAD} {{ {body} }}", opset=17).refusals


@pytest.mark.parametrize("text", [MNN_ERF, MNN_TANH, MNN_ERF.replace("Div(x, q)", "Mul(x, r)")])
def test_what_is_right_in_mnn_already_is_left(text: str) -> None:
    for form in ("auto", "mnn"):
        assert not assert_unchanged(FuseGelu(form=form), text, opset=17).refusals  # type: ignore[arg-type]


def test_operators_are_spelled_out_for_mnn() -> None:
    assert_rewrites(FuseGelu(form="mnn"), OP["none"], MNN_ERF, opset=20)
    assert_rewrites(FuseGelu(form="mnn"), OP["tanh"], MNN_TANH, opset=20)
    assert_unchanged(FuseGelu(form="mnn", approx="none"), OP["tanh"], opset=20)
    for text in OP.values():
        assert_unchanged(FuseGelu(), text, opset=20)


def test_tanh_by_sigmoid_becomes_the_operator() -> None:
    assert_rewrites(FuseGelu(), MNN_TANH, OP["tanh"], opset=20)


def test_float16_constants_within_their_rounding() -> None:
    text = """g (float16[2,S,8] x) => (float16[2,S,8] y)
        <float16 q = {15784}, float16 h = {14336}, float16 o = {15360}>
        { a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, h) y = Mul(e, d) }"""
    graph = graph_of(text, opset=20)
    assert FuseGelu().run(graph).modified
    assert graph.op_counts() == {"Gelu": 1}
    graph = graph_of(text, opset=17)
    assert FuseGelu().run(graph).modified
    assert {str(graph.constant(name).dtype) for name in graph.initializers} == {"float16"}  # type: ignore[union-attr]


def test_inside_a_subgraph_with_x_from_outside() -> None:
    head = f"g (bool b, float[2,S,8] x) => (float[2,S,8] z) {CONSTANTS}"
    body = "a = Mul(x, r) f = Erf(a) d = Add(f, o) e = Mul(x, h) y = Mul(e, d)"
    other = "else_branch = e () => (float[2,S,8] w) { w = Identity(x) }"
    before = f"{head} {{ z = If(b) <then_branch = t () => (float[2,S,8] y) {{ {body} }}, {other}> }}"
    after = f"{head} {{ z = If(b) <then_branch = t () => (float[2,S,8] y) {{ y = Gelu(x) }}, {other}> }}"
    assert_rewrites(FuseGelu(), before, after, opset=20)


def test_two_in_a_row() -> None:
    body = "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y1 = Mul(e, h) " + (
        "a2 = Div(y1, q) b2 = Erf(a2) d2 = Add(b2, o) e2 = Mul(y1, d2) y = Mul(e2, h)"
    )
    assert_rewrites(FuseGelu(), f"{HEAD} {{ {body} }}", f"{HEAD} {{ y1 = Gelu(x) y = Gelu(y1) }}", opset=20)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, wrong)", "the factor is 0.6"),
        (
            "a = Div(x, two) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h)",
            "argument of Erf is not x/√2",
        ),
        (
            "a = Div(x, q) b = Erf(a) y1 = Add(b, o) e = Mul(x, y1) z = Mul(e, h) y = Add(z, y1)",
            "used by 2 nodes",
        ),
        ("a = Div(x, q) b = Erf(a) d = Add(b, o) z = Mul(d, h) y = Relu(z)", "not multiplied by x"),
        (
            "a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) z = Mul(e, h) y = Add(z, a)",
            "used elsewhere",
        ),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    assert_unchanged(FuseGelu(), f"{HEAD} {{ {body} }}", refuses=reason, opset=20)


def test_inner_graph_output_is_refused() -> None:
    text = f"{HEAD} {{ a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h) }}"
    text = text.replace("(float[2,S,8] y)", "(float[2,S,8] y, float[2,S,8] e)")
    assert_unchanged(FuseGelu(), text, refuses="'e' inside the Gelu is a graph output", opset=20)


def test_operator_needs_opset_20() -> None:
    assert_unchanged(FuseGelu(form="op"), f"{HEAD} {{ {ERF['half on x']} }}", refuses="opset 20", opset=19)


def test_only_the_form_that_was_asked_for() -> None:
    assert_unchanged(FuseGelu(approx="tanh"), f"{HEAD} {{ {ERF['torch']} }}", opset=20)
    assert_unchanged(FuseGelu(approx="none"), f"{HEAD} {{ {TANH['fast']} }}", opset=20)


@pytest.mark.parametrize(
    "body",
    [
        "y = Tanh(x)",
        "y = Erf(x)",
        "a = Mul(x, quick) s = Sigmoid(a) y = Mul(x, s)",
        "t = Tanh(x) a = Add(t, o) y = Mul(a, h)",
        "t = Tanh(x) y = Mul(x, t)",
    ],
)
def test_other_functions_are_left_without_a_word(body: str) -> None:
    assert not assert_unchanged(FuseGelu(), f"{HEAD} {{ {body} }}", opset=20).refusals


def test_scalar_that_adds_axes_is_no_scalar() -> None:
    text = f"{HEAD} {{ a = Div(x, q) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, high) }}"
    assert_unchanged(FuseGelu(), text.replace("(float[2,S,8] y)", "(float[1,2,S,8] y)"), opset=20)
