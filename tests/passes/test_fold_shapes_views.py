"""`fold-shapes`: chains of views, and gathers that are views."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.passes._shape_index import of_array
from graphkit.passes.fold_shapes import FoldShapes
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

PASS = FoldShapes()


def fold(text: str, opset: int = 18) -> Graph:
    """The graph after the pass; checks structure, equal outputs, and that a second run changes nothing."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    assert_equal_outputs(parse(text, opset=opset), graph.to_model())
    again = PASS.run(graph)
    assert not again.modified, again.changes
    return graph


# -- views ------------------------------------------------------------------------------------------------


def test_chains_of_unsqueeze_are_one() -> None:
    assert_rewrites(
        PASS,
        """agraph (float[n,m] x) => (float y) <int64[1] a = {1}, int64[1] b = {3}, int64[1] c = {0}> {
            u = Unsqueeze(x, a) v = Unsqueeze(u, b) w = Unsqueeze(v, c) y = Neg(w)
        }""",
        "agraph (float[n,m] x) => (float y) <int64[3] a = {0, 2, 4}> { w = Unsqueeze(x, a) y = Neg(w) }",
    )


def test_views_back_to_the_same_shape_go() -> None:
    text = """agraph (float[n,4] x) => (float y) <int64[1] r = {-1}> {
        a = Relu(x) f = Reshape(a, r) s = Shape(x) b = Reshape(f, s) y = Neg(b)
    }"""
    assert fold(text).op_counts() == {"Relu": 1, "Neg": 1}


def test_axes_as_attributes_in_old_operator_sets() -> None:
    text = "agraph (float[n,m] x) => (float y) { u = Unsqueeze<axes = [1]>(x) v = Unsqueeze<axes = [0]>(u) y = Neg(v) }"
    graph = fold(text, opset=11)
    assert graph.op_counts() == {"Unsqueeze": 1, "Neg": 1}
    assert graph.by_op("Unsqueeze")[0].attr("axes") == [0, 2]


def test_views_with_other_users_are_kept_for_them() -> None:
    text = """agraph (float[n,m] x) => (float y, float z) <int64[1] a = {0}> {
        u = Unsqueeze(x, a) v = Unsqueeze(u, a) y = Neg(v) z = Exp(u)
    }"""
    assert fold(text).op_counts() == {"Unsqueeze": 2, "Neg": 1, "Exp": 1}


def test_a_transpose_with_merged_batch_axes() -> None:
    text = """agraph (float[b,4,s,8] x) => (float y)
        <int64[1] r = {-1}, int64[1] four = {4}, int64[1] eight = {8}> {
        n = Shape<start = 0, end = 1>(x) s = Shape<start = 2, end = 3>(x)
        k = Concat<axis = 0>(r, s, eight) a = Reshape(x, k) t = Transpose<perm = [0, 2, 1]>(a)
        l = Concat<axis = 0>(n, four, eight, s) y = Reshape(t, l)
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Transpose": 1}
    assert graph.by_op("Transpose")[0].attr("perm") == [0, 1, 3, 2]


def test_a_transpose_of_other_axes_is_left() -> None:
    text = """agraph (float[2,4,6,8] x) => (float y) <int64[3] k = {8, 6, 8}, int64[4] l = {4, 2, 8, 6}> {
        a = Reshape(x, k) t = Transpose<perm = [0, 2, 1]>(a) y = Reshape(t, l)
    }"""
    assert_unchanged(PASS, text)


# -- gathers that are views -------------------------------------------------------------------------------

ARANGES = """
    s = Shape(x) zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
    n = Gather(s, zero) m = Gather(s, one) rn = Range(zero, n, one) rm = Range(zero, m, one)
    an = Constant<value_ints = [1, 2, 3]>() am = Constant<value_ints = [0, 1, 2]>()
    last = Constant<value_ints = [-1]>()
    bn = Unsqueeze(rn, an) bm = Unsqueeze(rm, am)
"""


def test_a_mask_gathered_by_flat_indices() -> None:
    text = f"""agraph (bool[n,m] x) => (bool y) {{ {ARANGES}
        f = Flatten<axis = 2>(x) k = Mul(bn, m) i = Add(bm, k) g = Gather(f, i) r = Reshape(g, last)
        l = Shape(i) v = Reshape(r, l) y = Not(v)
    }}"""
    graph = fold(text)
    assert graph.op_counts() == {"Unsqueeze": 1, "Not": 1}


def test_a_mask_gathered_by_coordinates() -> None:
    text = f"""agraph (bool[n,m] x) => (bool y) {{ {ARANGES}
        c = Max(bn, bm) l = Shape(c) en = Expand(bn, l) em = Expand(bm, l)
        un = Unsqueeze(en, last) um = Unsqueeze(em, last) i = Concat<axis = -1>(un, um)
        v = GatherND(x, i) y = Not(v)
    }}"""
    graph = fold(text)
    assert graph.op_counts() == {"Unsqueeze": 1, "Not": 1}


@pytest.mark.parametrize("indices", ["bm, bn", "bn, bn"])
def test_coordinates_in_another_order_are_left(indices: str) -> None:
    first, second = indices.split(", ")
    text = f"""agraph (bool[n,n] x) => (bool y) {{ {ARANGES}
        c = Max(bn, bm) l = Shape(c) en = Expand({first}, l) em = Expand({second}, l)
        un = Unsqueeze(en, last) um = Unsqueeze(em, last) i = Concat<axis = -1>(un, um)
        v = GatherND(x, i) y = Not(v)
    }}"""
    assert "GatherND" in fold(text).op_counts()


def test_constant_indices_that_take_everything() -> None:
    text = """agraph (float[6,n] x) => (float y)
        <int64[2,3] i = {0, 1, 2, 3, 4, 5}, int64[2,3] j = {0, 1, 2, 3, 5, 4}> {
        a = Gather(x, i) b = Gather(x, j) y = Add(a, b)
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Gather": 1, "Reshape": 1, "Add": 1}


def test_affine_forms_of_arrays() -> None:
    grid = np.arange(6).reshape(2, 3)
    assert of_array(grid) == (0, (3, 1))
    assert of_array(grid[:, ::-1] + 4) == (6, (3, -1))
    assert of_array(np.array([0, 1, 3])) is None
    assert of_array(np.zeros(0, dtype=np.int64)) is None
