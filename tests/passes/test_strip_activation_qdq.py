"""`strip-activation-qdq`: pairs go, ranges are kept in notes, what is no pair stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.passes.strip_activation_qdq import StripActivationQdq
from graphkit.testing import assert_unchanged, canonical, graph_of, run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import MS, model, ops


def stripped(text: str, after: str, *, clip: bool = False, opset: int = 18) -> tuple[str, ...]:
    graph = graph_of(text, opset=opset)
    result = StripActivationQdq(clip=clip).run(graph)
    graph.check()
    assert canonical(graph) == canonical(graph_of(after, opset=opset))
    return result.notes


PAIR = """g (float[2,3] x) => (float[2,3] y) <float s = {0.5}, uint8 z = {128}> {
    a = Relu(x)
    q = QuantizeLinear(a, s, z)
    d = DequantizeLinear(q, s, z)
    y = Neg(d)
}"""


def test_a_pair_goes_and_its_range_is_noted() -> None:
    notes = stripped(PAIR, "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }")
    assert notes == ("'a': uint8, range -64 … 63.5",)


def test_clip_keeps_the_range() -> None:
    after = """g (float[2,3] x) => (float[2,3] y) <float lo = {-64}, float hi = {63.5}> {
        a = Relu(x)
        c = Clip(a, lo, hi)
        y = Neg(c)
    }"""
    stripped(PAIR, after, clip=True)


def test_clip_of_channels() -> None:
    before = """g (float[2,3] x) => (float[2,3] y) <float[3] s = {1, 2, 3}, int8[3] z = {0, 0, 1}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
    }"""
    after = """g (float[2,3] x) => (float[2,3] y)
    <float[1,3] lo = {-128, -256, -387}, float[1,3] hi = {127, 254, 378}> {
        a = Max(x, lo)
        y = Min(a, hi)
    }"""
    notes = stripped(before, after, clip=True)
    assert notes == ("'x': int8, 3 ranges along axis 1, widest -387 … 378",)


def test_equal_constants_of_other_names_are_a_pair() -> None:
    before = PAIR.replace("(q, s, z)", "(q, t, w)").replace(
        "uint8 z = {128}", "uint8 z = {128}, float t = {0.5}, uint8 w = {128}"
    )
    stripped(before, "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }")


def test_what_moves_between_moves_numbers() -> None:
    before = """g (float[1,2,4,4] x) => (float[1,4,2,2] y, float[1,2,4,4] b) <float s = {0.5}, int8 z = {1}> {
        q = QuantizeLinear(x, s, z)
        p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(q)
        t = Transpose<perm=[0,1,3,2]>(p)
        c = Reshape(t, r)
        y = DequantizeLinear(c, s, z)
        b = DequantizeLinear(q, s, z)
    }""".replace("int8 z = {1}>", "int8 z = {1}, int64[4] r = {1, 4, 2, 1}>").replace("[1,4,2,2]", "[1,4,2,1]")
    after = """g (float[1,2,4,4] x) => (float[1,4,2,1] y, float[1,2,4,4] b) <int64[4] r = {1, 4, 2, 1}> {
        p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)
        t = Transpose<perm=[0,1,3,2]>(p)
        y = Reshape(t, r)
        b = Identity(x)
    }"""
    stripped(before, after)


def test_another_result_type_is_cast() -> None:
    before = """g (float[4] x) => (float16[4] y) <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear<output_dtype=10>(q, s, z)
    }"""
    stripped(before, "g (float[4] x) => (float16[4] y) { y = Cast<to=10>(x) }", opset=23)


def test_float8_pairs_go() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "w"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "w"], ["d"]),
        helper.make_node("Neg", ["d"], ["y"]),
    ]
    source = model(nodes, {"x": (1, [4])}, {"y": 1}, {"s": np.float32(0.5)}, opset=21)
    source.proto.graph.initializer.append(tensor)
    graph = Graph.of(Model.from_proto(source.proto))
    assert StripActivationQdq().run(graph).notes == ("'x': float8e4m3fn, range -224 … 224",)
    assert [node.op for node in graph.nodes] == ["Neg"]


def test_codes_that_are_asked_for_stay() -> None:
    text = """g (float[4] x) => (uint8[4] q, float[4] y) <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        y = Neg(d)
    }"""
    graph = graph_of(text)
    assert StripActivationQdq().run(graph).notes == ()
    assert sorted(node.op for node in graph.nodes) == ["Neg", "QuantizeLinear"]


def test_another_scale_is_refused() -> None:
    text = PAIR.replace("(q, s, z)", "(q, t, z)").replace("float s = {0.5}", "float s = {0.5}, float t = {0.25}")
    assert_unchanged(StripActivationQdq(), text, refuses="another scale or zero point than 'q' wrote")


def test_a_computed_scale_has_no_range_to_clip_to() -> None:
    text = """g (float[4] x, float s) => (float[4] y) {
        q = QuantizeLinear(x, s)
        y = DequantizeLinear(q, s)
    }"""
    assert_unchanged(StripActivationQdq(clip=True), text, refuses="scale or zero point are computed")


def test_weights_stay() -> None:
    text = """g (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}> {
        f = DequantizeLinear(w, s)
        y = Add(x, f)
    }"""
    assert_unchanged(StripActivationQdq(), text)


def lstm(per_column: bool) -> Model:
    rng, hidden, size = np.random.default_rng(0), 4, 3
    scales = (2, 4 * hidden) if per_column else (2,)
    constants = {
        "w": rng.integers(-120, 120, (2, size, 4 * hidden)).astype(np.int8),
        "r": rng.integers(-120, 120, (2, hidden, 4 * hidden)).astype(np.int8),
        "b": rng.standard_normal((2, 8 * hidden)).astype(np.float32),
        "ws": rng.uniform(0.002, 0.006, scales).astype(np.float32), "wz": np.zeros(scales, np.int8),
        "rs": rng.uniform(0.002, 0.006, scales).astype(np.float32), "rz": np.zeros(scales, np.int8),
    }  # fmt: skip
    ins = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    attrs = {"hidden_size": hidden, "direction": "bidirectional"}
    node = helper.make_node("DynamicQuantizeLSTM", ins, ["y", "h"], domain=MS, **attrs)
    return model([node], {"x": (1, [5, 2, size])}, {"y": 1, "h": 1}, constants)


@pytest.mark.parametrize("per_column", [False, True])
def test_an_lstm_of_codes_becomes_one_of_floats(per_column: bool) -> None:
    source = lstm(per_column)
    graph = Graph.of(source)
    assert StripActivationQdq().run(graph).counters == {"float-lstm": 1}
    after = graph.to_model()
    assert ops(after) == ["LSTM"]
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 2, 3)).astype(np.float32)}
    for name, want in run(source, feeds).items():
        np.testing.assert_allclose(run(after, feeds)[name], want, rtol=0, atol=0.02)


def test_an_lstm_without_constant_weights_is_refused() -> None:
    source = lstm(False)
    graph = Graph.of(source)
    graph.remove_initializer("wz")
    result = StripActivationQdq().run(graph)
    assert "not constant" in result.refusals[0].reason


def test_the_stripped_graph_is_the_reference(tmp_path: Path) -> None:
    text = PAIR.replace("0.5", "3")
    result = optimize(graph_of(text).to_model(), "strip-activation-qdq,mnn")
    assert result.ok
    assert not result.report.rolled_back
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    assert_right_in_mnn(
        text, tmp_path, feeds=feeds, expected={"y": -np.maximum(feeds["x"], 0)}, passes="strip-activation-qdq,mnn"
    )
