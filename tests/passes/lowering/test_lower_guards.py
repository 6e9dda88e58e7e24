"""IsNaN, IsInf and the NaN guards of attention: gone where that is proven, else by comparisons that MNN has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, graph_of, parse, run
from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_right_everywhere, assert_same, lowered, one_node

INF, NAN = np.inf, np.nan
ODD = np.array([[NAN, -NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 3.4e38, -3.4e38, 1, -2]], np.float32)
LOGICAL = {"y": TensorProto.BOOL}


def test_is_nan_right_in_mnn(tmp_path: Path) -> None:
    assert_right_everywhere(*one_node("IsNaN", {"x": ODD}, outputs=LOGICAL), tmp_path)


@pytest.mark.parametrize("opset", [9, 11, 13, 20])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_is_nan(opset: int, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        x = ODD.astype(dtype)
    model, feeds = one_node("IsNaN", {"x": x}, outputs=LOGICAL, opset=opset)
    expected = {"y": np.isnan(x)}
    assert_same(model, feeds, expected=expected)


@pytest.mark.parametrize("shape", [(), (1,), (3, 7)])
def test_is_nan_of_any_size(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.full(shape, NAN, np.float32)
    assert_right_everywhere(*one_node("IsNaN", {"x": x}, outputs=LOGICAL), tmp_path)


SIGNS = [(1, 1), (1, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize(("positive", "negative"), SIGNS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_inf(positive: int, negative: int, dtype: Any) -> None:
    attrs = {"detect_positive": positive, "detect_negative": negative}
    model, feeds = one_node("IsInf", {"x": ODD.astype(dtype)}, outputs=LOGICAL, **attrs)
    assert_same(model, feeds)


@pytest.mark.parametrize(("positive", "negative"), SIGNS)
def test_is_inf_right_in_mnn(positive: int, negative: int, tmp_path: Path) -> None:
    attrs = {"detect_positive": positive, "detect_negative": negative}
    model, feeds = one_node("IsInf", {"x": ODD}, outputs=LOGICAL, **attrs)
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


# -- guards behind Softmax --------------------------------------------------------------------------------------

GUARD = """p = Softmax<axis = -1>(s)
    n = IsNaN(p)
    y = Where(n, zero, p)"""
MASKS = {  # name → (inputs, initializers, nodes that make the mask m)
    "from outside": (", float[1,1,S,S] m", "", ""),
    "padding": (", bool[B,1,1,S] keep", "", "m = Where(keep, zero, inf)"),
    "causal and padding": (
        ", bool[B,1,1,S] keep",
        "",
        "i = Range(first, size, one)  r = Unsqueeze(i, to_rows)  c = Unsqueeze(i, to_columns)"
        " le = LessOrEqual(c, r)  k = And(le, keep)  m = Where(k, zero, inf)",
    ),
    "two huge ones": (", bool[B,1,1,S] keep", "", "a = Where(keep, zero, low)  m = Add(a, low)"),
    "upper triangle": ("", "", "u = Trilu<upper = 1>(ones, one)  k = Cast<to = 9>(u)  m = Where(k, zero, inf)"),
    "a column behind the rows": (
        "",
        "",
        "i = Range(first, size, one)  j = Add(i, one)  r = Unsqueeze(i, to_rows)  c = Unsqueeze(j, to_columns)"
        " k = LessOrEqual(c, r)  m = Where(k, zero, inf)",
    ),
}
OPEN = {
    "none": ("", "", "m = Identity(zero)"),
    "huge but finite": (", bool[B,1,1,S] keep", "", "m = Where(keep, zero, low)"),
    "causal": (
        "",
        "",
        "i = Range(first, size, one)  r = Unsqueeze(i, to_rows)  c = Unsqueeze(i, to_columns)"
        " k = LessOrEqual(c, r)  m = Where(k, zero, inf)",
    ),
    "causal by GreaterOrEqual": (
        "",
        "",
        "i = Range(first, size, one)  r = Unsqueeze(i, to_rows)  c = Unsqueeze(i, to_columns)"
        " g = GreaterOrEqual(r, c)  k = Or(g, g)  m = Where(k, zero, inf)",
    ),
    "lower triangle": ("", "", "u = Trilu<upper = 0>(ones)  k = Cast<to = 9>(u)  m = Where(k, zero, inf)"),
    "not masked": (
        "",
        "",
        "u = Trilu<upper = 0>(ones)  k = Cast<to = 9>(u)  n2 = Not(k)  w = Where(n2, inf, zero)"
        " m = Unsqueeze(w, to_columns)",
    ),
    "and with all": (
        "",
        "",
        "i = Range(first, size, one)  r = Unsqueeze(i, to_rows)  c = Unsqueeze(i, to_columns)"
        " le = LessOrEqual(c, r)  all = GreaterOrEqual(r, first)  k = And(le, all)  m = Where(k, zero, inf)",
    ),
}
WEIGHTS = """float zero = {0}, float low = {-3.4028235e38}, int64 first = {0}, int64 one = {1},
    int64[3] to_rows = {0, 1, 3}, int64[3] to_columns = {0, 1, 2}"""


def guarded(mask: tuple[str, str, str], *, opset: int = 18) -> Model:
    """Attention scores of q and k with a mask, their Softmax and its guard."""
    inputs, weights, nodes = mask
    return parse(
        f"""g (float[B,2,S,4] q, float[B,2,4,S] k_t{inputs}) => (float[B,2,S,S] y) <{WEIGHTS}{weights}> {{
        shape = Shape<start = 2, end = 3>(q)
        size = Squeeze(shape)
        square = Concat<axis = 0>(shape, shape)
        ones = ConstantOfShape<value = int64[1] {{1}}>(square)
        low1 = Mul(low, one_f)
        inf = Add(low, low1)
        {nodes}
        b = MatMul(q, k_t)
        s = Add(b, m)
        {GUARD}
    }}""".replace("int64 one = {1},", "int64 one = {1}, float one_f = {1},"),
        opset=opset,
    )


def folded(model: Model) -> Graph:
    """The graph after lowering, with the −inf made a constant first, as exporters write it."""
    graph = Graph.of(model)
    node = graph.producer("inf")
    assert node is not None
    graph.remove(node)
    graph.set_initializer("inf", np.array(-INF, np.float32))
    graph.remove_dead(list(graph.nodes))
    return Graph.of(Model.from_proto(graph.to_model().materialized()))


def feeds_for(graph: Graph, *, mask_all: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {
        "q": rng.standard_normal((2, 2, 5, 4)).astype(np.float32),
        "k_t": rng.standard_normal((2, 2, 4, 5)).astype(np.float32),
    }
    if "keep" in graph.inputs:
        feeds["keep"] = np.array([[1, 1, 1, 0, 0], [0 if mask_all else 1, 0, 0, 0, 0]], bool).reshape(2, 1, 1, 5)
    if "m" in graph.inputs:
        feeds["m"] = np.triu(np.full((1, 1, 5, 5), -INF, np.float32), 0 if mask_all else 1)
    return feeds


@pytest.mark.parametrize("name", OPEN)
def test_a_guard_goes_when_no_row_can_be_masked(name: str) -> None:
    graph = folded(guarded(OPEN[name]))
    feeds = feeds_for(graph, mask_all=True)
    before = run(graph.to_model(), feeds)["y"]
    assert np.isfinite(before).all()
    LowerForMnn().run(graph)
    softmax = next(node for node in graph.nodes if node.op == "Softmax")
    assert softmax.outputs == ("y",)
    np.testing.assert_array_equal(run(graph.to_model(), feeds)["y"], before)


@pytest.mark.parametrize("name", MASKS)
def test_a_guard_stays_when_a_row_can_be_masked(name: str) -> None:
    graph = folded(guarded(MASKS[name]))
    feeds = feeds_for(graph, mask_all=True)
    before = run(graph.to_model(), feeds)["y"]
    assert (before.sum(-1) == 0).any(), "the mask masks no row: not what is tested here"
    LowerForMnn().run(graph)
    assert [node.op for node in graph.nodes][-2:] == ["GreaterOrEqual", "Where"]
    np.testing.assert_array_equal(run(graph.to_model(), feeds)["y"], before)


@pytest.mark.parametrize("name", ["from outside", "padding", "causal and padding"])
@pytest.mark.parametrize("mask_all", [False, True])
def test_masked_rows_are_zero_in_mnn(name: str, mask_all: bool, tmp_path: Path) -> None:
    model = folded(guarded(MASKS[name])).to_model()
    assert_right_in_mnn(model, tmp_path, feeds=feeds_for(Graph.of(model), mask_all=mask_all))


@pytest.mark.parametrize("name", ["causal", "huge but finite", "lower triangle"])
def test_open_rows_right_in_mnn(name: str, tmp_path: Path) -> None:
    model = folded(guarded(OPEN[name])).to_model()
    assert_right_in_mnn(model, tmp_path, feeds=feeds_for(Graph.of(model), mask_all=True))


@pytest.mark.parametrize(
    ("mask", "goes"),
    [
        ([[0, -INF], [-INF, 0]], True),
        ([[0, -INF], [-INF, -INF]], False),
        ([[0, INF], [0, 0]], False),
        ([[0, NAN], [0, 0]], False),
        ([[0, -3.4e38], [-1, -2]], True),
    ],
)
def test_a_constant_mask_is_looked_at(mask: list[list[float]], goes: bool) -> None:
    text = """g (float[2,3] q, float[3,2] k) => (float[2,2] y) <float zero = {0}, float[2,2] m = {0,0,0,0}> {
        b = MatMul(q, k)
        s = Add(b, m)
        p = Softmax<axis = -1>(s)
        n = IsNaN(p)
        y = Where(n, zero, p)
    }"""
    graph = graph_of(text)
    graph.set_initializer("m", np.array(mask, np.float32))
    LowerForMnn().run(graph)
    assert ("Where" not in {node.op for node in graph.nodes}) == goes


def test_the_guard_of_an_input_becomes_a_comparison() -> None:
    before = """g (float[2,5] x) => (float[2,5] y) <float z = {0}> {
        p = Softmax<axis = -1>(x)
        n = IsNaN(p)
        y = Where(n, z, p)
    }"""
    after = """g (float[2,5] x) => (float[2,5] y) <float z = {0}> {
        p = Softmax<axis = -1>(x)
        n = GreaterOrEqual(p, p)
        y = Where(n, p, z)
    }"""
    x = np.array([[1, 2, -INF, 0, 1], [-INF] * 5], np.float32)
    assert_rewrites(LowerForMnn(), before, after, inputs={"x": x})


def test_other_uses_of_is_nan_keep_it() -> None:
    text = """g (float[2,5] x) => (float[2,5] y, bool[2,5] n) <float z = {0}> {
        n = IsNaN(x)
        y = Where(n, z, x)
    }"""
    model = parse(text)
    assert sorted(node.op for node in lowered(model).nodes) == ["GreaterOrEqual", "Not", "Where"]
    assert_same(model, {"x": ODD[:, :10].reshape(2, 5)}, left=["Where"])
