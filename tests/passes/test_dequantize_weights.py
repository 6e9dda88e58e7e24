"""`dequantize-weights`: every layout of scales, exact; what is kept, noted and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.dequantize_weights import DequantizeWeights
from graphkit.passes.fold_constants import FoldConstants
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of, run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import MS, ops
from tests.quantized_models import model as quantized_model

SHAPE = (4, 6)
LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "tensor": ((), {}),
    "one": ((1,), {}),
    "rows": ((4,), {"axis": 0}),
    "columns": ((6,), {"axis": -1}),
    "blocks": ((4, 2), {"axis": 1, "block_size": 3}),
    "part": ((4, 2), {"axis": 1, "block_size": 4}),
}
INTEGERS = ["INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4"]


def weight(
    kind: str, layout: str, *, opset: int, domain: str = "", zero: bool = True, scale_type: int = 1, **extra: Any
) -> Model:
    """y = x + DequantizeLinear(constants)."""
    rng = np.random.default_rng(len(kind) + len(layout))
    size, attrs = LAYOUTS[layout]
    dtype = getattr(TensorProto, kind)
    low, high = (-8, 7) if kind.startswith("INT") else (0, 15)
    if not kind.endswith("4"):
        low, high = low * 14, high * 14
    stored = [
        helper.make_tensor("w", dtype, SHAPE, rng.integers(low, high + 1, SHAPE).reshape(-1).tolist()),
        helper.make_tensor("s", scale_type, size, rng.uniform(0.01, 1, size).reshape(-1).tolist()),
    ]
    if zero:
        stored.append(helper.make_tensor("z", dtype, size, rng.integers(low, high + 1, size).reshape(-1).tolist()))
    ins = [tensor.name for tensor in stored]
    kind_out = int(extra.get("output_dtype", scale_type))
    nodes = [
        helper.make_node("DequantizeLinear", ins, ["f"], domain=domain, **attrs, **extra),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, kind_out, SHAPE) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10))


def folded(model: Model) -> Model:
    graph = Graph.of(model)
    assert DequantizeWeights().run(graph).modified
    graph.check()
    result = graph.to_model()
    assert ops(result) == ["Add"]
    return result


def same(model: Model, dtype: type = np.float32) -> None:
    feeds = {"x": np.zeros(SHAPE, dtype)}
    np.testing.assert_array_equal(run(folded(model), feeds)["y"], run(model, feeds)["y"])


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_equal_to_onnxruntime(kind: str, layout: str, zero: bool) -> None:
    same(weight(kind, layout, opset=21, zero=zero))


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 24])
@pytest.mark.parametrize("layout", ["tensor", "rows", "columns"])
def test_every_opset(opset: int, layout: str) -> None:
    if opset >= 13 or layout == "tensor":
        same(weight("INT8", layout, opset=opset))


@pytest.mark.parametrize("layout", ["tensor", "rows", "columns"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_onnxruntimes_own_operator(kind: str, layout: str) -> None:
    same(weight(kind, layout, opset=18, domain=MS))


def test_half_scales_give_half_weights() -> None:
    same(weight("INT8", "columns", opset=19, scale_type=TensorProto.FLOAT16), np.float16)


def test_output_dtype_gives_the_type() -> None:
    model = weight("INT8", "columns", opset=23, scale_type=TensorProto.FLOAT, output_dtype=TensorProto.FLOAT16)
    array = next(iter(Graph.of(folded(model)).initializers.values())).array()
    assert array.dtype == np.float16


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_float8(kind: str) -> None:
    tensor = helper.make_tensor("w", getattr(TensorProto, kind), [3], [0.5, -2.0, 8.0])
    graph = graph_of(
        "g (float[3] x) => (float[3] y) <float s = {0.5}> { f = DequantizeLinear(x, s) y = Add(x, f) }", opset=19
    )
    proto = graph.to_model().proto
    proto.graph.node[0].input[0] = "w"
    proto.graph.initializer.append(tensor)
    made = folded(Model.from_proto(proto))
    assert run(made, {"x": np.zeros(3, np.float32)})["y"].tolist() == [0.25, -1, 4]


def test_biases_of_32_bits() -> None:
    before = """g (float[2] x) => (float[2] y) <int32[2] b = {100000, -3}, float s = {0.5}> {
        f = DequantizeLinear(b, s)
        y = Add(x, f)
    }"""
    after = "g (float[2] x) => (float[2] y) <float[2] f = {50000, -1.5}> { y = Add(x, f) }"
    result = assert_rewrites(DequantizeWeights(), before, after)
    assert result.counters == {"int32": 1}
    assert result.notes == ("'b': int32 [2], 32 bits, one scale: 12 bytes become 8 of float32",)


def test_views_between_store_and_node() -> None:
    before = """g (float[2,3] x) => (float[2,3] y)
        <int8[6] w = {1, 2, 3, 4, 5, 6}, float[2] s = {1, 2}, int64[2] r = {3, 2}, int64[2] i = {1, 0}> {
        a = Reshape(w, r)
        b = Transpose<perm=[1,0]>(a)
        c = Gather<axis=0>(b, i)
        f = DequantizeLinear<axis=0>(c, s)
        y = Add(x, f)
    }"""
    after = "g (float[2,3] x) => (float[2,3] y) <float[2,3] f = {2, 4, 6, 2, 6, 10}> { y = Add(x, f) }"
    assert_rewrites(DequantizeWeights(), before, after)


def test_float_weights_that_are_quantized_in_the_graph() -> None:
    before = """g (float[3] x) => (float[3] y) <float[3] w = {0.26, 0.25, 9}, float s = {0.1}, int8 z = {100}> {
        q = QuantizeLinear(w, s, z)
        f = DequantizeLinear(q, s, z)
        y = Add(x, f)
    }"""
    after = "g (float[3] x) => (float[3] y) <float[3] f = {0.3, 0.2, 2.7}> { y = Add(x, f) }"
    assert_rewrites(DequantizeWeights(), before, after)


def test_weights_over_the_limit_of_folding() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["f"]), helper.make_node("Add", ["x", "f"], ["y"])]
    constants = {"w": np.arange(64, dtype=np.int8), "s": np.float32(0.5)}
    graph = Graph.of(quantized_model(nodes, {"x": (1, [64])}, {"y": 1}, constants))
    assert not FoldConstants(max_bytes=16).run(graph).modified
    assert DequantizeWeights().run(graph).counters == {"int8": 1}
    assert [weight.dims for weight in graph.initializers.values()] == [(64,)]


def test_a_weight_that_is_a_graph_output() -> None:
    before = """g (float[2] x) => (float[2] y, float[2] f) <int8[2] w = {1, 2}, float s = {0.5}> {
        f = DequantizeLinear(w, s)
        y = Add(x, f)
    }"""
    after = """g (float[2] x) => (float[2] y, float[2] f) <float[2] c = {0.5, 1}> {
        y = Add(x, c)
        f = Identity(c)
    }"""
    assert_rewrites(DequantizeWeights(), before, after)


def test_weights_in_a_branch() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}> {
        y = If (c) <
            then_branch = t () => (float[2] a) { f = DequantizeLinear(w, s) a = Add(x, f) },
            else_branch = e () => (float[2] b) { b = Identity(x) }
        >
    }"""
    graph = graph_of(text)
    assert DequantizeWeights().run(graph).counters == {"int8": 1}
    inner = [node.op for sub in graph.walk() for node in sub.nodes]
    assert "DequantizeLinear" not in inner


