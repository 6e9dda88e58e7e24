"""Products of quantized numbers, in float: equal to onnxruntime in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.rewrite import PassResult
from graphkit.shapes import infer
from graphkit.testing import run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import KINDS, MS, Arrays, codes, lowered, model, ops


def weights(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Codes that onnxruntime's sums of pairs in 16 bits hold."""
    return codes(rng, dtype, *shape, margin=68)


def zero(dtype: str, *shape: int) -> np.ndarray:
    return np.full(shape, 0 if dtype == "int8" else 128, dtype)


def same(source: Model, feeds: Arrays, rtol: float = 0) -> Model:
    after = lowered(source, "lower-for-mnn")
    expected, actual = run(source, feeds), run(after, feeds)
    for name, want in expected.items():
        assert actual[name].dtype == want.dtype
        np.testing.assert_allclose(actual[name], want, rtol=0, atol=rtol * float(np.abs(want.astype(float)).max()))
    return after


def qlinear_conv(seed: int, x: str, w: str, per_channel: bool, **attrs: Any) -> tuple[Model, Arrays]:
    rng, group = np.random.default_rng(seed), attrs.get("group", 1)
    channels = (6,) if per_channel else ()
    constants = {
        "s": np.float32(0.05), "z": codes(rng, x), "w": weights(rng, w, 6, 4 // group, 3, 3),
        "ws": np.asarray(rng.uniform(0.01, 0.1, channels)).astype(np.float32), "wz": zero(w, *channels),
        "ys": np.float32(1.5), "yz": codes(rng, x), "b": rng.integers(-2000, 2000, 6).astype(np.int32),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "ws", "wz", "ys", "yz", "b"], ["y"], **attrs)
    source = model([node], {"x": (KINDS[x], ["n", 4, 9, 9])}, {"y": KINDS[x]}, constants)
    return source, {"x": codes(rng, x, 2, 4, 9, 9)}


