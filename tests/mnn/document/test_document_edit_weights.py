"""Weights replaced: each kind of operator, types, quantized and outside weights, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import CNN, IMAGE, Array, cnn_weights, computed, convert, op_of, random, refused

from graphkit.errors import ModelError
from graphkit.mnn.document import Document, dump, read
from graphkit.mnn.document.edits import (
    set_weights,
    weight_fields,
)

After = Callable[..., dict[str, Array]]


def test_a_convolution(cnn: Document, folder: Path, after: After) -> None:
    weight, bias = random(4, 3, 3, 3, seed=5), random(4, seed=6)
    edits = set_weights(cnn, "c", {"weight": weight, "bias": bias})
    assert [edit.where for edit in edits] == ["ops[c].main.weight", "ops[c].main.bias"]
    right = convert(folder / "other.mnn", CNN, {**cnn_weights(), "w": weight, "b": bias})
    np.testing.assert_array_equal(after(cnn)["y"], computed(right, IMAGE)["y"])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8])
def test_other_types_and_a_flat_array(cnn: Document, after: After, dtype: Any) -> None:
    weight = np.round(random(4, 3, 3, 3) * 8).astype(dtype)
    set_weights(cnn, "c", weight.reshape(-1))
    stored = op_of(cnn, "c")["main"]["weight"]
    assert stored.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(stored, weight.reshape(-1))
    assert np.isfinite(after(cnn)["y"]).all()


def test_a_constant(cnn: Document, before: dict[str, Array], after: After) -> None:
    set_weights(cnn, "two", 6.0)
    np.testing.assert_allclose(after(cnn, IMAGE, ["m"])["m"], 3 * before["m"], rtol=1e-6)


KINDS = {
    "linear": ("g (float[2, 6] x) => (float[2, 4] y) { y = MatMul(x, w) }", {"w": (6, 4)}, {"weight": (4, 6)}),
    "transposed": (
        "g (float[1, 4, 6, 6] x) => (float[1, 3, n, m] y) { y = ConvTranspose(x, w) }",
        {"w": (4, 3, 2, 5)},
        {"weight": (4, 3, 2, 5)},
    ),
    "depthwise": (
        "g (float[1, 4, 6, 6] x) => (float[1, 4, n, m] y) { y = Conv<group = 4>(x, w) }",
        {"w": (4, 1, 3, 3)},
        {"weight": (4, 1, 3, 3), "bias": (4,)},
    ),
    "conv1d": (
        "g (float[1, 3, 9] x) => (float[1, 5, n] y) { y = Conv(x, w) }",
        {"w": (5, 3, 3)},
        {"weight": (5, 3, 3)},
    ),
    "layernorm": (
        "g (float[2, 3, 8] x) => (float[2, 3, 8] y) { y = LayerNormalization(x, w, b) }",
        {"w": (8,), "b": (8,)},
        {"gamma": (8,), "beta": (8,)},
    ),
    "scale": (
        "g (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y) { t = Tanh(x) y = BatchNormalization(t, w, b, mean, var) }",
        {"w": (4,), "b": (4,), "mean": (4,), "var": (4,)},
        {"scaleData": (4,), "biasData": (4,)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_each_kind(folder: Path, after: After, kind: str) -> None:
    """Doubling all of a layer's arrays doubles what it gives."""
    text, shapes, fields = KINDS[kind]
    weights = {name: np.abs(random(*shape, seed=len(name))) for name, shape in shapes.items()}
    doc = read(convert(folder / f"{kind}.mnn", text, weights))
    spec = doc.net["oplists"][0]["main"].ints("dims")
    feeds = {"x": random(*spec)}
    before = after(doc, feeds)["y"]
    at = next(at for at, op in enumerate(doc.net["oplists"]) if set(fields) <= set(weight_fields(op)))
    arrays = {name: 2 * (doc.net["oplists"][at]["main"][name]).reshape(shape) for name, shape in fields.items()}
    set_weights(doc, at, arrays)
    np.testing.assert_allclose(after(doc, feeds)["y"], 2 * before, rtol=1e-5, atol=1e-6)


def test_integers_of_a_constant(folder: Path, after: After) -> None:
    text = """g (float[2, 3, 4] x) => (float[a, b] y) { y = Reshape(x, s) }"""
    weights = {"s": np.array([6, 4], np.int64)}
    doc = read(convert(folder / "reshape.mnn", text, weights))
    set_weights(doc, "s", np.array([3, 8]))
    image = random(2, 3, 4)
    np.testing.assert_array_equal(after(doc, {"x": image})["y"], image.reshape(3, 8))
    refused(doc, lambda: set_weights(doc, "s", np.array([2.5, 1])), "is stored as int32, which cannot hold 2.5")
    refused(doc, lambda: set_weights(doc, "s", np.array([2**31, 1])), "cannot hold 2147483648")
    refused(doc, lambda: set_weights(doc, "s", np.array([np.nan, 1])), "cannot hold nan")
    refused(doc, lambda: set_weights(doc, "s", np.array(["a", "b"])), "takes numbers")


