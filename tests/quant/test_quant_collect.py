"""Sums over layers' inputs, against what onnxruntime itself says the inputs are.

A layer whose matrix is the identity puts out its input vectors: so the oracle for every operator and every attribute
is onnxruntime's own kernel.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fixtures.naturals import natural
from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant import _exposed, _unfold
from graphkit.quant.collect import Hessian, collect, output_error, unseen
from graphkit.quant.layers import Layer, find_layers
from graphkit.runtime import Session
from graphkit.testing import parse, run

Array = npt.NDArray[Any]

# (graph up to the layer, attributes, shape of the weight, shapes of x in two samples)
LAYERS: dict[str, tuple[str, tuple[int, ...], Sequence[tuple[int, ...]]]] = {
    "conv": ("Conv<pads=[1,1,1,1]>", (0, 3, 3, 3), [(1, 3, 5, 6), (2, 3, 8, 7)]),
    "conv-strided": (
        "Conv<strides=[2,3],pads=[0,1,2,1],dilations=[2,1]>",
        (0, 2, 3, 2),
        [(1, 2, 9, 10), (3, 2, 11, 8)],
    ),
    "conv-same-upper": ('Conv<auto_pad="SAME_UPPER",strides=[2,2]>', (0, 2, 3, 4), [(1, 2, 7, 8), (1, 2, 6, 5)]),
    "conv-same-lower": ('Conv<auto_pad="SAME_LOWER",strides=[2,1]>', (0, 2, 4, 3), [(1, 2, 7, 8), (1, 2, 6, 5)]),
    "conv-valid": ('Conv<auto_pad="VALID">', (0, 2, 2, 3), [(1, 2, 4, 5)]),
    "conv-grouped": ("Conv<group=2,pads=[1,0,1,0]>", (0, 2, 3, 2), [(1, 4, 5, 6), (2, 4, 4, 4)]),
    "conv-depthwise": ("Conv<group=3,strides=[2,2],pads=[1,1,1,1]>", (0, 1, 3, 3), [(1, 3, 6, 7), (2, 3, 5, 5)]),
    "conv-1d": ("Conv<dilations=[2],pads=[3,1]>", (0, 3, 3), [(1, 3, 9), (2, 3, 6)]),
    "conv-pointwise": ("Conv", (0, 4, 1, 1), [(2, 4, 3, 5)]),
    "deconv": ("ConvTranspose<strides=[2,2],pads=[1,1,1,1]>", (3, 0, 3, 3), [(1, 3, 4, 5), (2, 3, 3, 3)]),
    "deconv-2x2": ("ConvTranspose<strides=[2,2]>", (2, 0, 2, 2), [(1, 2, 3, 5)]),
    "deconv-odd": (
        "ConvTranspose<strides=[3,2],pads=[0,2,1,0],output_padding=[1,1],dilations=[1,2]>",
        (2, 0, 2, 3),
        [(1, 2, 4, 5), (2, 2, 3, 2)],
    ),
    "deconv-cut": ("ConvTranspose<strides=[1,1],pads=[2,3,3,2]>", (2, 0, 2, 3), [(1, 2, 9, 9)]),
    "deconv-grouped": ("ConvTranspose<group=2,strides=[2,1],pads=[1,0,0,1]>", (4, 0, 3, 2), [(1, 4, 4, 5)]),
    "deconv-depthwise": ("ConvTranspose<group=3,strides=[2,2]>", (3, 0, 2, 2), [(1, 3, 4, 3)]),
    "deconv-same-upper": ('ConvTranspose<auto_pad="SAME_UPPER",strides=[2,2]>', (2, 0, 3, 5), [(1, 2, 4, 5)]),
    "deconv-same-lower": ('ConvTranspose<auto_pad="SAME_LOWER",strides=[2,2]>', (2, 0, 3, 5), [(1, 2, 4, 5)]),
    "deconv-shape": ("ConvTranspose<output_shape=[8,10],strides=[2,2]>", (2, 0, 3, 3), [(1, 2, 4, 5)]),
    "deconv-1d": ("ConvTranspose<strides=[4],pads=[1,2]>", (3, 0, 5), [(2, 3, 6), (1, 3, 4)]),
    "matmul": ("MatMul", (5, 0), [(4, 5), (7, 5)]),
    "matmul-3d": ("MatMul", (5, 0), [(2, 4, 5), (1, 7, 5)]),
    "matmul-4d": ("MatMul", (3, 0), [(2, 2, 4, 3)]),
    "gemm": ("Gemm", (5, 0), [(4, 5), (6, 5)]),
    "gemm-transposed": ("Gemm<transA=1,transB=1>", (0, 5), [(5, 4), (5, 9)]),
}


def the_layer(model: Model) -> Layer:
    (layer,), _ = find_layers(Graph.of(model))
    return layer


def one_layer(op: str, weight: tuple[int, ...], rank: int) -> tuple[Model, Layer]:
    """A model of one layer whose matrix is the identity (a group after the other)."""
    groups = int(op.split("group=")[1].split(",")[0].rstrip(">")) if "group=" in op else 1
    name, _, attrs = op.partition("<")
    per_group = int(np.prod(weight[1:] if weight[0] == 0 else (weight[0] // groups, *weight[2:])))
    rows = per_group if name == "ConvTranspose" else per_group * groups
    shape = tuple(size or rows for size in weight)
    dims, out = (",".join(f"{letter}{axis}" for axis in range(rank)) for letter in "de")
    call = f"{name} <{attrs} (x, w)" if attrs else f"{name}(x, w)"
    sizes = ",".join(map(str, shape))
    head, tail = f"g (float[{dims}] x) => (float[{out}] y) <float[{sizes}] w = {{", f"}}> {{ y = {call} }}"
    layer = the_layer(parse(head + ",".join(["1"] * int(np.prod(shape))) + tail))
    eye = layer.restore(np.tile(np.eye(layer.columns, dtype=np.float32), (groups, 1)))
    return parse(head + ",".join(map(str, eye.reshape(-1))) + tail), layer


def vectors_of(layer: Layer, y: Array) -> Array:
    """The output of an identity layer as [groups, columns, vectors]."""
    rows = np.moveaxis(y, 1, 0).reshape(y.shape[1], -1) if "Conv" in layer.kind else y.reshape(-1, y.shape[-1]).T
    return rows.reshape(layer.groups, layer.columns, -1)


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def squared(parts: Sequence[Array]) -> Array:
    wide = [part.astype(np.float64) for part in parts]
    return np.asarray(sum(part @ part.swapaxes(-1, -2) for part in wide))


@pytest.mark.parametrize("kind", LAYERS)
def test_sums_are_those_of_the_vectors_that_onnxruntime_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, weight, shapes = LAYERS[kind]
    model, layer = one_layer(op, weight, len(shapes[0]))
    samples = [{"x": noise(*shape, seed=number)} for number, shape in enumerate(shapes)]
    expected = [vectors_of(layer, run(model, sample)["y"]) for sample in samples]
    for piece in (_unfold._PIECE, 40):  # also cut into many pieces
        monkeypatch.setattr(_unfold.unfold, "__defaults__", (piece,))
        ((found, hessian),) = collect(model, [layer], samples)
        assert found is layer
        assert hessian.count == sum(part.shape[2] for part in expected)
        assert hessian.matrix.dtype == np.float32
        want = squared(expected)
        assert hessian.matrix.shape == (want[0] if layer.groups == 1 else want).shape
        np.testing.assert_allclose(hessian.matrix.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_output_error_is_what_onnxruntime_computes_with_other_weights(kind: str) -> None:
    op, weight, shapes = LAYERS[kind]
    model, layer = one_layer(op, weight, len(shapes[0]))
    samples = [{"x": noise(*shape, seed=number)} for number, shape in enumerate(shapes)]
    right, wrong = noise(layer.rows, layer.columns, seed=7), noise(layer.rows, layer.columns, seed=8)
    outputs = []
    for matrix in (right, wrong):
        graph = Graph.of(model)
        graph.set_initializer(layer.weight, layer.restore(matrix))
        changed = graph.to_model()
        outputs.append(np.concatenate([run(changed, sample)["y"].reshape(-1) for sample in samples]))
    expected = np.linalg.norm(outputs[0] - outputs[1]) / np.linalg.norm(outputs[0])
    ((_, hessian),) = collect(model, [layer], samples)
    assert output_error(hessian, right, wrong) == pytest.approx(expected, rel=1e-4)
    assert output_error(hessian, right, right) == 0


def test_output_error_of_nothing() -> None:
    hessian = Hessian(np.eye(2, dtype=np.float32), 2)
    zeros, ones = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    assert output_error(hessian, zeros, zeros) == 0
    assert output_error(hessian, zeros, ones) == float("inf")


CHAIN = """g (float[B,S,2] x) => (float[B,S,3] y)
<float[2,3] w1 = {1,2,3,4,5,6}, float[3,3] w2 = {1,0,2,0,1,0,2,0,1}, float[3,3] w3 = {1,1,1,0,1,1,0,0,1}> {
  a = MatMul(x, w1)
  r = Relu(a)
  b = MatMul(r, w2)
  c = MatMul(r, w3)
  s = Add(b, c)
  y = MatMul(s, w2)
}"""


def by_weight(found: Mapping[Layer, Hessian] | Any) -> dict[str, Hessian]:
    return {layer.weight: hessian for layer, hessian in found}


def chain_inputs(samples: Sequence[Mapping[str, Array]]) -> dict[str, list[Array]]:
    """The inputs of the chain's layers as [1, columns, vectors], computed with numpy."""
    w1 = np.array([[1, 2, 3], [4, 5, 6]], np.float64)
    w2 = np.array([[1, 0, 2], [0, 1, 0], [2, 0, 1]], np.float64)
    w3 = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1]], np.float64)
    found: dict[str, list[Array]] = {"w1": [], "w2": [], "w3": []}
    for sample in samples:
        x = sample["x"].reshape(-1, 2).astype(np.float64)
        r = np.maximum(x @ w1, 0)
        for name, value in (("w1", x), ("w2", r), ("w3", r), ("w2", r @ w2 + r @ w3)):
            found[name].append(value.T[None])
    return found


