"""`cse`: what is merged, what only looks equal, names of outputs, subgraphs, the gate."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.passes.cse import Cse
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of

CSE = Cse()
HEAD = "agraph (float[n] x, float[n] z) => (float[n] y)"


@pytest.mark.parametrize(
    ("twice", "once"),
    [
        ("a = Exp(x) b = Exp(x) y = Add(a, b)", "a = Exp(x) y = Add(a, a)"),
        ("a = Add(x, z) b = Add(z, x) y = Mul(a, b)", "a = Add(x, z) y = Mul(a, a)"),
        (
            "a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Sub(c, d)",
            "a = Exp(x) c = Neg(a) y = Sub(c, c)",
        ),
        (
            "a = HardSigmoid<alpha = 0.3, beta = 0.4>(x) b = HardSigmoid<beta = 0.4, alpha = 0.3>(x)y = Mul(a, b)",
            "a = HardSigmoid<alpha = 0.3, beta = 0.4>(x) y = Mul(a, a)",
        ),
        (
            "p = Constant<value_float = 2.0>() q = Constant<value = float {2.0}>()"
            "a = Mul(x, p) b = Mul(x, q) y = Add(a, b)",
            "p = Constant<value_float = 2.0>() a = Mul(x, p) y = Add(a, a)",
        ),
    ],
)
def test_equal_nodes_are_merged(twice: str, once: str) -> None:
    assert_rewrites(CSE, f"{HEAD} {{ {twice} }}", f"{HEAD} {{ {once} }}")


@pytest.mark.parametrize(
    "text",
    [
        "a = Sub(x, z) b = Sub(z, x) y = Mul(a, b)",
        "a = Div(x, z) b = Div(z, x) y = Mul(a, b)",
        "a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x) y = Add(a, b)",
        "a = LeakyRelu(x) b = LeakyRelu<alpha = 0.2>(x) y = Add(a, b)",
        "a = Max(x, z) b = Min(x, z) y = Add(a, b)",
        "p = Constant<value = float {2.0}>() q = Constant<value = float[1] {2.0}>()a = Mul(x, p) y = Mul(a, q)",
        "p = Constant<value = float {0.0}>() q = Neg(p) a = Div(x, p) y = Div(a, q)",
    ],
)
def test_near_misses_stay(text: str) -> None:
    assert_unchanged(CSE, f"{HEAD} {{ {text} }}")


def test_zero_and_minus_zero_are_different_constants() -> None:
    graph = graph_of(f"{HEAD} {{ a = Add(x, z) y = Neg(a) }}")
    for name, value in (("p", 0.0), ("q", -0.0)):
        tensor = onnx.numpy_helper.from_array(np.array(value, np.float32))
        graph.insert(onnx.helper.make_node("Constant", [], [name], value=tensor))
    assert not CSE.run(graph).modified


def test_random_operators_are_refused() -> None:
    random, plain = "t () => (p) { p = RandomNormalLike(x) }", "e () => (q) { q = Neg(x) }"
    conditional = f"If (c) <then_branch = {random}, else_branch = {plain}>"
    assert_unchanged(
        CSE,
        f"{HEAD} {{ a = RandomNormalLike<seed = 1.0>(x) b = RandomNormalLike<seed = 1.0>(x) y = Sub(a, b) }}",
        refuses="random",
    )
    assert_unchanged(
        CSE,
        f"agraph (bool c, float[n] x) => (y) {{ a = {conditional} b = {conditional} y = Sub(a, b) }}",
        refuses="contains",
    )


def test_sequences_are_left_alone() -> None:
    """onnxruntime inserts in place into a sequence that a Loop carries, so two empty ones must stay two."""
    graph = graph_of(
        """agraph (float[n] x) => (int64 y) { a = SequenceEmpty<dtype = 1>() b = SequenceEmpty<dtype = 1>()
        c = SequenceInsert(a, x) d = SequenceLength(c) e = SequenceLength(b) y = Sub(d, e) }"""
    )
    CSE.run(graph)
    assert graph.op_counts()["SequenceEmpty"] == 2


def test_custom_domains_are_left_alone() -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18, "other": 1]>
    {HEAD} {{ a = other.Draw(x) b = other.Draw(x) y = Add(a, b) }}"""
    assert not CSE.run(graph_of(text)).modified


