"""`inline-functions`: calls anywhere, defaults, lazy weights, names, options and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.inline_functions import InlineFunctions
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

INLINE = InlineFunctions()
HEADER = '<ir_version: 9, opset_import: ["": 18, "local": 1]>'
INNER = '<opset_import: ["": 18], domain: "local"> inner (a) => (b) { t = Exp(a) b = Add(t, a) }'
OUTER = """<opset_import: ["": 18, "local": 1], domain: "local">
    outer <alpha: float = 0.5> (a) => (b) { t = LeakyRelu<alpha: float = @alpha>(a) b = local.inner(t) }"""


def test_nested_calls_are_inlined_and_the_functions_go() -> None:
    before = f"""{HEADER}
    agraph (float[n] x) => (float[n] y) {{ t = local.outer<alpha = 0.25>(x) y = Neg(t) }}
    {OUTER} {INNER}"""
    after = """agraph (float[n] x) => (float[n] y)
    { t = LeakyRelu<alpha = 0.25>(x) e = Exp(t) b = Add(e, t) y = Neg(b) }"""
    result = assert_rewrites(INLINE, before, after)
    assert [change.node for change in result.changes] == ["local::outer", "local::inner"]


def test_defaults_of_attributes_are_kept() -> None:
    """onnx.inliner alone forgets them: the LeakyRelu would get ONNX's 0.01."""
    before = f"{HEADER} agraph (float[n] x) => (float[n] y) {{ y = local.outer(x) }} {OUTER} {INNER}"
    after = """agraph (float[n] x) => (float[n] y)
    { t = LeakyRelu<alpha = 0.5>(x) e = Exp(t) y = Add(e, t) }"""
    assert_rewrites(INLINE, before, after)


@pytest.mark.parametrize("c", [False, True])
def test_calls_in_subgraphs(c: bool) -> None:
    before = f"""{HEADER} agraph (bool c, float[2] x) => (float[2] y) {{
        t = Relu(x)
        y = If (c) <then_branch = th () => (p) {{ p = local.inner(t) }},
                    else_branch = el () => (q) {{ q = local.outer(x) }}>
    }} {OUTER} {INNER}"""
    graph = graph_of(before)
    INLINE.run(graph)
    graph.check()
    assert not graph.functions
    branch = next(iter(graph.by_op("If"))).subgraphs["else_branch"]
    assert [node.op for node in branch.nodes] == ["LeakyRelu", "Exp", "Add"]
    values = {"c": np.array(c), "x": np.array([-1, 2], np.float32)}
    assert_equal_outputs(parse(before), graph.to_model(), inputs=values)


def test_imports_of_the_body_are_added() -> None:
    before = f"""{HEADER} agraph (float[n] x) => (float[n] y) {{ y = local.act(x) }}
    <opset_import: ["": 18, "com.microsoft": 1], domain: "local">
    act (a) => (b) {{ b = com.microsoft.Gelu(a) }}"""
    assert_rewrites(
        INLINE,
        before,
        "agraph (float[n] x) => (float[n] y) { y = com.microsoft.Gelu(x) }",
        imports={"com.microsoft": 1},
    )


def test_names_stay_unique_over_many_calls() -> None:
    calls = " ".join(f"v{i + 1} = local.inner(v{i})" for i in range(5))
    before = f"{HEADER} agraph (float[2] v0) => (float[2] t) {{ {calls} t = Tanh(v5) }} {INNER}"
    graph = graph_of(before)
    INLINE.run(graph)
    graph.check()
    assert len(graph) == 11
    assert_equal_outputs(parse(before), graph.to_model(), rtol=1e-4)


def test_weights_stay_lazy_and_shared() -> None:
    proto = parse(
        f"{HEADER} agraph (float[64] x) => (float[64] y) {{ t = MatMul(x, w) y = local.inner(t) }} {INNER}"
    ).proto
    rng = np.random.default_rng(0)
    array = rng.standard_normal((64, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    graph = Graph.of(Model.from_proto(proto))
    store, before = graph.store, graph.initializers["w"]
    INLINE.run(graph)
    weight = graph.initializers["w"]
    assert graph.store is store
    assert weight.ref == before.ref is not None
    assert weight._array is None
    np.testing.assert_array_equal(weight.array(), array)


def test_other_operator_sets_are_refused() -> None:
    assert_unchanged(
        INLINE,
        f"""{HEADER} agraph (float[n] x) => (float[n] y) {{ y = local.old(x) }}
        <opset_import: ["": 12], domain: "local"> old (a) => (b) {{ b = Softmax(a) }}""",
        refuses="operator set ai.onnx 12 and the model 18",
    )


def test_options_choose_functions() -> None:
    before = f"{HEADER} agraph (float[n] x) => (float[n] y) {{ y = local.outer(x) }} {OUTER} {INNER}"
    for pass_ in (InlineFunctions(only=("outer",)), InlineFunctions(exclude=("local::inn*",))):
        graph = graph_of(before)
        pass_.run(graph)
        assert [node.op for node in graph.nodes] == ["LeakyRelu", "local::inner"]
        assert list(graph.functions) == [("local", "inner", "")]
        assert_equal_outputs(parse(before), graph.to_model())
    result = InlineFunctions(only=("nothing",)).run(graph_of(before))
    assert not result.modified
    assert "'nothing'" in result.notes[0]


def test_types_are_known_afterwards() -> None:
    graph = graph_of(f"{HEADER} agraph (float[4] x) => (float[4] y) {{ a = local.inner(x) y = Neg(a) }} {INNER}")
    INLINE.run(graph)
    assert graph.shape(next(iter(graph.nodes)).outputs[0]) == (4,)


def test_a_model_without_functions_is_left_alone() -> None:
    assert_unchanged(INLINE, "agraph (float[n] x) => (float[n] y) { y = Relu(x) }")


def test_the_gate_can_hold_a_function_back() -> None:
    before = f"{HEADER} agraph (float[n] x) => (float[n] y) {{ y = local.outer(x) }} {OUTER} {INNER}"
    graph = graph_of(before)
    graph.gate = lambda node, what: node == "local::outer"
    assert len(INLINE.run(graph).changes) == 1
    assert "local::inner" in graph.op_counts()