def test_a_weight_of_two_nodes_sums_over_both_and_layers_of_one_input_share_a_sum() -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    samples = [{"x": noise(2, 3, 2)}, {"x": noise(1, 5, 2, seed=1)}]
    found = by_weight(collect(model, layers, samples))
    assert list(found) == ["w1", "w2", "w3"]
    for name, parts in chain_inputs(samples).items():
        np.testing.assert_allclose(found[name].matrix, squared(parts)[0], rtol=1e-5)
        assert found[name].count == sum(part.shape[2] for part in parts)
    two = parse(CHAIN.replace("y = MatMul(s, w2)", "y = Relu(s)"))
    shared = by_weight(collect(two, find_layers(Graph.of(two))[0], samples))
    assert shared["w2"].matrix is shared["w3"].matrix
    with pytest.raises(ValueError, match="read-only"):
        shared["w2"].matrix += 1


def test_layers_come_in_the_order_of_the_graph() -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    samples = [{"x": noise(2, 3, 2)}]
    assert [layer.weight for layer, _ in collect(model, layers[::-1], samples)] == ["w1", "w2", "w3"]
    assert [layer.weight for layer, _ in collect(model, layers[1:2], samples)] == ["w2"]


def test_little_memory_means_more_passes_and_equal_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    samples = [{"x": noise(2, 3, 2, seed=seed)} for seed in range(3)]
    exposed: list[list[str]] = []
    session = _exposed.Exposed.session

    def watched(self: Any, values: Sequence[str], extra: Any = ()) -> Session:
        exposed.append([value for value in values if not value.startswith("graphkit_shape")])
        return session(self, values, extra)

    monkeypatch.setattr(_exposed.Exposed, "session", watched)
    found, steps = {}, {}
    for memory in (1 << 30, 1):
        exposed.clear()
        calls: list[tuple[int, int]] = []
        found[memory] = by_weight(
            collect(model, layers, samples, memory=memory, progress=lambda *call, log=calls: log.append(call))
        )
        steps[memory] = calls
    assert exposed == [[], ["r", "s"], ["r"]]  # x is fed; each layer alone, w1 needs no session
    assert steps[1 << 30] == [(1, 3), (2, 3), (3, 3)]
    assert steps[1] == [(number, 9) for number in range(1, 10)]
    for name, hessian in found[1 << 30].items():
        np.testing.assert_array_equal(hessian.matrix, found[1][name].matrix)


