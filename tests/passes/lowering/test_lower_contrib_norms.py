"""onnxruntime's fused normalizations: equal to its own kernels in ONNX at all opsets, and right in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites
from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_same, one_node, refusals

FLOAT = TensorProto.FLOAT
F32 = npt.NDArray[np.float32]


def floats(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = floats(2, 6, 4, 5)
MS = "com.microsoft::"
SKIPS = [(2, 4, 8), (1, 4, 8), (4, 8)]


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(opset: int, skip: tuple[int, ...], bias: bool) -> None:
    inputs = {"x": floats(2, 4, 8), "s": floats(*skip, seed=1), "g": floats(8, seed=2)}
    inputs |= {"b": floats(8, seed=3), "c": floats(8, seed=4)} if bias else {}
    outputs = {"y": FLOAT, "_m": FLOAT, "_v": FLOAT, "t": FLOAT}
    model, feeds = one_node(
        MS + "SkipLayerNormalization", inputs, constants=["g"], outputs=outputs, opset=opset, epsilon=1e-3
    )
    assert_same(model, feeds)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("opset", [11, 18])
def test_skip_simplified_layer_normalization(bias: bool, opset: int) -> None:
    inputs = {"x": floats(2, 4, 8), "s": floats(2, 4, 8, seed=1), "g": floats(8, seed=2)}
    inputs |= {"c": floats(8, seed=4)} if bias else {}
    outputs = {"y": FLOAT, "_m": FLOAT, "_v": FLOAT, "t": FLOAT}
    name = MS + "SkipSimplifiedLayerNormalization"
    assert_same(*one_node(name, inputs, constants=["g"], outputs=outputs, opset=opset, dynamic=True))


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("opset", [11, 17])
def test_skip_norms_right_in_mnn(op: str, opset: int, tmp_path: Path) -> None:
    inputs = {"x": floats(2, 4, 8), "s": floats(2, 4, 8, seed=1), "g": floats(8, seed=2), "b": floats(8, seed=3)}
    model, feeds = one_node(MS + op, inputs, constants=["g", "b"], opset=opset)
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def test_saved_means_are_refused() -> None:
    inputs = {"x": floats(2, 4, 8), "s": floats(2, 4, 8, seed=1), "g": floats(8, seed=2)}
    model, _ = one_node(MS + "SkipLayerNormalization", inputs, outputs={"y": FLOAT, "m": FLOAT})
    assert "training" in refusals(model)[0]


IDS = np.array([[1, 5, 3, 0], [2, 2, 9, 1]], np.int32)
KEPT = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], np.int32)
TABLES = {"w": floats(10, 8, seed=1), "p": floats(6, 8, seed=2), "t": floats(2, 8, seed=3)}
EMBEDDED = {"y": FLOAT, "l": TensorProto.INT32, "e": FLOAT}


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [None, (2, 4), (1, 4)])
@pytest.mark.parametrize("segments", [False, True])
def test_embed_layer_normalization(opset: int, mask: bool, positions: Any, segments: bool) -> None:
    nothing = np.zeros(0, np.float32)
    inputs: dict[str, Any] = {"ids": IDS, ("seg" if segments else "_seg"): KEPT, "w": TABLES["w"], "p": TABLES["p"]}
    inputs |= {("t" if segments else "_t"): TABLES["t"], "g": floats(8, seed=4), "b": floats(8, seed=5)}
    inputs |= {"k": KEPT} if mask else {"_k": nothing}
    inputs |= {"i": np.arange(np.prod(positions), dtype=np.int32).reshape(positions) % 6} if positions else {}
    constants = ["w", "p", "g", "b", *(["t"] if segments else [])]
    name = MS + "EmbedLayerNormalization"
    assert_same(*one_node(name, inputs, constants=constants, outputs=EMBEDDED, opset=opset, dynamic=True))


def test_embed_layer_normalization_right_in_mnn(tmp_path: Path) -> None:
    inputs = {"ids": IDS, "seg": KEPT, **TABLES, "g": floats(8, seed=4), "b": floats(8, seed=5), "k": KEPT}
    model, feeds = one_node(
        MS + "EmbedLayerNormalization", inputs, constants=["w", "p", "t", "g", "b"], outputs=EMBEDDED
    )
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def test_skip_layer_normalization_is_an_add_and_a_norm() -> None:
    before = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[B,S,2] x, float[B,S,2] s) => (float[B,S,2] y) <float[2] g = {1, 2}, float[2] b = {0, 1}> {
        y = com.microsoft.SkipLayerNormalization<epsilon = 0.5>(x, s, g, b)
    }"""
    after = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[B,S,2] x, float[B,S,2] s) => (float[B,S,2] y) <float[2] g = {1, 2}, float[2] b = {0, 1}> {
        t = Add(x, s)
        y = LayerNormalization<epsilon = 0.5, axis = -1>(t, g, b)
    }"""
    assert_rewrites(LowerForMnn(), before, after)


GATED = [
    ("GatedRMSNorm", {"x": floats(2, 5, 8), "s": floats(4), "g": floats(2, 5, 8, seed=1)}, {}),
    ("GatedRMSNorm", {"x": floats(2, 5, 4), "s": floats(4), "g": floats(2, 5, 4)}, {"activation": "sigmoid"}),
    ("BranchwiseRMSNorm", {"x": floats(2, 5, 8), "s": floats(8)}, {"num_branches": 2}),
    ("BranchwiseRMSNorm", {"x": floats(2, 5, 8), "s": floats(4)}, {"num_branches": 2}),
    ("BranchwiseRMSNorm", {"x": floats(2, 5, 8), "s": floats(5, 8)}, {}),
    ("BranchwiseRMSNorm", {"x": floats(2, 5, 8), "s": floats(40)}, {}),
    ("BranchwiseRMSNorm", {"x": floats(2, 5, 8)}, {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), GATED)
def test_norms_of_branches(op: str, inputs: dict[str, F32], attrs: dict[str, Any]) -> None:
    constants = ["s"] if "s" in inputs else []
    assert_same(*one_node(MS + op, inputs, constants=constants, **attrs))


def test_norm_of_branches_right_in_mnn(tmp_path: Path) -> None:
    model, feeds = one_node(
        MS + "BranchwiseRMSNorm", {"x": floats(2, 5, 8), "s": floats(8)}, constants=["s"], num_branches=2
    )
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def grouped(x: F32, groups: int, epsilon: float) -> F32:
    """Channels-first group normalization, from its definition."""
    flat = x.reshape(len(x), groups, -1).astype(np.float64)
    mean, var = flat.mean(-1, keepdims=True), flat.var(-1, keepdims=True)
    return np.asarray(((flat - mean) / np.sqrt(var + epsilon)).reshape(x.shape), np.float32)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", ["", "full", "per image"])
def test_contrib_group_norms(last: int, activation: int, skip: str) -> None:
    gamma, beta, bias = floats(6, seed=1), floats(6, seed=2), floats(6, seed=3)
    added = {"": np.zeros(1, np.float32), "full": floats(*X.shape, seed=4), "per image": floats(2, 6, seed=5)}[skip]
    total = X + (added[:, :, None, None] if skip == "per image" else added)
    total = total + bias[:, None, None] if skip else total
    y = grouped(total, 3, 1e-5) * gamma[:, None, None] + beta[:, None, None]
    y = y / (1 + np.exp(-y)) if activation else y
    order = [0, 2, 3, 1] if last else [0, 1, 2, 3]
    inputs: dict[str, Any] = {"x": X.transpose(order), "g": gamma, "b": beta}
    if skip:
        inputs |= {"s": added.transpose(order) if skip == "full" else added, "c": bias}
    op = "com.microsoft::SkipGroupNorm" if skip else "com.microsoft::GroupNorm"
    outputs = {"y": FLOAT, "t": FLOAT} if skip else {"y": FLOAT}
    model, feeds = one_node(op, inputs, outputs=outputs, groups=3, activation=activation, channels_last=last)
    expected = {"y": y.transpose(order), "t": total.transpose(order)}
    assert_same(model, feeds, expected={name: expected[name] for name in outputs})
