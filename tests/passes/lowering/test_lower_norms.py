"""Normalizations: equal to onnxruntime in ONNX at all opsets and types, and right in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, graph_of, parse, run
from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_right_everywhere, assert_same, one_node, refusals

FLOAT = TensorProto.FLOAT
F32 = npt.NDArray[np.float32]


def floats(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = floats(2, 6, 4, 5)


# -- LayerNormalization and RMSNormalization ---------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "scale", "bias"), [(-1, (1,), (1,)), (2, (4, 1), (5,)), (-1, (), (5,))])
def test_a_broadcast_scale_follows_behind(
    axis: int, scale: tuple[int, ...], bias: tuple[int, ...], tmp_path: Path
) -> None:
    inputs = {"x": X, "s": floats(*scale, seed=1), "b": floats(*bias, seed=2)}
    model, feeds = one_node("LayerNormalization", inputs, constants=["s", "b"], axis=axis)
    assert_same(model, feeds, left=["LayerNormalization"])
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def test_a_whole_scale_stays() -> None:
    text = """g (float[B,S,8] x, float[8] s, float[8] b) => (float[B,S,8] y) {
        y = LayerNormalization(x, s, b)
    }"""
    assert_unchanged(LowerForMnn(), text)


def test_a_broadcast_scale_over_unknown_sizes_is_refused() -> None:
    text = """g (float[B,S,N] x) => (float[B,S,N] y) <float[1] s = {2}> {
        y = LayerNormalization(x, s)
    }"""
    assert_unchanged(LowerForMnn(), text, refuses="unknown size")


@pytest.mark.parametrize("axis", [-1, 3, 2, 1, 0])
@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_rms_normalization(op: str, axis: int) -> None:
    if op[0] == "S" and axis not in (-1, 3):
        return  # onnxruntime's own is over the last axis
    scale = floats(*X.shape[axis if axis >= 0 else axis + 4 :], seed=1)
    model, feeds = one_node(op, {"x": X, "s": scale}, axis=axis, opset=23 if op[0] == "R" else 17)
    assert_same(model, feeds)


@pytest.mark.parametrize("axis", [-1, 2])
def test_rms_normalization_right_in_mnn(axis: int, tmp_path: Path) -> None:
    inputs = {"x": X, "s": floats(*X.shape[axis if axis >= 0 else axis + 4 :], seed=1)}
    model, feeds = one_node("RMSNormalization", inputs, constants=["s"], axis=axis, opset=23)
    assert_right_everywhere(model, feeds, tmp_path)


def test_rms_normalization_of_half_precision_computes_in_float() -> None:
    inputs = {"x": X.astype(np.float16), "s": floats(5).astype(np.float16)}
    graph = assert_same(*one_node("RMSNormalization", inputs, opset=23), rtol=2e-3)
    assert [node.op for node in graph.nodes].count("Cast") == 3


def test_a_saved_deviation_is_refused() -> None:
    outputs = {"y": FLOAT, "v": FLOAT}
    inputs = {"x": X, "s": floats(5)}
    assert "training" in refusals(one_node("SimplifiedLayerNormalization", inputs, outputs=outputs)[0])[0]


RMS = """g (float[2,5,8] x) => (float[2,5,8] y) <float two = {2}, float e = {0.001}, float[%s] w = {%s}> {
    q = Pow(x, two)
    m = ReduceMean<axes = [%s], keepdims = 1>(q)
    a = Add(m, e)
    r = Sqrt(a)
    d = Div(x, r)
    y = Mul(d, w)
}"""


def factor_text(shape: tuple[int, ...], axes: str = "-1") -> str:
    numbers = ", ".join(str(round(i / 7 - 2, 3)) for i in range(int(np.prod(shape))))
    return RMS % (",".join(map(str, shape)), numbers, axes)


@pytest.mark.parametrize(
    ("shape", "axes"), [((1,), "-1"), ((5, 1), "-1"), ((5, 8), "-1"), ((2, 1, 1), "-1"), ((8,), "1"), ((1, 1), "1")]
)
def test_a_factor_of_another_shape_goes_before_the_division(shape: tuple[int, ...], axes: str, tmp_path: Path) -> None:
    text = factor_text(shape, axes)
    model = parse(text, opset=17)
    feeds = {"x": floats(2, 5, 8)}
    graph = assert_same(model, feeds, left=[node.op_type for node in model.proto.graph.node])
    assert [node.op for node in graph.nodes][-1] == "Div"
    assert_right_in_mnn(text, tmp_path, feeds=feeds, opset=17)


@pytest.mark.parametrize(("shape", "axes"), [((8,), "-1"), ((1, 1, 8), "-1"), ((5, 1), "1"), ((5, 8), "1, 2")])
def test_a_factor_along_the_axes_stays(shape: tuple[int, ...], axes: str) -> None:
    assert_unchanged(LowerForMnn(), factor_text(shape, axes), opset=17)


# -- groups, instances, Lp, batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 7), (2, 6, 4, 5), (2, 6, 2, 3, 4)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_group_normalization(shape: tuple[int, ...], dynamic: bool) -> None:
    inputs = {"x": floats(*shape), "s": floats(6, seed=1), "b": floats(6, seed=2)}
    model, feeds = one_node(
        "GroupNormalization", inputs, constants=["s", "b"], opset=21, dynamic=dynamic, num_groups=3, epsilon=1e-2
    )
    assert_same(model, feeds)


def test_group_normalization_right_in_mnn(tmp_path: Path) -> None:
    inputs = {"x": X, "s": floats(6, seed=1), "b": floats(6, seed=2)}
    model, feeds = one_node("GroupNormalization", inputs, constants=["s", "b"], opset=21, num_groups=3)
    assert_right_everywhere(model, feeds, tmp_path)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_norm_of_zero_gives_zero(p: int, axis: int, tmp_path: Path) -> None:
    x = floats(3, 4)
    x[1] = 0
    model, feeds = one_node("LpNormalization", {"x": x}, p=p, axis=axis, opset=22)
    assert_right_everywhere(model, feeds, tmp_path)


STATISTICS = {"s": floats(6, seed=1), "b": floats(6, seed=2), "m": floats(6, seed=3), "v": np.abs(floats(6, seed=4))}


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 7), (2, 6, 4, 5)])
def test_batch_normalization_with_computed_statistics(opset: int, shape: tuple[int, ...]) -> None:
    model, feeds = one_node("BatchNormalization", {"x": floats(*shape), **STATISTICS}, opset=opset, constants=["m"])
    assert_same(model, feeds, rtol=2e-5)


def test_computed_statistics_right_in_mnn(tmp_path: Path) -> None:
    assert_right_everywhere(*one_node("BatchNormalization", {"x": X, **STATISTICS}, opset=15), tmp_path)


def test_statistics_per_element() -> None:
    inputs = {"x": floats(2, 3, 4), **{name: np.abs(floats(3, 4, seed=i)) for i, name in enumerate("sbmv")}}
    assert_same(*one_node("BatchNormalization", inputs, constants=list("sbmv"), opset=7, spatial=0))


@pytest.mark.parametrize("outputs", [("y",), ("y", "m2", "v2"), ("y", "_", "v2")])
def test_training_mode(outputs: tuple[str, ...], tmp_path: Path) -> None:
    kinds = dict.fromkeys(outputs, FLOAT)
    inputs = {"x": X, **STATISTICS}
    full, feeds = one_node(
        "BatchNormalization", inputs, opset=15, outputs={"y": FLOAT, "m2": FLOAT, "v2": FLOAT}, training_mode=1
    )
    known = run(full, feeds)
    model, feeds = one_node("BatchNormalization", inputs, opset=15, outputs=kinds, training_mode=1, momentum=0.9)
    expected = {name: known[name] for name in outputs if name != "_"}
    assert_right_everywhere(model, feeds, tmp_path, expected=expected)


def test_batch_normalization_by_constants_stays() -> None:
    model, _ = one_node("BatchNormalization", {"x": X, **STATISTICS}, constants=list("sbmv"), opset=15)
    assert refusals(model) == []


@pytest.mark.parametrize("opset", [9, 10, 13])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_old_operator_sets(p: int, opset: int) -> None:
    text = f"g (float[2, 3] x) => (float[2, 3] y) {{ y = LpNormalization<p = {p}>(x) }}"
    x = np.array([[0, -0.0, 0], [1, -2, 3]], np.float32)
    graph = graph_of(text, opset=opset)
    assert LowerForMnn().run(graph).modified
    graph.check()
    expected = run(parse(text, opset=opset), {"x": x})["y"]
    np.testing.assert_allclose(run(graph.to_model(), {"x": x})["y"], expected, rtol=1e-6)