def test_sums_of_one_group_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    alive: list[weakref.ref[Array]] = []
    left: list[int] = []
    session = _exposed.Exposed.session

    def watched(self: Any, values: Sequence[str], extra: Any = ()) -> Session:
        gc.collect()
        left.append(sum(reference() is not None for reference in alive))
        return session(self, values, extra)

    monkeypatch.setattr(_exposed.Exposed, "session", watched)
    for _, hessian in collect(model, layers, [{"x": noise(2, 3, 2)}], memory=1):
        alive.append(weakref.ref(hessian.matrix))
        del hessian
    assert len(alive) == 3
    assert left == [0, 0, 0]


def test_many_short_samples_and_one_long_sum_up_alike() -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    x = noise(1, 5000, 2)
    short = by_weight(collect(model, layers, [{"x": x[:, i : i + 25]} for i in range(0, 5000, 25)]))
    for name, hessian in by_weight(collect(model, layers, [{"x": x}])).items():
        assert hessian.count == short[name].count
        np.testing.assert_allclose(short[name].matrix, hessian.matrix, rtol=1e-4)


MASKED = """g (int64[B,S] input_ids, int64[B,M] attention_mask) => (float[B,S,2] y, float[N,2] z, float[B,2] p)
<float[6,3] table = {1,2,3,4,5,6,7,8,9,1,3,5,2,4,6,9,7,5}, float[3,2] w1 = {1,2,3,4,5,6},
 float[3,2] w2 = {6,5,4,3,2,1}, float[3,2] w3 = {1,0,0,1,1,1}, int64[2] flat = {-1,3}, int64[1] one = {1}> {
  e = Gather(table, input_ids)
  y = MatMul(e, w1)
  f = Reshape(e, flat)
  z = Gemm(f, w2)
  m = ReduceMean<keepdims=0>(e, one)
  p = MatMul(m, w3)
}"""