EMBEDDING = """g (int64[2,3] i) => (float[2,3,2] y)
<uint8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[4] s = {0.5, 1, 2, 3}, uint8[4] z = {1, 1, 0, 9}> {
    f = DequantizeLinear<axis=0>(w, s, z)
    y = Gather(f, i)
}"""


def test_embeddings_stay_bytes(tmp_path: Path) -> None:
    after = """g (int64[2,3] i) => (float[2,3,2] y)
    <uint8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[4,1] s = {0.5, 1, 2, 3}, float[4,1] z = {1, 1, 0, 9}> {
        g = Gather<axis=0>(w, i)
        c = Cast<to=1>(g)
        zz = Gather<axis=0>(z, i)
        d = Sub(c, zz)
        ss = Gather<axis=0>(s, i)
        y = Mul(d, ss)
    }"""
    result = assert_rewrites(DequantizeWeights(), EMBEDDING, after, rtol=0)
    assert result.counters == {"uint8": 1}
    assert "stay" in result.notes[0]
    assert_right_in_mnn(EMBEDDING, tmp_path, feeds={"i": np.array([[0, 1, 2], [3, 3, 0]])}, rtol=0)


def test_embeddings_of_one_scale_stay_bytes() -> None:
    before = EMBEDDING.replace("float[4] s = {0.5, 1, 2, 3}", "float s = {0.5}").replace(", z)", ")")
    before = before.replace(", uint8[4] z = {1, 1, 0, 9}", "")
    after = """g (int64[2,3] i) => (float[2,3,2] y) <uint8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float s = {0.5}> {
        g = Gather<axis=0>(w, i)
        c = Cast<to=1>(g)
        y = Mul(c, s)
    }"""
    assert_rewrites(DequantizeWeights(), before, after, rtol=0)


def test_embeddings_become_float_on_demand() -> None:
    graph = graph_of(EMBEDDING)
    DequantizeWeights(keep_embeddings=False).run(graph)
    assert [node.op for node in graph.nodes] == ["Gather"]


def test_scales_that_do_not_fit_are_refused() -> None:
    text = """g (float[4] x) => (float[4] y) <int8[4] w = {1, 2, 3, 4}, float[3] s = {1, 1, 1}> {
        f = DequantizeLinear<axis=0>(w, s)
        y = Add(x, f)
    }"""
    assert_unchanged(
        DequantizeWeights(), text, infer=False, refuses="scales of shape [3] do not fit codes of shape [4]"
    )


def test_activations_are_left() -> None:
    text = "g (int8[4] x) => (float[4] y) <float s = {0.5}> { y = DequantizeLinear(x, s) }"
    assert_unchanged(DequantizeWeights(), text)
