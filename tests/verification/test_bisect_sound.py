"""Sound files from `convert` give no fault: passes that moved a name, noise of hard numbers, equal scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.mnn.fileinfo import FileOp
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.testing import graph_of, parse
from graphkit.verification.bisect._floors import floors
from graphkit.verification.bisect.alignment import align
from graphkit.verification.bisect.answer import BisectResult
from graphkit.verification.bisect.conclusions import rearranged
from graphkit.verification.bisect.locate_faults import bisect_layers
from graphkit.verification.bisect.references import gather

Feeds = dict[str, np.ndarray]


def shipped(model: Model, folder: Path) -> Path:
    """What `graphkit convert` makes of a model."""
    made = folder / "model.mnn"
    convert(model, made)
    return made


def bisected(text: str, folder: Path, feeds: Feeds | None = None) -> BisectResult:
    """A model in text against its own conversion."""
    model = parse(text, opset=17)
    return bisect_layers(model, shipped(model, folder), inputs=[feeds] if feeds else None, suggestions=False)


TRANSPOSES = """g (float[2,6,8,8] x) => (float[2,6,4,4] y) {
    a = Relu(x) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) q = Transpose<perm=[0,1,3,2]>(p) """


@pytest.mark.parametrize(
    "text",
    [
        TRANSPOSES + "y = Transpose<perm=[0,3,1,2]>(q) }",
        TRANSPOSES + "r = Transpose<perm=[0,2,1,3]>(q) y = Transpose<perm=[0,3,2,1]>(r) }",
        """g (float[2,6,8,8] x) => (float[2,8,6,8] y) <int64[1] s={0}, int64[1] e={8}, int64[1] ax={3}, int64[1] st={1}>
        { a = Abs(x) q = Transpose<perm=[0,3,1,2]>(a) y = Slice(q,s,e,ax,st) }""",
    ],
    ids=["two transposes", "three transposes", "a slice that takes everything"],
)
def test_passes_that_move_values_are_no_fault(tmp_path: Path, text: str) -> None:
    result = bisected(text, tmp_path)
    assert result.ok, result.lines()
    assert result.layers is not None
    assert result.layers.ok


def test_values_decide_between_the_ends_of_transposes() -> None:
    graph = graph_of("g (float[2,3,4] x) => (float[4,3,2] y) { p = Relu(x) q = Transpose(p) y = Identity(q) }")
    ops = [FileOp("ReLU", "p", ("x",), ("p",)), FileOp("Permute", "y", ("p",), ("y",))]
    (item,) = (item for item in align(graph, ops, ["y"]) if item.op.name == "p")
    assert (set(item.tensors) >= {"p", "q"}, item.sure, item.moved) == (True, False, True)


def test_an_operator_that_took_the_name_of_a_dropped_slice_reads_what_its_own_node_reads() -> None:
    graph = graph_of(
        """g (float[2,3] x, float[3,4] w, float[2,4] d, int64[1] s, int64[1] e) => (float[2,4] y)
        { m = MatMul(x, w) q = Div(m, d) y = Slice(q, s, e) }"""
    )
    ops = [
        FileOp("Convolution", "m__matmul_converted", ("x",), ("m__matmul_converted",)),
        FileOp("BinaryOp", "y", ("m__matmul_converted", "d"), ("y",)),
    ]
    (item,) = (item for item in align(graph, ops, ["y"]) if item.op.type == "Convolution")
    assert (item.tensors, item.sure) == (("m",), True)


NORM = """g (float[2,6,8] x) => (float[2,6,8] y)
    <float[8] g = {1,1,1,1,1,1,1,1}, float[8] b = {0,0,0,0,0,0,0,0}, float k = {30}>
    { a = Add(x, k) y = LayerNormalization(a, g, b) }"""


def test_a_norm_of_numbers_that_hardly_differ_is_noise() -> None:
    x = (np.random.default_rng(0).standard_normal((2, 6, 8)) * 1e-3).astype(np.float32)
    result = bisect_layers(parse(NORM, opset=17), inputs=[{"x": x}], suggestions=False)
    assert result.ok, result.lines()


def floor_of(text: str, feeds: Feeds) -> tuple[float, int]:
    """The largest floors of a model's nodes."""
    model = parse(text, opset=17)
    with gather(model, feeds) as references:
        found = floors(Graph.of(model), references).values()
    return max(floor.atol for floor in found), max(floor.flips for floor in found)


def test_the_floor_of_a_norm_grows_with_the_mean_over_the_deviation() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    near, usual = floor_of(NORM, {"x": x * np.float32(1e-3)})[0], floor_of(NORM, {"x": x})[0]
    assert 1e-3 < near < 3e-2
    assert usual < 1e-4


def test_the_small_values_of_a_softplus_are_noise(tmp_path: Path) -> None:
    x = np.full((2, 6, 8), 1.0, np.float32)
    x[0] = np.linspace(13.0, 15.0, 48, dtype=np.float32).reshape(6, 8)
    text = "g (float[2,6,8] x) => (float[2,6,8] y) { a = Neg(x) y = Softplus(a) }"
    result = bisected(text, tmp_path, {"x": np.abs(x) + np.float32(12)})
    assert result.ok, result.lines()


def test_noise_is_no_rearrangement() -> None:
    from graphkit.compare import Tolerance

    values = np.linspace(0, 1, 64, dtype=np.float32)
    assert not rearranged(values, values + np.float32(1e-4), Tolerance(1e-3))
    assert rearranged(values, values[::-1], Tolerance(1e-3))


TIES = """g (float[1,40] s, float[1,40,4] b) => (float[1,8] v, int64[1,8] i, float[1,8,4] box)
    <int64[1] k = {8}, int64[1] ax = {2}, int64[3] shp = {1, 8, 4}> {
    v, i = TopK<axis = 1>(s, k) u = Unsqueeze(i, ax) e = Expand(u, shp) box = GatherElements<axis = 1>(b, e) }"""


def tied_feeds(seed: int = 1) -> Feeds:
    """Scores of which many are equal."""
    rng = np.random.default_rng(seed)
    scores = (np.round(rng.uniform(0, 1, (1, 40)) * 4) / 4).astype(np.float32)
    return {"s": scores, "b": rng.uniform(0, 640, (1, 40, 4)).astype(np.float32)}


def test_equal_scores_in_another_order_are_no_fault() -> None:
    result = bisect_layers(parse(TIES, opset=17), inputs=[tied_feeds()], suggestions=False)
    assert result.ok, result.lines()
    assert "equal scores are in another order" in result.note
    assert "'box'" in result.note


def test_only_as_many_indices_may_differ_as_there_are_equal_scores() -> None:
    feeds = tied_feeds()
    assert floor_of(TIES, feeds)[1] == 8
    feeds["s"] = np.linspace(0, 1, 40, dtype=np.float32)[None]
    assert floor_of(TIES, feeds)[1] == 0


def test_a_branch_that_reads_past_a_dropped_node_is_judged(tmp_path: Path) -> None:
    text = """g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) <float zero = {0}> {
        a = Sigmoid(x) t = Transpose<perm=[0,1,2]>(a) r = ReduceSum<keepdims=0>(x) c = Less(r, zero)
        y = If (c) <then_branch = t () => (float[2,3,4] p) { k = Neg(t) p = Sub(k, t) },
        else_branch = e () => (float[2,3,4] q) { m = Sub(t, t) q = Neg(m) }> z = Neg(t) }"""
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    result = bisected(text, tmp_path, feeds)
    assert result.ok
    assert "not judged" not in result.note
    assert result.layers is not None
    assert any(row.place for row in result.layers.rows)