@pytest.mark.parametrize("past", [0, 2])
def test_padding_tokens_do_not_count(past: int) -> None:
    model = parse(MASKED)
    layers = [layer for layer in find_layers(Graph.of(model))[0] if layer.kind != "Embedding"]
    ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    feeds = {"input_ids": ids, "attention_mask": np.pad(mask, ((0, 0), (past, 0)), constant_values=1)}
    found = by_weight(collect(model, layers, [feeds]))
    texts = (ids[:1, :3], ids[1:, :2])
    bare = [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in texts]
    expected = by_weight(collect(model, layers, bare))
    for name in ("w1", "w2"):
        assert found[name].count == 5
        np.testing.assert_array_equal(found[name].matrix, expected[name].matrix)
    assert found["w3"].count == 2  # pooled: no tokens, none left out
    everything = by_weight(collect(model, layers, [feeds | {"attention_mask": np.ones_like(ids)}]))
    assert everything["w1"].count == 8


@pytest.mark.parametrize("mask", [[[1, 1, 0.5, 0]], [[0, 0, 0, 0]], [[1, 0]]])
def test_what_is_no_mask_masks_nothing(mask: list[list[float]]) -> None:
    text = MASKED.replace("int64[B,M] attention_mask", "float[B,M] attention_mask")
    model = parse(text)
    layers = [layer for layer in find_layers(Graph.of(model))[0] if layer.weight == "w1"]
    feeds = {"input_ids": np.array([[1, 2, 3, 0]]), "attention_mask": np.array(mask, np.float32)}
    ((_, hessian),) = collect(model, layers, [feeds])
    assert hessian.count == 4


