"""ArgMax, OneHot, Hardmax, CumProd and Einsum, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx.reference import ReferenceEvaluator

from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, graph_of, parse, run
from tests.in_mnn import assert_right_in_mnn

TIES = np.random.default_rng(1).integers(-3, 3, (3, 4, 5))


def assert_lowered(text: str, feeds: Mapping[str, Any], opset: int = 18) -> npt.NDArray[Any]:
    """The graph after the pass computes what it did before; returns that."""
    graph = graph_of(text, opset=opset)
    assert LowerForMnn().run(graph).modified
    graph.check()
    want, got = (
        np.asarray(next(iter(ReferenceEvaluator(model.materialized()).run(None, dict(feeds)))))
        for model in (parse(text, opset=opset), graph.to_model())
    )
    assert got.dtype == want.dtype
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return want


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", ["float", "int32", "int64"])
@pytest.mark.parametrize("shape", ["3, 4, 5", "A, B, C"])
def test_last_index_and_integers(kind: str, axis: int, keepdims: int, dtype: str, shape: str) -> None:
    x = TIES.astype({"float": np.float32, "int32": np.int32, "int64": np.int64}[dtype])
    out = "P, Q, R" if keepdims else "P, Q"
    for last in [1] if dtype == "float" else [0, 1]:
        attrs = f"axis = {axis}, keepdims = {keepdims}, select_last_index = {last}"
        assert_lowered(f"g ({dtype}[{shape}] x) => (int64[{out}] y) {{ y = {kind}<{attrs}>(x) }}", {"x": x})


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_argmax_in_mnn(kind: str, last: int, tmp_path: Path) -> None:
    text = f"g (int32[3, 4, N] x) => (int64[3, 4, 1] y) {{ y = {kind}<axis = -1, select_last_index = {last}>(x) }}"
    assert_right_in_mnn(text, tmp_path, feeds={"x": TIES.astype(np.int32)})


def test_argmax_below_opset_11_goes_through_floats() -> None:
    x = TIES[0].astype(np.int32)
    assert_lowered("g (int32[4, 5] x) => (int64[1, 5] y) { y = ArgMax(x) }", {"x": x}, opset=9)


def test_first_index_of_floats_stays() -> None:
    assert_unchanged(LowerForMnn(), "g (float[3, 4] x) => (int64[1, 4] y) { y = ArgMax(x) }")


def test_last_index_of_unknown_rank() -> None:
    text = "g (float[2] x) => (int64[1] y) { a = c.F(x) y = ArgMax<select_last_index = 1>(a) }"
    assert_unchanged(LowerForMnn(), text, refuses="unknown", imports={"c": 1})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["int64", "float"])
def test_one_hot(axis: int, kind: str, tmp_path: Path) -> None:
    indices = np.array([[0, -1], [2, -3]], np.int64 if kind == "int64" else np.float32)
    text = (
        f"g ({kind}[2, 2] i) => (float[P, Q, R] y) <{kind} d = {{3}}, float[2] v = {{2, 5}}>"
        f"{{ y = OneHot<axis = {axis}>(i, d, v) }}"
    )
    assert_lowered(text, {"i": indices})
    assert_right_in_mnn(text, tmp_path, feeds={"i": indices})


def test_one_hot_of_a_computed_depth(tmp_path: Path) -> None:
    text = (
        "g (int64[3] i, float d) => (float[P, 3] y) <float[2] v = {2, 5}>{ z = OneHot<axis = 0>(i, d, v) y = Neg(z) }"
    )
    feeds = {"i": np.array([0, -1, 2]), "d": np.array(4, np.float32)}
    want = assert_lowered(text, feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": want})


def test_one_hot_from_the_front_stays() -> None:
    text = "g () => (float[2, 3] y) <int64[2] i = {0, 2}, int64 d = {3}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }"
    assert_unchanged(LowerForMnn(), text)


def test_one_hot_of_unknown_types() -> None:
    text = "g (float[2] x) => (float[2, 3] y) <int64 d = {3}, float[2] v = {0, 1}> { a = c.F(x) y = OneHot(a, d, v) }"
    assert_unchanged(LowerForMnn(), text, refuses="element types", imports={"c": 1})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(axis: int) -> None:
    x = TIES.astype(np.float32)
    assert_lowered(f"g (float[3, 4, N] x) => (float[3, 4, N] y) {{ y = Hardmax<axis = {axis}>(x) }}", {"x": x})


def test_hardmax_of_all_axes_from_one_on(tmp_path: Path) -> None:
    text = "g (float[2, 3, 2] x) => (float[2, 3, 2] y) { y = Hardmax(x) }"
    x = np.array([[[1, 2], [5, 5], [0, 1]], [[-1, -2], [-3, -4], [-5, -1]]], np.float32)
    want = np.zeros((2, 3, 2), np.float32)
    want[0, 1, 0] = want[1, 0, 0] = 1
    assert_right_in_mnn(text, tmp_path, feeds={"x": x}, expected={"y": want}, opset=11)


def test_hardmax_of_unknown_rank() -> None:
    text = "g (float[2] x) => (float[2] y) { a = c.F(x) y = Hardmax(a) }"
    assert_unchanged(LowerForMnn(), text, refuses="unknown", imports={"c": 1})


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_product(axis: int, exclusive: int, reverse: int) -> None:
    text = (
        f"g (float[3, 5] x) => (float[3, 5] y) <int64 a = {{{axis}}}>"
        f"{{ y = CumProd<exclusive = {exclusive}, reverse = {reverse}>(x, a) }}"
    )
    x = np.random.default_rng(2).uniform(-2, 2, (3, 5)).astype(np.float32)
    assert_lowered(text, {"x": x}, opset=26)


def test_cumulative_product_in_mnn(tmp_path: Path) -> None:
    text = "g (int32[2, 5] x) => (int32[2, 5] y) <int64 a = {1}> { y = CumProd(x, a) }"
    x = np.array([[1, 2, 3, 4, 5], [2, -1, 2, 1, 3]], np.int32)
    assert_right_in_mnn(text, tmp_path, feeds={"x": x}, expected={"y": np.cumprod(x, 1)}, opset=26)


def test_cumulative_product_of_unknown_length() -> None:
    text = "g (float[N] x) => (float[N] y) <int64 a = {0}> { y = CumProd(x, a) }"
    assert_unchanged(LowerForMnn(), text, opset=26, refuses="shape not known")


EQUATIONS = [
    ("i,i", ["3", "3"]), ("ij,kj", ["2, 3", "4, 3"]), ("ij,jk,kl->il", ["2, 3", "3, 4", "4, 2"]),
    ("ii->", ["3, 3"]), ("...ii->...i", ["2, 3, 3"]), ("ij,jk->", ["2, 3", "3, 4"]), ("i,j->", ["2", "3"]),
    ("bii,bi->b", ["2, 3, 3", "2, 3"]), ("ij,jk->i", ["2, 3", "3, 4"]), ("a,b,c->abc", ["2", "3", "4"]),
    ("i...,j->j...", ["3, 2", "4"]),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: list[str], tmp_path: Path) -> None:
    inputs = ", ".join(f"float[{shape}] x{k}" for k, shape in enumerate(shapes))
    names = ", ".join(f"x{k}" for k in range(len(shapes)))
    rng = np.random.default_rng(4)
    sizes = [tuple(map(int, shape.split(", "))) for shape in shapes]
    feeds = {f"x{k}": rng.standard_normal(size).astype(np.float32) for k, size in enumerate(sizes)}
    want = np.einsum(equation, *feeds.values())
    out = f"[{', '.join(map(str, want.shape))}]" if want.ndim else ""
    text = f'g ({inputs}) => (float{out} y) {{ y = Einsum<equation = "{equation}">({names}) }}'
    assert_lowered(text, feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": np.asarray(want)})


def test_einsum_that_mnn_has_stays() -> None:
    text = 'g (float[2, 3] a, float[3, 4] b) => (float[2, 4] y) { y = Einsum<equation = "ij,jk->ik">(a, b) }'
    assert_unchanged(LowerForMnn(), text)


def test_einsum_refusals() -> None:
    text = 'g (int32[3] a, int32[3] b) => (int32 y) { y = Einsum<equation = "i,i">(a, b) }'
    assert_unchanged(LowerForMnn(), text, refuses="floats only")
    text = 'g (float[N, N] a) => (float y) { y = Einsum<equation = "ii->">(a) }'
    assert_unchanged(LowerForMnn(), text, refuses="diagonal")


def test_hardmax_of_a_vector(tmp_path: Path) -> None:
    assert_right_in_mnn("g (float[N] x) => (float[N] y) { y = Hardmax(x) }", tmp_path)
    assert_right_in_mnn("g (float[4] x) => (float[4] y) { y = Hardmax<axis = 0>(x) }", tmp_path)


@pytest.mark.parametrize("kind", ["int64", "float"])
def test_one_hot_of_indices_past_both_ends(kind: str, tmp_path: Path) -> None:
    text = f"""g ({kind}[1, 7] i) => (float[1, 7, 3] y) <{kind}[1] d = {{3}}, float[2] v = {{0, 1}}>
        {{ y = OneHot(i, d, v) }}"""
    feeds = {"i": np.array([[-9, -4, -3, -1, 2, 3, 7]], np.float32 if kind == "float" else np.int64)}
    model = parse(text)
    np.testing.assert_array_equal(run(optimize(model, "mnn").model, feeds)["y"], run(model, feeds)["y"])
    assert_right_in_mnn(model, tmp_path, feeds=feeds)