def test_outputs_keep_their_names() -> None:
    head = "agraph (float16[n] x) => (float16[n] y, float16[n] z)"
    assert_rewrites(
        CSE,
        f"{head} {{ a = Exp(x) y = Exp(x) z = Neg(a) }}",
        f"{head} {{ y = Exp(x) z = Neg(y) }}",
    )
    assert_rewrites(
        CSE,
        f"{head} {{ y = Exp(x) z = Exp(x) }}",
        f"{head} {{ y = Exp(x) z = Identity(y) }}",
    )
    assert_unchanged(CSE, f"{head} {{ y = Identity(x) z = Identity(x) }}")


def test_renamed_outputs_stay_known() -> None:
    assert_rewrites(
        CSE,
        "agraph (float[n] x) => (float[n] y, float[n] w){ a = Exp(x) b = Neg(a) y = Exp(x) c = Neg(y) w = Add(b, c) }",
        "agraph (float[n] x) => (float[n] y, float[n] w) { y = Exp(x) b = Neg(y) w = Add(b, b) }",
    )


def test_several_outputs() -> None:
    head = "agraph (float[n,6] x) => (float[n,3] y)"
    assert_rewrites(
        CSE,
        f"{head} {{ a, b = Split<axis = 1, num_outputs = 2>(x) c, d = Split<axis = 1, num_outputs = 2>(x)"
        "e = Add(a, d) y = Sub(e, c) }",
        f"{head} {{ a, b = Split<axis = 1, num_outputs = 2>(x) e = Add(a, b) y = Sub(e, a) }}",
    )
    assert_unchanged(
        CSE,
        "agraph (float[1,1,4,4] x) => (y) { a, i = MaxPool<kernel_shape = [2, 2]>(x)"
        "b = MaxPool<kernel_shape = [2, 2]>(x) y = Add(a, b) }",
    )


BRANCHES = """agraph (bool c, float[n] x) => (float[n] y) {{
    a = Exp(x)
    b = If (c) <then_branch = t () => (p) {{ {then} }}, else_branch = e () => (q) {{ {other} }}>
    d = {after}
    y = Add(b, d)
}}"""


def feeds(c: bool) -> dict[str, np.ndarray]:
    return {"c": np.array(c), "x": np.array([0.5, -1.0], np.float32)}


@pytest.mark.parametrize("c", [False, True])
def test_subgraphs_use_what_was_computed_around_them(c: bool) -> None:
    assert_rewrites(
        CSE,
        BRANCHES.format(then="k = Exp(x) p = Neg(k)", other="q = Exp(x)", after="Sin(a)"),
        BRANCHES.format(then="p = Neg(a)", other="q = Identity(a)", after="Sin(a)"),
        inputs=feeds(c),
    )


def test_what_a_branch_computes_is_not_used_outside_it() -> None:
    assert_unchanged(CSE, BRANCHES.format(then="p = Cos(a)", other="q = Cos(a)", after="Cos(a)"))


def test_names_that_branches_share_are_different_values() -> None:
    assert_rewrites(
        CSE,
        BRANCHES.format(then="k = Exp(x) p = Neg(k)", other="k = Cos(x) q = Neg(k)", after="Neg(a)"),
        BRANCHES.format(then="p = Neg(a)", other="k = Cos(x) q = Neg(k)", after="Neg(a)"),
        inputs=feeds(False),
    )


def test_equal_ifs_are_merged() -> None:
    one = "If (c) <then_branch = t () => (p) { p = Sin(x) }, else_branch = e () => (q) { q = Neg(x) }>"
    assert_rewrites(
        CSE,
        f"agraph (bool c, float[n] x) => (float[n] y) {{ a = {one} b = {one} y = Add(a, b) }}",
        f"agraph (bool c, float[n] x) => (float[n] y) {{ a = {one} y = Add(a, a) }}",
        inputs=feeds(True),
    )


def test_old_broadcast_is_not_commutative() -> None:
    text = "agraph (float[2] x, float[2] z) => (y) { a = Add(x, z) b = Add(z, x) y = Mul(a, b) }"
    assert_unchanged(CSE, text, opset=6)


def test_every_change_asks_the_gate() -> None:
    text = f"{HEAD} {{ a = Exp(x) b = Exp(x) c = Exp(x) d = Add(a, b) y = Add(d, c) }}"
    for limit in range(3):
        graph, asked = graph_of(text), []
        graph.gate = lambda node, what, asked=asked, limit=limit: asked.append(what) or len(asked) <= limit
        assert len(CSE.run(graph).changes) == limit
        assert len(graph.by_op("Exp")) == 3 - limit