def test_embeddings_and_subgraphs_are_left_out_with_a_reason() -> None:
    text = """g (bool c, int64[N] i, float[N,2] x) => (float[N,2] y, float[N,2] e, float[N,2] d)
<float[3,2] table = {1,2,3,4,5,6}, float[2,2] w = {1,2,3,4}, float[2,2] v = {4,3,2,1}> {
  e = Gather(table, i)
  y = If(c) <then_branch = t () => (float[N,2] p) { p = MatMul(x, w) },
             else_branch = f () => (float[N,2] q) { q = MatMul(x, v) }>
  d = MatMul(x, v)
}"""
    model = parse(text)
    layers, _ = find_layers(Graph.of(model))
    names = {layer.weight: layer.name for layer in layers}
    reasons = unseen(model, layers)
    assert "Embedding" in reasons.pop(names["table"])
    assert "subgraph" in reasons.pop(names["w"])
    assert not reasons
    feeds = {"c": np.array(True), "i": np.array([0, 2]), "x": noise(2, 2)}
    ((layer, hessian),) = collect(model, layers, [feeds])
    assert (layer.weight, hessian.count) == ("v", 2)
    (table,) = [one for one in layers if one.weight == "table"]
    assert list(collect(model, [table], [feeds])) == []


def test_halves_are_summed_as_floats() -> None:
    text = "g (float16[N,2] x) => (float16[N,2] y) <float16[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }"
    model = parse(text)
    x = np.full((9, 2), 200, np.float16)
    ((_, hessian),) = collect(model, [the_layer(model)], [{"x": x}])
    np.testing.assert_array_equal(hessian.matrix, np.full((2, 2), 360_000, np.float32))


def test_a_default_of_an_input_may_be_what_a_layer_reads() -> None:
    text = """g (float[N,2] x, float[1,2] a) => (float[N,2] y, float[1,2] z)
<float[1,2] a = {3,4}, float[2,2] w = {1,2,3,4}> { z = MatMul(a, w) y = Add(x, z) }"""
    model = parse(text)
    layers, _ = find_layers(Graph.of(model))
    ((_, hessian),) = collect(model, layers, [{"x": noise(2, 2)}])
    np.testing.assert_array_equal(hessian.matrix, [[9, 12], [12, 16]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_inputs_that_are_not_finite_name_the_layer(bad: float) -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    x = noise(1, 4, 2)
    x[0, 1, 1] = bad
    with pytest.raises(ModelError, match="NaN or infinite") as caught:
        list(collect(model, layers, [{"x": x}]))
    assert caught.value.node == layers[0].name


def test_no_samples_and_samples_that_do_not_run() -> None:
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    with pytest.raises(UsageError, match="no samples"):
        next(collect(model, layers, []))
    with pytest.raises(GraphkitError, match="x"):
        next(collect(model, layers, [{"x": noise(1, 4, 3)}]))
    with pytest.raises(GraphkitError, match="x"):
        next(collect(model, layers, [{}]))


def test_files_are_gone_afterwards_also_when_nobody_waits_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = parse(CHAIN)
    layers, _ = find_layers(Graph.of(model))
    stream = collect(model, layers, [{"x": noise(1, 4, 2)}])
    next(stream)
    assert list(tmp_path.iterdir())
    stream.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model_id", ["ppocr4_rec", "ppocr4_det"])
def test_every_layer_of_a_real_model_puts_out_the_energy_its_sum_foretells(
    model_id: str, model_path: Callable[[str], Path]
) -> None:
    model = Model.load(model_path(model_id))
    graph = Graph.of(model)
    layers, _ = find_layers(graph)
    sample = natural(model_id)[0]
    found = dict(collect(model, layers, [sample]))
    assert set(found) == set(layers)
    outputs = [layer.outputs[0] for layer in layers if len(layer.nodes) == 1]
    with Session(model, outputs=outputs) as session:
        values = session.run(sample)
    for layer, hessian in found.items():
        if len(layer.nodes) > 1:
            continue
        node = graph.producer(layer.outputs[0])
        assert node is not None
        y = values[layer.outputs[0]].astype(np.float64)
        bias = graph.constant(node.input(2)) if node.input(2) else None
        if bias is not None:
            y = y - bias.reshape(1, -1, *[1] * (y.ndim - 2))
        array = graph.constant(layer.weight)
        assert array is not None
        weights = layer.matrix(array).astype(np.float64).reshape(layer.groups, -1, layer.columns)
        matrix = hessian.matrix.astype(np.float64).reshape(layer.groups, layer.columns, layer.columns)
        energy = np.einsum("grc,gcd,grd->", weights, matrix, weights, optimize=True)
        assert energy == pytest.approx(float((y * y).sum()), rel=1e-3), layer.name
