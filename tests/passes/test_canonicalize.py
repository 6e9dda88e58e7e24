"""`canonicalize`: casts, broadcasts, constants and conditions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes._canonical_values import lossless
from graphkit.passes.canonicalize import Canonicalize
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of

PASS = Canonicalize()


def run(text: str, opset: int = 18) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    return graph


# -- casts and broadcasts ---------------------------------------------------------------------------------


def test_cast_like_becomes_cast() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n] x, float16[m] z) => (float16[n] y) { a = CastLike(x, z) y = Neg(a) }",
        "agraph (float[n] x, float16[m] z) => (float16[n] y) { a = Cast<to = 10>(x) y = Neg(a) }",
    )


def test_cast_like_to_its_own_type_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n] x, float[m] z) => (float[n] y) { a = CastLike(x, z) y = Neg(a) }",
        "agraph (float[n] x, float[m] z) => (float[n] y) { y = Neg(x) }",
    )


def test_cast_like_to_an_unknown_type_is_refused() -> None:
    graph = graph_of(
        """<ir_version: 8, opset_import: ["": 18, "other": 1]>
        agraph (float[n] x) => (float[n] y) { u = other.Make(x) a = CastLike(x, u) y = Neg(a) }"""
    )
    result = PASS.run(graph)
    assert "is not known" in result.refusals[0].reason
    assert not result.modified


def test_cast_like_in_a_subgraph() -> None:
    graph = run(
        """agraph (bool c, float[2] x, float16[2] z) => (float16[2] y) {
            y = If (c) <then_branch = t () => (p) { p = CastLike(x, z) },
                        else_branch = e () => (q) { q = Neg(z) }>
        }"""
    )
    branch = next(iter(graph.nodes)).subgraphs["then_branch"]
    assert [node.op for node in branch.nodes] == ["Cast"]


@pytest.mark.parametrize("target", ["s = Shape(x)", "s = Constant<value_ints = [1, 4]>()"])
def test_expand_to_the_same_shape_goes(target: str) -> None:
    assert_rewrites(
        PASS,
        f"agraph (float[n,4] x) => (float[n,4] y) {{ {target} a = Expand(x, s) y = Neg(a) }}",
        "agraph (float[n,4] x) => (float[n,4] y) { y = Neg(x) }",
    )


def test_expand_before_a_broadcast_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[4] b, float[n,4] x) => (float[n,4] y) { s = Shape(x) e = Expand(b, s) y = Add(x, e) }",
        "agraph (float[4] b, float[n,4] x) => (float[n,4] y) { y = Add(x, b) }",
    )


@pytest.mark.parametrize(
    "use",
    [
        "y = Neg(a)",
        "y = Add(b, a)",
        "y = MatMul(x, a)",
        "y = Identity(a)",
    ],
)
def test_expand_that_is_needed_stays(use: str) -> None:
    assert_unchanged(PASS, f"agraph (float[1,4] b, float[4,4] x) => (y) {{ s = Shape(x) a = Expand(b, s) {use} }}")


def test_expand_of_both_operands_keeps_one() -> None:
    graph = run(
        """agraph (float[1,4] b, float[n,1] c, float[n,4] x) => (float[n,4] y)
        { s = Shape(x) p = Expand(b, s) q = Expand(c, s) y = Add(p, q) }"""
    )
    assert graph.op_counts() == {"Shape": 1, "Expand": 1, "Add": 1}


def test_lossless_cast_before_a_cast_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float16[n] x) => (int32[n] y) { a = Cast<to = 1>(x) y = Cast<to = 6>(a) }",
        "agraph (float16[n] x) => (int32[n] y) { y = Cast<to = 6>(x) }",
    )
    assert_rewrites(
        PASS,
        "agraph (int32[n] x) => (int32[n] y) { a = Cast<to = 7>(x) b = Cast<to = 6>(a) y = Add(b, x) }",
        "agraph (int32[n] x) => (int32[n] y) { y = Add(x, x) }",
    )


def test_lossy_cast_stays() -> None:
    assert_unchanged(PASS, "agraph (float[n] x) => (y) { a = Cast<to = 10>(x) y = Cast<to = 1>(a) }")
    assert_unchanged(PASS, "agraph (int32[n] x) => (y) { a = Cast<to = 1>(x) y = Cast<to = 6>(a) }")


@pytest.mark.parametrize(
    ("source", "target"),
    [(a, b) for a in (1, 2, 3, 5, 6, 7, 9, 10, 11) for b in (1, 2, 3, 5, 6, 7, 9, 10, 11)],
)
def test_lossless_means_there_and_back_is_exact(source: int, target: int) -> None:
    one, two = (onnx.helper.tensor_dtype_to_np_dtype(dtype) for dtype in (source, target))
    if one == np.bool_:
        values = np.array([False, True])
    elif one.kind in "iu":
        limits = np.iinfo(one)
        values = np.array([limits.min, limits.max, limits.max // 3 * 2 + 1], dtype=one)
    else:
        values = np.array([np.finfo(one).max, np.finfo(one).tiny, 1 / 3], dtype=one)
    with np.errstate(all="ignore"):
        exact = bool((values.astype(two).astype(one) == values).all())
    if lossless(source, target):
        assert exact


# -- conditions -------------------------------------------------------------------------------------------


def test_double_not_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (bool[n] x, bool[n] z) => (bool[n] y) { a = Not(x) b = Not(a) y = And(b, z) }",
        "agraph (bool[n] x, bool[n] z) => (bool[n] y) { y = And(x, z) }",
    )


def test_not_of_an_integer_comparison() -> None:
    assert_rewrites(
        PASS,
        "agraph (int64[n] x, int64[n] z) => (bool[n] y) { a = Greater(x, z) y = Not(a) }",
        "agraph (int64[n] x, int64[n] z) => (bool[n] y) { y = LessOrEqual(x, z) }",
    )


def test_not_of_a_float_comparison_is_refused() -> None:
    assert_unchanged(PASS, "agraph (float[n] x, float[n] z) => (y) { a = Less(x, z) y = Not(a) }", refuses="NaN")


def test_where_with_a_constant_condition() -> None:
    head = "agraph (float[n,2] x, float[1,2] z) => (float[n,2] y)"
    assert_rewrites(
        PASS,
        f"{head} {{ c = Constant<value = bool[1,2] {{1, 1}}>() a = Where(c, x, z) y = Neg(a) }}",
        f"{head} {{ y = Neg(x) }}",
    )
    graph = graph_of(f"{head} {{ c = Constant<value = bool {{0}}>() a = Where(c, x, z) y = Neg(a) }}")
    assert "may be larger" in PASS.run(graph).refusals[0].reason
    assert len(graph.by_op("Where")) == 1


# -- constants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "dtype", "shape"),
    [
        ("value_int = 3", np.int64, ()),
        ("value_ints = [1, 2]", np.int64, (2,)),
        ("value_float = 0.5", np.float32, ()),
        ("value_floats = [0.5, 1.5]", np.float32, (2,)),
        ("value = float[2] {1.0, 2.0}", np.float32, (2,)),
    ],
)
def test_constant_becomes_an_initializer(form: str, dtype: type, shape: tuple[int, ...]) -> None:
    graph = run(f"agraph (float[2] x) => (y) {{ c = Constant<{form}>() d = Cast<to = 1>(c) y = Mul(x, d) }}")
    array = graph.initializers["c"].array()
    assert (array.dtype, array.shape) == (dtype, shape)
    assert not graph.by_op("Constant")


@pytest.mark.parametrize(("attribute", "dtype"), [("value_ints", np.int64), ("value_floats", np.float32)])
def test_empty_constants_keep_their_type(attribute: str, dtype: type) -> None:
    """Peers make an empty value_ints a double."""
    node = onnx.NodeProto(op_type="Constant", output=["c"])
    kind = onnx.AttributeProto.INTS if attribute == "value_ints" else onnx.AttributeProto.FLOATS
    node.attribute.add(name=attribute, type=kind)
    graph = graph_of("agraph (float[2] x) => (y) { y = Identity(x) }")
    graph.insert(node)
    PASS.run(graph)
    assert graph.initializers["c"].array().dtype == dtype
    assert graph.initializers["c"].dims == (0,)


def test_constants_in_subgraphs_become_tensors_and_outputs_stay_nodes() -> None:
    graph = run(
        """agraph (bool c, float[2] x) => (float[2] y, int64 z) {
            z = Constant<value_int = 4>()
            y = If (c) <then_branch = t () => (p) { k = Constant<value_float = 2.0>() p = Mul(x, k) },
                        else_branch = e () => (q) { q = Neg(x) }>
        }"""
    )
    constant, conditional = graph.by_op("Constant"), graph.by_op("If")
    assert list(constant[0].attrs) == ["value"]
    assert list(conditional[0].subgraphs["then_branch"].by_op("Constant")[0].attrs) == ["value"]


# -- as a whole -------------------------------------------------------------------------------------------


TEXT = """agraph (float[n] x, int64[n] z) => (float[n] y) {
    k = Constant<value_float = 2.0>() a = CastLike(x, k) b = Mul(a, k)
    c = Greater(z, z) d = Not(c) e = Not(d) f = Not(e) g = CastLike(f, x) y = Sum(b, g)
}"""


def test_second_run_changes_nothing() -> None:
    graph = run(TEXT)
    assert not PASS.run(graph).modified


def test_every_change_asks_the_gate() -> None:
    text = TEXT
    total = len(PASS.run(graph_of(text)).changes)
    for limit in range(total + 1):
        graph, asked = graph_of(text), []
        graph.gate = lambda node, what, asked=asked, limit=limit: asked.append(what) or len(asked) <= limit
        assert len(PASS.run(graph).changes) == limit
        graph.check()


def test_half_floats_spelled_out_become_raw_bytes() -> None:
    """MNN's converter crashes on them otherwise."""
    value = onnx.helper.make_tensor_value_info
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT16, [2], [1.0, 0.5])
    assert weight.int32_data
    proto = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT16, ["N", 2])],
        [value("y", onnx.TensorProto.FLOAT16, ["N", 2])],
        [weight],
    )
    model = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 17)])
    graph = Graph.of(Model.from_proto(model))
    assert Canonicalize().run(graph).modified
    stored = graph.initializers["w"]
    assert stored.proto.raw_data
    assert stored.array().tolist() == [1.0, 0.5]
