"""onnxruntime's QLinear operators in float: equal to onnxruntime in ONNX and in MNN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.shapes import infer
from graphkit.testing import run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import KINDS, MS, Arrays, codes, lowered, model, ops

Built = tuple[Model, Arrays]


def node(op: str, ins: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, ins, ["y"], domain=MS, **attrs)


def scale(rng: np.random.Generator) -> np.float32:
    return np.float32(rng.uniform(0.01, 0.2))


def unary(op: str, dtype: str, shape: tuple[int, ...], y_scale: float = 0.05, **attrs: Any) -> Built:
    rng = np.random.default_rng(len(op))
    constants = {"s": scale(rng), "z": codes(rng, dtype), "ys": np.float32(y_scale), "yz": codes(rng, dtype)}
    if op in ("QLinearSigmoid", "QLinearSoftmax"):
        constants |= {"ys": np.float32(1 / 256), "yz": np.asarray(np.iinfo(dtype).min, dtype)}
    source = model(
        [node(op, ["x", "s", "z", "ys", "yz"], **attrs)], {"x": (KINDS[dtype], ["n", *shape[1:]])},
        {"y": KINDS[dtype]}, constants,
    )  # fmt: skip
    return source, {"x": codes(rng, dtype, *shape)}


def binary(op: str, dtype: str, scales: Sequence[float]) -> Built:
    rng = np.random.default_rng(5)
    names = ("as", "bs", "ys")
    constants = {name: np.float32(value) for name, value in zip(names, scales, strict=True)}
    constants |= {"az": codes(rng, dtype), "bz": codes(rng, dtype), "yz": np.asarray(101, dtype)}
    source = model(
        [node(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"])],
        {"a": (KINDS[dtype], ["n", 3, 64]), "b": (KINDS[dtype], [3, 64])}, {"y": KINDS[dtype]}, constants,
    )  # fmt: skip
    return source, {"a": codes(rng, dtype, 2, 3, 64), "b": codes(rng, dtype, 3, 64)}


def several(op: str, dtype: str) -> Built:
    rng = np.random.default_rng(6)
    constants = {name: scale(rng) for name in ("as", "bs", "ys")} | {n: codes(rng, dtype) for n in ("az", "bz", "yz")}
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {name: (KINDS[dtype], [2, 30]) for name in "ab"}
    feeds = {name: codes(rng, dtype, 2, 30) for name in "ab"}
    if op == "QLinearConcat":
        made = node(op, ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], axis=1)
    else:
        made = node(op, ["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"])
        inputs["c"] = (TensorProto.BOOL, [2, 30])
        feeds["c"] = rng.integers(0, 2, (2, 30)).astype(bool)
    return model([made], inputs, {"y": KINDS[dtype]}, constants), feeds


def qgemm(dtype: str, *, per_column: bool, transposed: int, floats: bool) -> Built:
    rng = np.random.default_rng(7)
    columns, shape = (40,) if per_column else (), (40, 20) if transposed else (20, 40)
    constants = {
        "as": scale(rng), "az": codes(rng, dtype), "b": codes(rng, "int8", *shape, margin=68),
        "bs": np.asarray(rng.uniform(0.01, 0.1, columns)).astype(np.float32), "bz": np.zeros(columns, np.int8),
        "c": rng.integers(-3000, 3000, 40).astype(np.int32),
    }  # fmt: skip
    ins = ["a", "as", "az", "b", "bs", "bz", "c"]
    if not floats:
        ins += ["ys", "yz"]
        constants |= {"ys": np.float32(2), "yz": codes(rng, dtype)}
    out = TensorProto.FLOAT if floats else KINDS[dtype]
    made = node("QGemm", ins, transB=transposed, alpha=0.5)
    return model([made], {"a": (KINDS[dtype], [5, 20])}, {"y": out}, constants), {"a": codes(rng, dtype, 5, 20)}


def same(built: Built, atol: float = 0) -> None:
    source, feeds = built
    want, got = run(source, feeds)["y"], run(lowered(source, "lower-for-mnn"), feeds)["y"]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=atol)


POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
UNARY: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("QLinearSigmoid", (2, 200), {}),
    ("QLinearLeakyRelu", (2, 200), {"alpha": 0.1}),
    ("QLinearSoftmax", (4, 20), {"axis": -1, "opset": 13}),
    ("QLinearSoftmax", (2, 4, 20), {"axis": 1, "opset": 13}),
    ("QLinearAveragePool", (1, 3, 9, 9), POOL),
    ("QLinearAveragePool", (1, 3, 9, 9), {**POOL, "count_include_pad": 1}),
    ("QLinearGlobalAveragePool", (2, 3, 9, 9), {}),
]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("op", "shape", "attrs"), UNARY)
def test_one_input(op: str, shape: tuple[int, ...], attrs: dict[str, Any], dtype: str) -> None:
    same(unary(op, dtype, shape, **attrs))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("scales", [(0.031, 0.107, 0.3), (0.5, 0.25, 1.0)], ids=["any", "halves"])
def test_two_inputs(op: str, dtype: str, scales: tuple[float, ...]) -> None:
    same(binary(op, dtype, scales))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("op", ["QLinearConcat", "QLinearWhere"])
def test_several_inputs(op: str, dtype: str) -> None:
    same(several(op, dtype))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("floats", [False, True])
def test_qgemm(dtype: str, per_column: bool, transposed: int, floats: bool) -> None:
    same(qgemm(dtype, per_column=per_column, transposed=transposed, floats=floats), atol=1e-3 if floats else 0)


IN_MNN = [
    unary("QLinearSigmoid", "uint8", (2, 200)),
    unary("QLinearAveragePool", "int8", (1, 3, 9, 9), **POOL),
    binary("QLinearAdd", "uint8", (0.5, 0.25, 1.0)),
    several("QLinearConcat", "int8"),
    qgemm("uint8", per_column=True, transposed=1, floats=False),
]


@pytest.mark.parametrize("built", IN_MNN, ids=["sigmoid", "pool", "add", "concat", "gemm"])
def test_in_mnn(built: Built, tmp_path: Path) -> None:
    assert_right_in_mnn(built[0], tmp_path, feeds=built[1], rtol=1e-6)


def chain() -> Built:
    """Operators behind which shape inference knows neither types nor shapes."""
    rng = np.random.default_rng(9)
    names = ["s", "z"]
    pair = ["s", "z", "s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"]),
        helper.make_node("QLinearLeakyRelu", ["q", *pair], ["a"], domain=MS, alpha=0.1),
        helper.make_node("QLinearAdd", ["a", *names, "q", *pair], ["b"], domain=MS),
        helper.make_node("QLinearConcat", [*names, "a", *names, "b", *names], ["c"], domain=MS, axis=1),
        helper.make_node("Split", ["c"], ["d", "e"], axis=1, num_outputs=2),
        helper.make_node("QLinearMul", ["d", *names, "e", *pair], ["f"], domain=MS),
        helper.make_node("Resize", ["f", "", "r"], ["g"], mode="nearest"),
        helper.make_node("QLinearGlobalAveragePool", ["g", *pair], ["h"], domain=MS),
        helper.make_node("DequantizeLinear", ["h", *names], ["y"]),
    ]
    constants = {"s": np.float32(0.05), "z": np.uint8(97), "r": np.array([1, 1, 2, 2], np.float32)}
    source = model(nodes, {"x": (1, ["n", 4, 6, 6])}, {"y": 1}, constants)
    return source, {"x": rng.standard_normal((2, 4, 6, 6)).astype(np.float32)}


def test_a_chain_stays_float(tmp_path: Path) -> None:
    source, feeds = chain()
    after = lowered(source)
    assert "Cast" not in ops(after)
    np.testing.assert_array_equal(run(after, feeds)["y"], run(source, feeds)["y"])
    assert_right_in_mnn(source, tmp_path, feeds=feeds, rtol=1e-6)


def test_reduce_mean() -> None:
    """onnxruntime has no kernel for it on the CPU: compared with the formula."""
    source, feeds = unary("QLinearReduceMean", "uint8", (2, 3, 4, 4), axes=[2, 3], keepdims=1)
    values = {name: np.asarray(Graph.of(source).constant(name), np.float32) for name in ("s", "z", "ys", "yz")}
    mean = ((feeds["x"].astype(np.float32) - values["z"]) * values["s"]).mean((2, 3), keepdims=True)
    want = np.clip(np.rint(mean / values["ys"]) + values["yz"], 0, 255)
    np.testing.assert_array_equal(run(lowered(source, "lower-for-mnn"), feeds)["y"], want)


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (unary("QLinearSoftmax", "uint8", (2, 4, 20), axis=1, opset=11), "all axes from 1 on"),
        (unary("QLinearAveragePool", "uint8", (1, 9, 9, 3), channels_last=1, **POOL), "channels come last"),
    ],
)
def test_refusals(built: Built, reason: str) -> None:
    graph = Graph.of(built[0])
    infer(graph)
    result = LowerForMnn().run(graph)
    assert not result.modified
    assert reason in result.refusals[0].reason
