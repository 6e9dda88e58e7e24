"""Graphs that were once rewritten wrongly, or never came to rest: found by random graphs and ONNX's own tests."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.optimizer import optimize
from graphkit.passes.canonicalize import Canonicalize
from graphkit.passes.fold_constants import FoldConstants
from graphkit.passes.fold_shapes import FoldShapes
from graphkit.passes.fuse_gelu import FuseGelu
from graphkit.passes.fuse_layernorm import FuseLayernorm
from graphkit.passes.fuse_pad import FusePad
from graphkit.passes.fuse_rmsnorm import FuseRmsnorm
from graphkit.passes.fuse_transposes import FuseTransposes
from graphkit.passes.spell_for_mnn import SpellForMnn
from graphkit.testing import assert_equal_outputs, assert_unchanged, graph_of, parse

SETTLES = {
    "an axis of a vector, which a view or a Gather could take": """g (float[N] x, int64 d) => (int64[M] y)
        <int64 zero = {0}> { s = Shape(x) n = Gather(s, zero) y = Range(zero, n, d) }""",
    "a shape in a branch that equals one outside": """g (float[1,A,B] x, int64 i, int64 j) => (float[C,D,E] y) {
        s = Shape(x) d = Gather(s, i) k = Equal(d, j)
        y = If(k) <else_branch = e () => (float[a,b,c] u) { u = Identity(x) },
            then_branch = t () => (float[a,b,c] v) <int64[1] r = {-1}> {
                q = Shape(x) f = Reshape(x, r) g = Relu(f) v = Reshape(g, q) }>
    }""",
    "sizes in a branch of what the outer graph has asked": """g (float[A,B,C] x) => (float[D,E,F] y)
        <int64 last = {-1}, int64 one = {1}> {
        w = Transpose<perm = [0, 2, 1]>(x) s = Shape(w) d = Gather(s, last) k = Equal(d, one)
        y = If(k) <else_branch = e () => (float[a,b,c] u) { u = Neg(w) },
            then_branch = t () => (float[a,b,c] v) <int64[1] r = {-1}> {
                q = Shape(w) f = Reshape(w, r) g = Relu(f) v = Reshape(g, q) }>
    }""",
}


@pytest.mark.parametrize("text", SETTLES.values(), ids=SETTLES)
@pytest.mark.parametrize("preset", ["default", "mnn"])
def test_presets_come_to_rest(text: str, preset: str) -> None:
    before = parse(text, opset=13)
    result = optimize(before, preset, verify="none")
    feeds = {name: np.array(1) for name in ("d", "i", "j") if f"int64 {name}" in text}
    rng = np.random.default_rng(0)
    shape = (1, 3, 4) if "1,A,B" in text else (2, 3, 4) if "A,B,C" in text else (5,)
    assert_equal_outputs(before, result.model, inputs={**feeds, "x": rng.standard_normal(shape).astype(np.float32)})


def test_a_known_value_that_went_with_another() -> None:
    text = """g (float[1,n,1] x) => (int64[1] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] minus = {-2}> {
        s = Shape(x) a = Slice(s, zero, one, zero) m = Mul(two, a) d = Div(m, minus) k = ReduceMax<keepdims = 1>(s)
        c = Concat<axis = 0>(d, k, d) y = Slice(c, zero, one, zero)
    }"""
    graph = graph_of(text)
    FoldShapes().run(graph)
    graph.check()
    assert_equal_outputs(parse(text), graph.to_model())


def test_the_whole_shape_stays_the_shape() -> None:
    text = """g (float[1,n,m] x, int64 i) => (int64 y) { s = Shape(x) y = Gather(s, i) }"""
    assert_unchanged(FoldShapes(), text)


def test_a_text_shows_the_type_it_was_made_from() -> None:
    text = "g (float[n] x) => (string[n] y) { a = Cast<to = 11>(x) y = Cast<to = 8>(a) }"
    assert_unchanged(Canonicalize(), text)


def test_split_to_sequence_whose_keepdims_is_read_in_two_ways() -> None:
    text = """g (float[n,4] x) => (float[n] y) <int64 one = {1}, int64 i = {0}>
        { s = SplitToSequence<axis = 1, keepdims = 0>(x, one) y = SequenceAt(s, i) }"""
    assert_unchanged(Canonicalize(), text, refuses="keepdims = 0 beside sizes")


def test_a_long_chain_of_concats_is_one_rewrite() -> None:
    chain = " ".join(f"a{i + 1} = Concat<axis = 0>(a{i}, x)" for i in range(50))
    text = f"g (float[n] x) => (float[m] y) {{ a0 = Concat<axis = 0>(x, x) {chain} y = Neg(a50) }}"
    graph = graph_of(text)
    result = Canonicalize().run(graph)
    assert len(result.changes) == 1
    assert graph.op_counts() == {"Concat": 1, "Neg": 1}
    assert_equal_outputs(parse(text), graph.to_model())


def test_concats_that_others_use_or_along_other_axes_stay() -> None:
    text = """g (float[n,2] x) => (float[a,b] y, float[c,d] z) {
        p = Concat<axis = 0>(x, x) q = Concat<axis = 1>(p, p) y = Concat<axis = 1>(q, p) z = Neg(p) }"""
    graph = graph_of(text)
    Canonicalize().run(graph)
    (joined,) = [node for node in graph.by_op("Concat") if node.outputs[0] == "y"]
    assert list(joined.inputs) == ["p", "p", "p"]
    assert_equal_outputs(parse(text), graph.to_model())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = Div(low, minus)", "overflows"),  # the process would end with SIGFPE
        ("c = Div(minus, zero)", "cannot run it"),
        ("c = Mod(minus, zero)", "cannot run it"),
    ],
)
def test_integers_that_have_no_quotient_are_left(body: str, reason: str) -> None:
    text = f"""g (int64[n] x) => (int64[n] y)
        <int64 low = {{-9223372036854775808}}, int64 minus = {{-1}}, int64 zero = {{0}}> {{ {body} y = Add(x, c) }}"""
    assert_unchanged(FoldConstants(), text, refuses=reason)


def test_the_maximum_over_an_axis_may_be_negative() -> None:
    text = """g (float[1,3,6,6] x) => (float[a,b,c,d] y) <int64[1] k = {1}, int64[8] p = {0,0,1,1,0,0,1,1}> {
        m = ReduceMax(x, k) a = Pad(m, p) y = MaxPool<kernel_shape = [3, 3]>(a) }"""
    assert_unchanged(FusePad(), text, refuses="could be the maximum")


def test_a_number_cut_to_an_integer_is_another_number() -> None:
    text = """g (float[n] x) => (float[n] y) <float r = {1.4142135}, float one = {1}, float h = {0.5}> {
        i = Cast<to = 7>(h) half = Cast<to = 1>(i) d = Div(x, r) e = Erf(d) a = Add(e, one)
        m = Mul(x, a) y = Mul(m, half) }"""
    assert_unchanged(FuseGelu(), text)


def test_transposes_that_meet_only_after_others_merged() -> None:
    text = """g (float[n,4,6,6] x) => (float[a,b,c,d] y) <float[1] two = {2}> {
        a = Transpose<perm = [3, 1, 2, 0]>(x) b = Mul(two, a) c = Transpose<perm = [2, 1, 0, 3]>(b)
        d = Sub(two, c) y = Transpose<perm = [2, 3, 0, 1]>(d) }"""
    graph = graph_of(text)
    FuseTransposes().run(graph)
    assert len(graph.by_op("Transpose")) == 1
    assert not FuseTransposes().run(graph).modified
    assert_equal_outputs(parse(text), graph.to_model())


@pytest.mark.parametrize(("cast", "dtype"), [("t = Cast<to = 7>(a)", "int64"), ("t = Cast<to = 11>(a)", "double")])
def test_a_spatial_mean_of_what_no_pool_takes_stays(cast: str, dtype: str) -> None:
    text = f"""g (float[1,2,5,5] x) => ({dtype}[a,b,c,d] y) <float[2,2,1,1] w = {{1, 2, 3, 4}}, int64[2] k = {{2, 3}}>
        {{ a = Conv(x, w) {cast} y = ReduceMean<keepdims = 1>(t, k) }}"""
    assert_unchanged(SpellForMnn(), text)


EMPTY = """g (float[2,n,0] x) => (float[a,b,c] y) <float e = {0.00001}, int64[1] k = {-1}> {
    %s q = Mul(v, v) w = ReduceMean<keepdims = 1>(q, k) s = Add(w, e) r = Sqrt(s) y = Div(v, r) }"""


def test_normalized_axes_without_elements_are_no_operator() -> None:
    centred = EMPTY % "m = ReduceMean<keepdims = 1>(x, k) v = Sub(x, m)"
    assert_unchanged(FuseLayernorm(), centred, refuses="unknown")
    assert_unchanged(FuseRmsnorm(), EMPTY.replace("(v", "(x").replace(", v)", ", x)") % "", opset=23, refuses="unknown")
