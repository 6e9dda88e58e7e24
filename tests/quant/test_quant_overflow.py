"""The forecast for float16: what is large in a run, in the weights, and what cannot be seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fixtures.naturals import natural
from graphkit.errors import GraphkitError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant.overflow import HALF_MAX, HALF_TINY, forecast, weight_reaches
from graphkit.runtime import Session
from graphkit.testing import parse

GROWING = """g (float[N] x) => (float[N] y)
<float k = {300.0}, float low = {-3.4028235e38}, float big = {70000.0}> {
  a = Mul(x, k)
  b = Mul(a, k)
  c = Div(b, big)
  d = Min(c, low)
  y = Add(c, d)
}"""


def test_values_over_the_range_are_named_with_their_node_the_largest_first() -> None:
    model = parse(GROWING)
    found = forecast(model, [{"x": np.array([-1, 0.5], np.float32)}, {"x": np.array([], np.float32)}])
    reach = {value.tensor: value for value in found.values}
    assert {name: one.largest for name, one in reach.items()} == pytest.approx(
        {"x": 1, "a": 300, "b": 90000, "c": 90000 / 70000, "d": 0, "y": 0}
    )
    assert found.values[0] is reach["b"]
    assert [one.tensor for one in found.overflowing] == ["big", "b"]
    assert (reach["b"].node, reach["b"].op, reach["b"].kind) == ("b", "Mul", "value")
    assert (reach["x"].node, reach["x"].op) == ("x", "input")
    assert reach["b"].share == pytest.approx(90000 / HALF_MAX)
    assert not found.ok
    assert found.samples == 2
    assert not reach["a"].unbounded


def test_numbers_that_stand_for_infinity_are_told_apart_from_overflow() -> None:
    found = forecast(parse(GROWING), [{"x": np.array([0.1], np.float32)}])
    assert {one.tensor for one in found.unbounded} == {"low", "d", "y"}
    assert all(not one.overflows for one in found.unbounded)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_do_not_hide_other_values(bad: float) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    found = forecast(model, [{"x": np.array([bad, 70000, 3], np.float32)}])
    assert [(one.tensor, one.largest, one.unbounded) for one in found.values] == [
        ("x", 70000, True),
        ("y", 70000, True),
    ]


def test_the_largest_over_all_samples_counts() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Abs(x) }")
    found = forecast(model, [{"x": np.array([value], np.float32)} for value in (1, -40000, 7)])
    assert [one.largest for one in found.values] == [40000, 40000]
    assert {one.tensor for one in found.near} == {"x", "y"}
    assert found.ok


def test_half_the_range_is_near_and_its_end_still_fits() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Abs(x) }")
    at_end, beyond = (forecast(model, [{"x": np.array([v], np.float32)}]) for v in (HALF_MAX, HALF_MAX + 1))
    assert (at_end.ok, len(at_end.near)) == (True, 2)
    assert (beyond.ok, len(beyond.near)) == (False, 0)


def test_weights_over_the_range_and_weights_that_vanish() -> None:
    w = np.array([[70000, 1], [0, HALF_TINY]], np.float32)
    model = with_weight(w)
    (reach,) = weight_reaches(Graph.of(model))
    assert (reach.kind, reach.tensor, reach.node, reach.op) == ("weight", "w", "product", "MatMul")
    assert (reach.largest, reach.overflows, reach.vanishing) == (70000, True, 0.25)
    assert np.float16(HALF_TINY) == 0 < np.float16(HALF_TINY * 1.01)


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_weights_of_other_wide_types(dtype: int) -> None:
    tensor = helper.make_tensor("w", dtype, (2, 2), [70144.0, 1, 0, -1])  # 70144 is a bfloat16
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    infos = [helper.make_tensor_value_info(name, dtype, [None, 2]) for name in "xy"]
    proto = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:], [tensor]), ir_version=8)
    (reach,) = weight_reaches(Graph.of(Model.from_proto(proto)))
    assert reach.largest == 70144


def test_halves_and_integers_are_no_wide_weights() -> None:
    assert weight_reaches(Graph.of(with_weight(np.ones((2, 2), np.float16)))) == []
    assert weight_reaches(Graph.of(with_weight(np.ones((2, 2), np.int32)))) == []


def with_weight(array: np.ndarray[Any, Any]) -> Model:
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    infos = [helper.make_tensor_value_info(name, dtype, [None, 2]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [numpy_helper.from_array(array, "w")])
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_defaults_of_inputs_are_weights() -> None:
    text = "g (float[N] x, float[1] k) => (float[N] y) <float[1] k = {70000}> { y = Mul(x, k) }"
    (reach,) = weight_reaches(Graph.of(parse(text)))
    assert (reach.tensor, reach.largest) == ("k", 70000)


def test_values_in_subgraphs_are_counted_as_unseen_and_their_weights_are_seen() -> None:
    text = """g (bool c, float[N] x) => (float[N] y) {
  y = If(c) <then_branch = t () => (float[N] p) { k = Constant<value = float {80000.0}>() p = Mul(x, k) },
             else_branch = f () => (float[N] q) { q = Neg(x) }>
}"""
    found = forecast(parse(text), [{"c": np.array(False), "x": np.ones(2, np.float32)}])
    assert found.unseen == 3
    assert [one.tensor for one in found.values] == ["x", "y"]
    assert [(one.tensor, one.largest) for one in found.weights] == [("k", 80000)]


def test_little_memory_means_more_passes_and_equal_values() -> None:
    model = parse(GROWING)
    samples = [{"x": np.array([-1, 0.5], np.float32)}]
    calls: list[tuple[int, int]] = []
    tight = forecast(model, samples, memory=1, progress=lambda *call: calls.append(call))
    assert calls == [(number, 6) for number in range(1, 7)]
    assert tight == forecast(model, samples)


def test_no_samples_and_samples_that_do_not_run() -> None:
    model = parse(GROWING)
    with pytest.raises(UsageError, match="no samples"):
        forecast(model, [])
    with pytest.raises(GraphkitError, match="x"):
        forecast(model, [{"x": np.ones((2, 2), np.float32)}])


def test_a_real_model(model_path: Callable[[str], Path]) -> None:
    model = Model.load(model_path("ppocr4_det"))
    samples = natural("ppocr4_det")
    found = forecast(model, samples, memory=64 << 20)
    # A variance of 98 million in the head, which goes once BatchNormalization is fused.
    assert [one.op for one in found.overflowing] == ["BatchNormalization"]
    names = [one.tensor for one in found.values if one.op != "input"][:5]
    with Session(model, outputs=names) as session:
        runs = [session.run(sample) for sample in samples]
    for one in found.values:
        if one.tensor in names:
            assert one.largest == pytest.approx(max(float(np.abs(run[one.tensor]).max()) for run in runs))