def test_half_floats_stay_half_floats(folder: Path, after: After) -> None:
    doc = read(convert(folder / "half.mnn", CNN, cnn_weights(), fp16=True))
    weight = random(4, 3, 3, 3, seed=9)
    size = len(dump(doc))
    set_weights(doc, "c", weight)
    set_weights(doc, "two", 2)
    assert len(dump(doc)) == size
    rounded = {**cnn_weights(), "w": weight.astype(np.float16).astype(np.float32)}
    right = computed(convert(folder / "half2.mnn", CNN, rounded), IMAGE)["y"]
    np.testing.assert_array_equal(after(doc)["y"], right)
    refused(doc, lambda: set_weights(doc, "c", 1e6 * weight), "is stored as float16, which cannot hold")


def test_quantized_weights_are_kept_unless_told(folder: Path, after: After) -> None:
    text = "g (float[1, 64, 6, 6] x) => (float[1, 64, 4, 4] y) { c = Conv(x, w) y = Tanh(c) }"
    weights = {"w": random(64, 64, 3, 3) / 24}
    doc = read(convert(folder / "quantized.mnn", text, weights, weightQuantBits=8))
    hint = refused(
        doc, lambda: set_weights(doc, "c", weights["w"]), "ops[c].main.weight is quantized (8-bit codes), and floats"
    )
    assert "--dequantize" in hint
    set_weights(doc, "c", {"bias": np.ones(64)})
    assert "quanParameter" in op_of(doc, "c")["main"]
    (edit,) = set_weights(doc, "c", weights["w"], dequantize=True)
    assert "in place of 8-bit codes" in edit.detail
    assert "quanParameter" not in op_of(doc, "c")["main"]
    right = read(convert(folder / "float.mnn", text, weights))
    set_weights(right, "c", {"bias": np.ones(64)})
    feeds = {"x": random(1, 64, 6, 6)}
    np.testing.assert_array_equal(after(doc, feeds)["y"], after(right, feeds)["y"])


@pytest.mark.parametrize("options", [{}, {"weightQuantBits": 8}, {"fp16": True}])
def test_weights_kept_outside_move_in(folder: Path, after: After, options: dict[str, Any]) -> None:
    text = """g (float[1, 64, 6, 6] x) => (float[1, 64, 2, 2] y)
        { c = Conv(x, w) d = Tanh(c) e = Conv(d, w2, b2) y = Tanh(e) }"""
    weights = {"w": random(64, 64, 3, 3) / 24, "w2": random(64, 64, 3, 3) / 24, "b2": random(64)}
    doc = read(
        convert(folder / f"out{len(options)}{len(str(options))}.mnn", text, weights, saveExternalData=1, **options)
    )
    assert doc.weights is not None
    feeds = {"x": random(1, 64, 6, 6)}
    before = after(doc, feeds)["y"]
    main = op_of(doc, "e")["main"]
    assert "external" in main
    if "bias" in main:
        pytest.skip("this MNN keeps the bias inside")
    set_weights(doc, "e", {"bias": weights["b2"]})
    assert "external" not in main
    assert "external" in op_of(doc, "c")["main"]
    np.testing.assert_array_equal(after(doc, feeds)["y"], before)
    set_weights(doc, "c", {"bias": np.zeros(64)})
    assert doc.weights is None
    np.testing.assert_array_equal(after(doc, feeds)["y"], before)


def test_missing_outside_weights_are_named(folder: Path) -> None:
    path = convert(folder / "lost.mnn", CNN, cnn_weights(), saveExternalData=1)
    path.with_name("lost.mnn.weight").unlink()
    doc = read(path)
    hint = refused(
        doc, lambda: set_weights(doc, "c", {"bias": np.ones(4)}), "second file, which is missing", ModelError
    )
    assert "lost.mnn.weight" in hint


@pytest.mark.parametrize(
    ("op", "arrays", "message"),
    [
        ("c", random(3, 4, 3, 3), "has the shape [4,3,3,3] (108 numbers), the array [3,4,3,3]"),
        ("c", random(107), "the array [107]"),
        ("c", {"bias": random(5)}, "ops[c].main.bias has the shape [4] (4 numbers), the array [5]"),
        ("c", {"wieght": random(108)}, "ops[c] has no array 'wieght'"),
        ("c", np.array(["a"] * 108), "takes numbers"),
        ("c", np.full(108, 1e39), "is stored as float32, which cannot hold 1e+39"),
        ("two", random(2), "ops[two].main has the shape [] (1 numbers), the array [2]"),
        ("t", random(2), "ops[t] (UnaryOp) has no weights"),
        ("x", random(2), "ops[x] (Input) has no weights"),
        ("cc", random(2), "no operator is named 'cc'"),
        ("c", {"bias": random(4), "weight": random(4)}, "the array [4]"),
    ],
)
def test_weights_that_are_refused(cnn: Document, op: str, arrays: Any, message: str) -> None:
    hint = refused(cnn, lambda: set_weights(cnn, op, arrays), message)
    if message.endswith("[3,4,3,3]"):
        assert "transpose" in hint
