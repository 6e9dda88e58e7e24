"""Activations, Softmax and its kind, Dropout: equal to onnxruntime in ONNX, right in MNN also far from zero."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.passes.lowering.activations import gelu, mish_op, shrink, softplus_op, swish_op
from graphkit.passes.lowering.contrib_activations import contrib_gelu, quick_gelu
from graphkit.rewrite import Refusal, Rule
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of
from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_right_everywhere, assert_same, lowered, one_node, refusals

MS = "com.microsoft::"
FAR = np.array([[-1e4, -120, -100, -88.5, -20, -3.2, -1, -0.5, -1e-3, 0, 0.25, 0.5, 1.5, 3, 20, 88.5, 100, 1e4]], "f4")
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
BIAS = np.linspace(-1, 1, 18, dtype=np.float32)
BOTH = {"y": TensorProto.FLOAT, "m": TensorProto.BOOL}

ACTIVATIONS: list[tuple[str, int, dict[str, Any]]] = [
    ("Gelu", 20, {}),
    ("Gelu", 20, {"approximate": "tanh"}),
    ("Mish", 18, {}),
    ("Softplus", 13, {}),
    ("Shrink", 13, {}),
    ("Shrink", 13, {"lambd": 1.5, "bias": 1.5}),
    ("Shrink", 13, {"lambd": 0.25, "bias": -0.3}),
    (MS + "Gelu", 17, {}),
    (MS + "FastGelu", 17, {}),
    (MS + "QuickGelu", 17, {}),
    (MS + "QuickGelu", 17, {"alpha": 0.7}),
    (MS + "ScaledSiLU", 17, {"alpha": 1.5}),
]


@pytest.mark.parametrize(("op", "opset", "attrs"), ACTIVATIONS)
def test_activations(op: str, opset: int, attrs: dict[str, Any], tmp_path: Path) -> None:
    model, feeds = one_node(op, {"x": FAR}, opset=opset, **attrs)
    assert_same(model, feeds, left=["Softplus"])
    assert_right_in_mnn(model, tmp_path, feeds=feeds, rtol=1e-6)  # of 1e4: what is near 0 must be right, too


@pytest.mark.parametrize(("op", "opset", "attrs"), ACTIVATIONS[:7])
def test_near_zero_right_in_mnn(op: str, opset: int, attrs: dict[str, Any], tmp_path: Path) -> None:
    model, feeds = one_node(op, {"x": FAR[:, 4:15]}, opset=opset, **attrs)
    assert_right_in_mnn(model, tmp_path, feeds=feeds, rtol=1e-5)


@pytest.mark.parametrize(("op", "opset", "attrs"), [a for a in ACTIVATIONS if "::" not in a[0]])
def test_half_precision(op: str, opset: int, attrs: dict[str, Any]) -> None:
    model, feeds = one_node(op, {"x": FAR[:, 4:].astype(np.float16)}, opset=opset, **attrs)
    assert_same(model, feeds, rtol=2e-3, left=["Softplus"])


@pytest.mark.parametrize("alpha", [1.0, 1.3])
def test_swish(alpha: float) -> None:
    model, feeds = one_node("Swish", {"x": FAR}, opset=24, alpha=alpha)
    expected = FAR / (1 + np.exp(np.minimum(-alpha * FAR.astype(np.float64), 700)))
    ops = [node.op for node in lowered(model).nodes]
    assert ops == (["Sigmoid", "Mul"] if alpha == 1 else ["Mul", "Sigmoid", "Mul"])
    assert_same(model, feeds, expected={"y": expected.astype(np.float32)})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(op: str, bias: bool, tmp_path: Path) -> None:
    inputs = {"x": FAR} | ({"b": BIAS} if bias or op == "BiasGelu" else {})
    model, feeds = one_node(MS + op, inputs, constants=[name for name in inputs if name == "b"])
    assert_right_everywhere(model, feeds, tmp_path)


def test_shrink_of_integers() -> None:
    x = np.arange(-5, 6, dtype=np.int32)
    assert_same(*one_node("Shrink", {"x": x}, opset=13, lambd=1.5, bias=1.5))


def test_gelu_is_spelled_as_mnn_fuses_it() -> None:
    before = "g (float[2,3] x) => (float[2,3] y) { y = Gelu(x) }"
    after = """g (float[2,3] x) => (float[2,3] y) <float r = {0.70710677}, float one = {1}, float half = {0.5}> {
        a = Mul(x, r)
        e = Erf(a)
        s = Add(e, one)
        m = Mul(x, s)
        y = Mul(m, half)
    }"""
    assert_rewrites(LowerForMnn(), before, after, opset=20)


@pytest.mark.parametrize("item", [gelu, mish_op, shrink, softplus_op, swish_op, contrib_gelu, quick_gelu])
def test_an_unknown_type_is_refused(item: Rule) -> None:
    domain, _, op = item.ops[0].rpartition("::")
    text = f"""<ir_version: 8, opset_import: ["": 20, "com.microsoft": 1, "other": 1]>
    g (float[2] x) => (float[2] y) {{
        a = other.Unknown(x)
        y = {domain + "." if domain else ""}{op}(a)
    }}"""
    graph = graph_of(text)
    node = graph.producer("y")
    assert node is not None
    outcome = item.match(graph, node)
    assert isinstance(outcome, Refusal)
    assert "unknown" in outcome.reason


# -- numbers by the old and the new meaning of `axis` --------------------------------------------------------------


@pytest.mark.parametrize("op", ["LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 11, 13, 18])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_softmaxes(op: str, opset: int, axis: int | None, dynamic: bool) -> None:
    attrs = {} if axis is None else {"axis": axis}
    if opset < 11 and axis == -1:
        return  # not allowed then
    model, feeds = one_node(op, {"x": np.round(X, 1)}, opset=opset, dynamic=dynamic, **attrs)
    assert_same(model, feeds, left=["LogSoftmax"])


@pytest.mark.parametrize(("op", "opset", "axis"), [("LogSoftmax", 11, 1), ("Hardmax", 11, 2), ("Hardmax", 13, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_softmaxes_right_in_mnn(op: str, opset: int, axis: int, dynamic: bool, tmp_path: Path) -> None:
    model, feeds = one_node(op, {"x": np.round(X, 1)}, opset=opset, axis=axis, dynamic=dynamic)
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


@pytest.mark.parametrize("shape", [(2, 1), (3, 4)])
def test_hardmax_takes_the_first_of_equals(shape: tuple[int, ...], tmp_path: Path) -> None:
    model, feeds = one_node("Hardmax", {"x": np.ones(shape, np.float32)}, opset=13)
    assert_right_everywhere(model, feeds, tmp_path)


@pytest.mark.parametrize("opset", [11, 13])
def test_log_softmax_over_the_last_axis_stays(opset: int) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = LogSoftmax<axis = 1>(x) }"
    assert_unchanged(LowerForMnn(), text, opset=opset)


def test_bias_softmax() -> None:
    bias = np.random.default_rng(1).standard_normal((2, 1, 1, 5)).astype(np.float32)
    model, feeds = one_node(MS + "BiasSoftmax", {"x": X, "b": bias}, axis=3, is_inner_broadcast=0)
    powers = np.exp(X.astype(np.float64) + bias)
    assert_same(model, feeds, expected={"y": (powers / powers.sum(-1, keepdims=True)).astype(np.float32)})


def test_bias_softmax_over_several_axes_is_refused() -> None:
    model, _ = one_node(MS + "BiasSoftmax", {"x": X, "b": X}, axis=2, is_inner_broadcast=0)
    assert "not the last" in refusals(model)[0]


# -- slopes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [(5,), (4, 5), (1, 5), (1, 1, 1, 5), (2, 3, 4, 5)])
def test_a_slope_of_other_axes(slope: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).standard_normal(slope).astype(np.float32)
    assert_same(*one_node("PRelu", {"x": X, "s": values}, constants=["s"], opset=16))


def test_slopes_right_in_mnn(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 5, dtype=np.float32)
    assert_right_everywhere(*one_node("PRelu", {"x": X, "s": values}, constants=["s"], opset=16), tmp_path)


def test_slopes_of_a_vector_and_of_integers(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 5, dtype=np.float32)
    assert_right_everywhere(*one_node("PRelu", {"x": values, "s": values}, constants=["s"], opset=16), tmp_path)
    numbers = {"x": np.arange(-3, 3, dtype=np.int32), "s": np.array([2], np.int32)}
    assert_right_everywhere(*one_node("PRelu", numbers, constants=["s"], opset=16), tmp_path)


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (1, 3, 1, 1)])
def test_slopes_of_channels_stay(slope: tuple[int, ...]) -> None:
    model, _ = one_node("PRelu", {"x": X, "s": np.ones(slope, np.float32)}, constants=["s"], opset=16)
    assert "PRelu" in {node.op for node in lowered(model).nodes}


# -- Dropout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [10, 12, 13, 22])
def test_dropout_keeps_all(opset: int, tmp_path: Path) -> None:
    assert_right_everywhere(*one_node("Dropout", {"x": X}, outputs=BOTH, opset=opset), tmp_path)


@pytest.mark.parametrize(("ratio", "training"), [(0.4, False), (0.0, True)])
def test_dropout_with_its_inputs(ratio: float, training: bool) -> None:
    inputs = {"x": X, "r": np.float32(ratio), "t": np.array(training)}
    assert_same(*one_node("Dropout", inputs, constants=["r", "t"], outputs=BOTH))  # type: ignore[arg-type]


def test_training_is_refused() -> None:
    inputs: dict[str, Any] = {"x": X, "r": np.float32(0.5), "t": np.array(True)}
    assert "random" in refusals(one_node("Dropout", inputs, constants=["r", "t"])[0])[0]
    assert "run time" in refusals(one_node("Dropout", inputs, constants=["r"])[0])[0]


def test_bias_dropout_and_bias_add_are_sums() -> None:
    inputs = {"x": X, "b": X[0, 0, 0], "s": X + 1}
    expected = {"y": X + X[0, 0, 0] + (X + 1)}
    assert_same(*one_node(MS + "BiasDropout", inputs), expected=expected)
    assert_same(*one_node(MS + "BiasAdd", inputs), expected=expected)
    masked, _ = one_node(MS + "BiasDropout", inputs, outputs=BOTH)
    assert "mask" in refusals(masked)[0]
    trained: dict[str, Any] = {**inputs, "r": np.float32(0.5), "t": np.array(True)}
    assert "random" in refusals(one_node(MS + "BiasDropout", trained, constants=["r", "t"])[0])[0]


def exact_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5)))


def test_bias_split_gelu() -> None:
    x, bias = X[0, :, :, :4], np.linspace(-1, 1, 4, dtype=np.float32)
    left, right = np.split(x.astype(np.float64) + bias, 2, -1)
    model, feeds = one_node(MS + "BiasSplitGelu", {"x": x, "b": bias})
    assert_same(model, feeds, expected={"y": (left * exact_gelu(right)).astype(np.float32)})


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.7])
def test_swiglu(apart: bool, limit: float) -> None:
    both = X[:, :, :, :4]
    gate, up = np.split(both.astype(np.float64), 2, -1)
    inputs = {"g": gate.astype(np.float32), "u": up.astype(np.float32)} if apart else {"g": both}
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    expected = gate / (1 + np.exp(-1.5 * gate)) * (up + 1)
    model, feeds = one_node(MS + "SwiGLU", inputs, activation_alpha=1.5, activation_beta=1.0, limit=limit)
    assert_same(model, feeds, expected={"y": expected.astype(np.float32)})
