"""`cleanup`: each no-op in its near and far forms, dead code, duplicate weights, interfaces kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.cleanup import Cleanup
from graphkit.rewrite import PassResult
from graphkit.testing import assert_rewrites, assert_unchanged, canonical, graph_of, parse

CLEANUP = Cleanup()


def chain(op: str, types: tuple[str, str] = ("float[n,4,1]", "float[n,4,1]")) -> str:
    """`op` between two Relus, from x to y."""
    return f"agraph ({types[0]} x) => ({types[1]} y) {{ a = Relu(x)\n {op}\n y = Relu(b) }}"


def bare(types: tuple[str, str] = ("float[n,4,1]", "float[n,4,1]")) -> str:
    """What is left of `chain` when its middle goes."""
    return f"agraph ({types[0]} x) => ({types[1]} y) {{ a = Relu(x)\n y = Relu(a) }}"


NOOPS = [
    "b = Identity(a)",
    "b = Dropout(a)",
    "r = Constant<value = float {0.3}>() t = Constant<value = bool {0}>() b = Dropout(a, r, t)",
    "r = Constant<value = float {0.0}>() t = Constant<value = bool {1}>() b = Dropout(a, r, t)",
    "b = Cast<to = 1>(a)",
    "b = CastLike(a, x)",
    "s = Constant<value = int64[3] {0, 4, 1}>() b = Reshape(a, s)",
    "s = Constant<value = int64[3] {-1, 4, 1}>() b = Reshape(a, s)",
    "s = Constant<value = int64[3] {0, 0, -1}>() b = Reshape(a, s)",
    "s = Shape(x) b = Reshape(a, s)",
    "s = Constant<value = int64[2] {1, 1}>() b = Expand(a, s)",
    "s = Constant<value = int64[2] {4, 1}>() b = Expand(a, s)",
    "s = Shape(a) b = Expand(a, s)",
    "b = Transpose<perm = [0, 1, 2]>(a)",
    "s = Constant<value = int64[2] {0, -9}>() e = Constant<value = int64[2] {9223372036854775807, 4}>()"
    "b = Slice(a, s, e)",
    "b = Concat<axis = 1>(a)",
    "b = Sum(a)",
    'p = Constant<value = int64[6] {0, 0, 0, 0, 0, 0}>() b = Pad<mode = "reflect">(a, p)',
    "k = Constant<value = int64[1] {2}>() b = ReduceMean<keepdims = 1>(a, k)",
    "z = Constant<value = float {0.0}>() b = Add(a, z)",
    "z = Constant<value = float[1] {0.0}>() b = Add(z, a)",
    "z = Constant<value = float[1,1,1] {1.0}>() b = Mul(z, a)",
    "z = Constant<value = float {1.0}>() b = Div(a, z)",
    "z = Constant<value = float {1.0}>() b = Pow(a, z)",
    "z = Constant<value = float {0.0}>() b = Sub(a, z)",
]


@pytest.mark.parametrize("op", NOOPS)
def test_no_op_goes(op: str) -> None:
    assert_rewrites(CLEANUP, chain(op), bare())


def test_no_op_goes_in_float16() -> None:
    half = ("float16[2]", "float16[2]")
    assert_rewrites(CLEANUP, chain("z = Constant<value = float16 {15360}>() b = Mul(a, z)", half), bare(half))


KEPT = [
    "h = Cast<to = 10>(a) b = Cast<to = 1>(h)",
    "s = Constant<value = int64[3] {0, 2, 2}>() b = Reshape(a, s)",
    "s = Constant<value = int64[3] {1, 4, -1}>() b = Reshape(a, s)",
    "s = Constant<value = int64[4] {1, 1, 1, 1}>() b = Expand(a, s)",
    "s = Constant<value = int64[1] {2}>() b = Expand(a, s)",
    "b = Transpose(a)",
    "b = Transpose<perm = [0, 2, 1]>(a)",
    "s = Constant<value = int64[1] {0}>() e = Constant<value = int64[1] {-1}>() b = Slice(a, s, e)",
    "s = Constant<value = int64[1] {0}>() e = Constant<value = int64[1] {4}>() b = Slice(a, s, e)",
    "s = Constant<value = int64[1] {-4}>() e = Constant<value = int64[1] {99}>()"
    "k = Constant<value = int64[1] {0}>() b = Slice(a, s, e, k)",
    "s = Constant<value = int64[1] {-1}>() e = Constant<value = int64[1] {-99}>()"
    "k = Constant<value = int64[1] {1}>() t = Constant<value = int64[1] {-1}>() b = Slice(a, s, e, k, t)",
    "z = Constant<value = float {1.0}>() b = Div(z, a)",
    "z = Constant<value = float {0.0}>() b = Sub(z, a)",
    "p = Constant<value = int64[6] {0, 0, 0, 0, 1, -1}>() b = Pad(a, p)",
    "k = Constant<value = int64[1] {0}>() b = ReduceMean<keepdims = 1>(a, k)",
]


@pytest.mark.parametrize("op", KEPT)
def test_near_miss_stays(op: str) -> None:
    assert_unchanged(CLEANUP, f"agraph (float[n,4,1] x) => (y) {{ a = Relu(x)\n {op}\n y = Neg(b) }}")


def test_constant_that_adds_an_axis_is_refused() -> None:
    assert_unchanged(
        CLEANUP,
        "agraph (float[n] x) => (float[1,n] y) { z = Constant<value = float[1,1] {0.0}>() y = Add(x, z) }",
        refuses="may add axes",
    )


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        ("t = Constant<value = bool {1}>() y = Dropout(x, r, t)", 13, "training mode"),
        ("y = Dropout(x, r, t)", 13, "training mode"),
        ("p, m = Dropout(x, r) z = Cast<to = 1>(m) y = Add(p, z)", 13, "mask output"),
        ("s = Neg(r) p = Dropout<is_test = 0>(x) y = Add(p, s)", 6, "training mode"),
    ],
)
def test_training_dropout_is_refused(text: str, opset: int, reason: str) -> None:
    inputs = "float[n] x, bool t" if ", t)" in text and "t =" not in text else "float[n] x"
    before = f"agraph ({inputs}) => (y) <float r = {{0.5}}> {{ {text} }}"
    assert_unchanged(CLEANUP, before, refuses=reason, opset=opset)


def test_dropout_of_old_opsets() -> None:
    graph = graph_of(chain("b, m = Dropout<ratio = 0.5>(a)"), opset=7)
    CLEANUP.run(graph)
    assert [node.op for node in graph.nodes] == ["Relu", "Relu"]
    graph = graph_of(chain("b, m = Dropout<is_test = 1>(a)"), opset=6)
    CLEANUP.run(graph)
    assert [node.op for node in graph.nodes] == ["Relu", "Relu"]


def test_identity_between_input_and_output_stays() -> None:
    assert_unchanged(CLEANUP, "agraph (float[n] x) => (float[n] y) { y = Identity(x) }")


def test_two_outputs_of_one_value_keep_one_identity() -> None:
    assert_rewrites(
        CLEANUP,
        "agraph (float[n] x) => (float[n] y, float[n] z) { a = Relu(x) y = Identity(a) z = Identity(a) }",
        "agraph (float[n] x) => (float[n] y, float[n] z) { y = Relu(x) z = Identity(y) }",
    )


def test_no_op_that_makes_an_output_of_an_input_becomes_identity() -> None:
    assert_rewrites(
        CLEANUP,
        "agraph (float[n] x) => (float[n] y) { y = Cast<to = 1>(x) }",
        "agraph (float[n] x) => (float[n] y) { y = Identity(x) }",
    )


def test_constant_as_output_keeps_its_identity() -> None:
    assert_unchanged(CLEANUP, "agraph () => (float[1] y) <float[1] w = {1.0}> { y = Identity(w) }")


BRANCHES = """agraph (bool c, float[n] x) => (float[n] y) {{
    a = Relu(x)
    {call} = If (c) <
        then_branch = t () => ({then}) {{ p = Abs(a) q = Identity(p) {more} }},
        else_branch = e () => ({other}) {{ {swap} }}
    >
    y = Neg(b)
}}"""


def test_subgraphs_are_cleaned_and_their_outputs_of_outer_values_kept() -> None:
    before = BRANCHES.format(call="b", then="q", other="r", more="dead = Neg(a)", swap="r = Identity(a)")
    after = BRANCHES.format(call="b", then="q", other="r", more="", swap="r = Identity(a)").replace(
        "p = Abs(a) q = Identity(p)", "q = Abs(a)"
    )
    assert_rewrites(CLEANUP, before, after, inputs={"c": np.array(False), "x": np.ones(2, np.float32)})


def test_unused_outputs_of_if_go_in_all_branches() -> None:
    before = BRANCHES.format(
        call="d, b", then="s, q", other="u, r", more="s = Exp(a)", swap="u = Cos(a) r = Sin(a)"
    )
    after = BRANCHES.format(call="b", then="q", other="r", more="", swap="r = Sin(a)").replace(
        "p = Abs(a) q = Identity(p)", "q = Abs(a)"
    )
    result = assert_rewrites(
        CLEANUP, before, after, inputs={"c": np.array(True), "x": np.ones(2, np.float32)}
    )
    assert result.counters["unused node"] >= 3


def test_what_only_a_dead_subgraph_node_used_goes_too() -> None:
    text = BRANCHES.format(call="b", then="q", other="r", more="dead = Neg(k)", swap="r = Identity(a)")
    graph = graph_of(text.replace("a = Relu(x)", "a = Relu(x) k = Exp(x)"))
    CLEANUP.run(graph)
    assert graph.producer("k") is None


def test_unused_optional_outputs_are_dropped_but_not_those_of_lstm() -> None:
    assert_rewrites(
        CLEANUP,
        "agraph (float[1,1,4,4] x) => (float[1,1,2,2] y) { y, i = MaxPool<kernel_shape = [2, 2]>(x) }",
        "agraph (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }",
    )
    assert_unchanged(
        CLEANUP,
        "agraph (float[2,1,3] x, float[1,8,3] w, float[1,8,2] r) => (y)"
        "{ y, h, c = LSTM<hidden_size = 2>(x, w, r) }",
    )


def test_equal_initializers_are_merged_by_type_shape_and_bytes() -> None:
    before = """agraph (float[2] x) => (float[1,2] y)
        <float[2] a = {1.0, 2.0}, float[2] b = {1.0, 2.0}, float[1,2] c = {1.0, 2.0}, float[2] d = {1.0, 3.0},
         float[2] unused = {1.0, 2.0}>
        { p = Add(x, a) q = Sub(p, b) r = Sub(q, c) y = Sub(r, d) }"""
    after = """agraph (float[2] x) => (float[1,2] y)
        <float[2] a = {1.0, 2.0}, float[1,2] c = {1.0, 2.0}, float[2] d = {1.0, 3.0}>
        { p = Add(x, a) q = Sub(p, a) r = Sub(q, c) y = Sub(r, d) }"""
    assert_rewrites(CLEANUP, before, after)
    graph = graph_of(before)
    CLEANUP.run(graph)
    assert list(graph.initializers) == ["a", "c", "d"]


def test_large_equal_weights_share_one_and_different_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    other = weight.copy()
    other[32, 32] += 1  # equal at both ends
    proto = parse("agraph (float[64] x) => (y) { p = Add(x, a) q = Sub(p, b) y = Sub(q, c) }").proto
    for name, array in (("a", weight), ("b", weight), ("c", other)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = Graph.of(Model.from_proto(proto))
    result = CLEANUP.run(graph)
    assert result.counters == {"duplicate initializer": 1}
    assert list(graph.initializers) == ["a", "c"]


def test_minus_zero_and_zero_are_different_weights() -> None:
    text = (
        "agraph (float[1] x) => (y) <float[1] a = {0.5}, float[1] b = {0.5}> { p = Add(x, a) y = Div(p, b) }"
    )
    graph = graph_of(text)
    graph.set_initializer("a", np.array([0.0], np.float32))
    graph.set_initializer("b", np.array([-0.0], np.float32))
    CLEANUP.run(graph)
    assert "b" in graph.initializers


def test_initializers_of_ir_version_3_become_constants() -> None:
    text = """<ir_version: 3, opset_import: ["" : 11]>
        agraph (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""
    graph = graph_of(text)
    state = graph.snapshot()
    result = CLEANUP.run(graph)
    assert graph.inputs == ["x"]
    assert result.counters == {"default value": 1}
    assert graph.to_model().proto.ir_version == 4
    onnx.checker.check_model(graph.to_model().proto)
    graph.restore(state)
    assert graph.to_model().proto.ir_version == 3


def test_default_values_of_inputs_stay_unless_asked() -> None:
    text = "agraph (float[2] x, float[2] w) => (y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"
    assert_unchanged(CLEANUP, text, refuses="freeze_defaults=true")
    graph = graph_of(text)
    Cleanup(freeze_defaults=True).run(graph)
    assert graph.inputs == ["x"]
    assert graph.is_constant("w")


def test_unused_inputs_stay_unless_asked() -> None:
    text = "agraph (float[n] x, float[n] z) => (float[n] y) { y = Relu(x) }"
    assert_unchanged(CLEANUP, text)
    graph = graph_of(text)
    Cleanup(remove_unused_inputs=True).run(graph)
    assert graph.inputs == ["x"]


def test_unused_functions_and_imports_go() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "local": 1, "com.microsoft": 1]>
        agraph (float[n] x) => (float[n] y) { y = local.used(x) }
        <opset_import: ["": 18, "local": 1], domain: "local"> used (a) => (b) { b = local.inner(a) }
        <opset_import: ["": 18], domain: "local"> inner (a) => (b) { b = Relu(a) }
        <opset_import: ["": 18], domain: "local"> unused (a) => (b) { b = Relu(a) }"""
    graph = graph_of(text)
    result = CLEANUP.run(graph)
    assert [name for _, name, _ in graph.functions] == ["used", "inner"]
    assert graph.opsets == {"": 18, "local": 1}
    assert [change.node for change in result.changes] == ["local::unused", "com.microsoft"]
    onnx.checker.check_model(graph.to_model().proto)


def test_every_change_asks_the_gate() -> None:
    text = chain("b = Identity(a) d1 = Neg(a) d2 = Neg(d1)").replace("{", "<float[1] w = {1.0}> {", 1)
    full = CLEANUP.run(graph_of(text))
    for limit in range(len(full.changes) + 1):
        graph = graph_of(text)
        result = _run_limited(graph, limit)
        assert len(result.changes) == limit
        graph.check()


def _run_limited(graph: Graph, limit: int) -> PassResult:
    asked = 0

    def gate(node: str, what: str) -> bool:
        nonlocal asked
        asked += 1
        return asked <= limit

    graph.gate = gate
    return CLEANUP.run(graph)


def test_second_run_changes_nothing() -> None:
    graph = graph_of(chain("b = Identity(a)"))
    CLEANUP.run(graph)
    lines = canonical(graph)
    assert not CLEANUP.run(graph).modified
    assert canonical(graph) == lines