CONVS = [{"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"group": 2}, {"dilations": [2, 2]}]


@pytest.mark.parametrize("attrs", CONVS, ids=["strides", "group", "dilations"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("x", "w"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_qlinear_conv(x: str, w: str, per_channel: bool, attrs: dict[str, Any]) -> None:
    same(*qlinear_conv(0, x, w, per_channel, **attrs))


def test_qlinear_conv_in_mnn(tmp_path: Path) -> None:
    source, feeds = qlinear_conv(1, "uint8", "int8", True, pads=[1, 1, 1, 1])
    assert_right_in_mnn(source, tmp_path, feeds=feeds, rtol=0.005)


def test_codes_between_two_convolutions_stay_float() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05), "z": np.uint8(7), "w": weights(rng, "int8", 4, 4, 3, 3), "ws": np.float32(0.02),
        "wz": np.int8(0), "ys": np.float32(0.8), "yz": np.uint8(120),
    }  # fmt: skip
    params = ["w", "ws", "wz", "ys", "yz"]
    nodes = [
        helper.make_node("QLinearConv", ["x", "s", "z", *params], ["a"]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("QLinearConv", ["p", "ys", "yz", *params], ["y"]),
    ]
    source = model(nodes, {"x": (TensorProto.UINT8, [1, 4, 9, 9])}, {"y": TensorProto.UINT8}, constants)
    assert ops(same(source, {"x": codes(rng, "uint8", 1, 4, 9, 9)})).count("Cast") == 2


def matrices(op: str, a: str, b: str, length: int, per_column: bool, domain: str = "") -> tuple[Model, Arrays]:
    rng = np.random.default_rng(length)
    columns = (6,) if per_column else ()
    constants = {
        "w": weights(rng, b, length, 6), "wz": zero(b, *columns), "s": np.float32(0.05), "z": codes(rng, a),
        "ws": np.asarray(rng.uniform(0.01, 0.1, columns)).astype(np.float32), "ys": np.float32(3), "yz": codes(rng, a),
        "bias": rng.standard_normal(6).astype(np.float32),
    }  # fmt: skip
    ins = {
        "QLinearMatMul": ["x", "s", "z", "w", "ws", "wz", "ys", "yz"],
        "MatMulInteger": ["x", "w", "z", "wz"],
        "MatMulIntegerToFloat": ["x", "w", "s", "ws", "z", "wz", "bias"],
        "DynamicQuantizeMatMul": ["x", "w", "ws", "wz", "bias"],
    }[op]
    dynamic = op.startswith("Dynamic")
    x = rng.standard_normal((2, 5, length)).astype(np.float32) if dynamic else codes(rng, a, 2, 5, length)
    kind = {"QLinearMatMul": KINDS[a], "MatMulInteger": TensorProto.INT32}.get(op, TensorProto.FLOAT)
    node = helper.make_node(op, ins, ["y"], domain=domain)
    used = {name: array for name, array in constants.items() if name in ins}
    source = model([node], {"x": (1 if dynamic else KINDS[a], ["n", 5, length])}, {"y": kind}, used)
    return source, {"x": x}


TYPES = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize(("a", "b"), TYPES)
def test_qlinear_matmul(a: str, b: str, per_column: bool) -> None:
    same(*matrices("QLinearMatMul", a, b, 40, per_column))


@pytest.mark.parametrize("length", [20, 300])
@pytest.mark.parametrize(("a", "b"), TYPES)
def test_matmul_integer_is_exact(a: str, b: str, length: int) -> None:
    after = same(*matrices("MatMulInteger", a, b, length, False))
    assert (ops(after).count("MatMul") > 1) == (length == 300)


@pytest.mark.parametrize(("a", "b"), TYPES)
@pytest.mark.parametrize("op", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_scaled_products(op: str, a: str, b: str) -> None:
    same(*matrices(op, a, b, 40, True, MS), rtol=1e-6)


def test_parts_of_a_long_sum_in_mnn(tmp_path: Path) -> None:
    source, feeds = matrices("MatMulInteger", "uint8", "int8", 300, False)
    assert_right_in_mnn(source, tmp_path, feeds=feeds, rtol=0)


def dynamic(op: str, axes: str = "") -> tuple[Model, Arrays]:
    """What onnxruntime's quantize_dynamic writes."""
    rng = np.random.default_rng(3)
    conv = op == "ConvInteger"
    w = weights(rng, "int8", 6, 4, 3, 3) if conv else weights(rng, "int8", 30, 6)
    shape = (2, 4, 9, 9) if conv else (2, 5, 30)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node(op, ["q", "w", "qz", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "ws"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    constants = {"w": w, "wz": np.int8(0), "ws": np.float32(0.02)}
    source = model(nodes, {"x": (1, ["n", *shape[1:]])}, {"y": 1}, constants)
    return source, {"x": rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_dynamic_quantization_has_no_integers(op: str, tmp_path: Path) -> None:
    source, feeds = dynamic(op)
    casts = [node for node in Graph.of(same(source, feeds, rtol=1e-6)).nodes if node.op == "Cast"]
    assert len(casts) == 1, "only the guard against an empty range"
    assert_right_in_mnn(source, tmp_path, feeds=feeds)


def test_dynamic_quantization_of_zeros() -> None:
    source, feeds = dynamic("MatMulInteger")
    same(source, {"x": np.zeros_like(feeds["x"])})


def test_dynamic_codes_as_outputs(tmp_path: Path) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outs = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    source = model([node], {"x": (1, ["n"])}, outs, {})
    assert_right_in_mnn(source, tmp_path, feeds={"x": np.array([-1.5, 0.3, 2, 7], np.float32)}, rtol=1e-6)


def conv_integer(channels: int) -> tuple[Model, Arrays]:
    rng = np.random.default_rng(0)
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"])
    constants = {"w": weights(rng, "int8", 6, channels, 3, 3), "z": np.uint8(3)}
    source = model([node], {"x": (TensorProto.UINT8, [1, channels, 8, 8])}, {"y": TensorProto.INT32}, constants)
    return source, {"x": codes(rng, "uint8", 1, channels, 8, 8)}


def test_conv_integer_is_exact(tmp_path: Path) -> None:
    source, feeds = conv_integer(4)
    same(source, feeds)
    assert_right_in_mnn(source, tmp_path, feeds=feeds, rtol=0)


def lower(source: Model) -> PassResult:
    graph = Graph.of(source)
    infer(graph)
    return LowerForMnn().run(graph)


def test_sums_that_float32_does_not_hold_are_refused() -> None:
    result = lower(conv_integer(600)[0])
    assert [refusal.reason for refusal in result.refusals] == ["its sums may pass 2^22, and are asked for as integers"]


def test_matmul_integer_of_unknown_length_is_refused() -> None:
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    kinds = {"x": (TensorProto.UINT8, ["n", "k"]), "w": (TensorProto.UINT8, ["k", "m"])}
    result = lower(model([node], kinds, {"y": TensorProto.INT32}, {}))
    assert "its sums may pass 2^22" in result.refusals[0].reason


def test_parameters_that_do_not_fit_are_refused() -> None:
    source, _ = qlinear_conv(0, "uint8", "int8", True)
    graph = Graph.of(source)
    graph.set_initializer("ys", np.ones(6, np.float32))
    infer(graph)
    result = LowerForMnn().run(graph)
    assert "not one element" in result.refusals[0].reason
