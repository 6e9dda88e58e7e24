"""`cleanup`: each no-op in its near and far forms, dead code, duplicate weights, interfaces kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit import shapes
from graphkit.graph import Graph
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
    "h = Shape<start = 0, end = 1>(x) s = Constant<value = int64[1] {0}>() b = Slice(a, s, h, s)",
    "b = Split<axis = 1, num_outputs = 1>(a)",
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
    before = BRANCHES.format(call="d, b", then="s, q", other="u, r", more="s = Exp(a)", swap="u = Cos(a) r = Sin(a)")
    after = BRANCHES.format(call="b", then="q", other="r", more="", swap="r = Sin(a)").replace(
        "p = Abs(a) q = Identity(p)", "q = Abs(a)"
    )
    result = assert_rewrites(CLEANUP, before, after, inputs={"c": np.array(True), "x": np.ones(2, np.float32)})
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
        "agraph (float[2,1,3] x, float[1,8,3] w, float[1,8,2] r) => (y){ y, h, c = LSTM<hidden_size = 2>(x, w, r) }",
    )


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


def test_a_wrong_declared_shape_is_not_believed() -> None:
    """Peers trust the shape that a file declares for an inner value, and drop the Reshape."""
    model = parse(
        """agraph (float[2,6] x) => (float[a,b] y) <int64[2] s = {3, 4}>
        { t = Relu(x) r = Reshape(t, s) y = Neg(r) }"""
    )
    model.proto.graph.value_info.append(onnx.helper.make_tensor_value_info("t", 1, [3, 4]))
    graph = Graph.of(model)
    assert not CLEANUP.run(graph).modified
    shapes.infer(graph)
    assert not CLEANUP.run(graph).modified


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


ZERO_BIAS = """
g (float[N, 4] x) => (float[N, 4] y)
<float[4] b = {0.0, 0.0, 0.0, 0.0}>
{ a = Relu(x) d = Add(b, a) y = Sigmoid(d) }
"""


def test_a_bias_of_zeros_goes() -> None:
    assert_rewrites(Cleanup(), ZERO_BIAS, "g (float[N, 4] x) => (float[N, 4] y) { a = Relu(x) y = Sigmoid(a) }")


def test_other_constants_stay() -> None:
    text = "g (float[N, 2] x) => (float[N, 2] y) <float[2] c = {0.0, 1.0}> { a = Relu(x) d = Add(a, c) y = Sigmoid(d) }"
    assert_unchanged(Cleanup(), text)


def test_zeros_that_end_a_layernorm_stay() -> None:
    assert_unchanged(
        Cleanup(),
        """
        g (float[N, 2] x) => (float[N, 2] y) <float[2] b = {0.0, 0.0}, float[2] c = {0.5, 1.0}>
        { a = Relu(x) d = Mul(a, c) y = Add(d, b) }
        """,
    )


def test_zeros_that_add_axes_stay() -> None:
    assert_unchanged(
        Cleanup(),
        "g (float[4] x) => (float[1, 4] y) <float[1, 4] b = {0.0, 0.0, 0.0, 0.0}> { a = Relu(x) y = Add(a, b) }",
    )
