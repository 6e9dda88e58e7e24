"""Rotary embeddings: equal to onnxruntime's kernel and ONNX's reference, and right in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx.reference import ReferenceEvaluator

from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_same, one_node, refusals

MS = "com.microsoft::"


def floats(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TABLES = {"c": floats(10, 4, seed=1), "s": floats(10, 4, seed=2)}
SHAPES = [((2, 5, 24), {}), ((2, 3, 5, 8), {}), ((2, 5, 36), {"num_heads": 3, "rotary_embedding_dim": 8})]
SHAPES += [((2, 3, 5, 12), {"num_heads": 3, "rotary_embedding_dim": 8})]
POSITIONS = {"offset": np.array([2]), "each": np.random.default_rng(1).integers(0, 10, (2, 5))}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(("shape", "attrs"), SHAPES)
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_contrib_rotary_embedding(
    interleaved: int, positions: str, shape: tuple[int, ...], attrs: dict[str, int], opset: int
) -> None:
    inputs = {"x": floats(*shape), "p": POSITIONS[positions], **TABLES}
    name = MS + "RotaryEmbedding"
    assert_same(*one_node(name, inputs, constants=["c", "s"], opset=opset, interleaved=interleaved, **attrs))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("positions", "shape"), [("offset", 0), ("each", 3)])
def test_contrib_rotary_right_in_mnn(interleaved: int, positions: str, shape: int, tmp_path: Path) -> None:
    dims, attrs = SHAPES[shape]
    inputs = {"x": floats(*dims), "p": POSITIONS[positions], **TABLES}
    model, feeds = one_node(
        MS + "RotaryEmbedding", inputs, constants=["c", "s"], interleaved=interleaved, dynamic=shape == 0, **attrs
    )
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("shape", "attrs"), SHAPES)
def test_rotary_embedding(interleaved: int, each: bool, shape: tuple[int, ...], attrs: dict[str, int]) -> None:
    tables = TABLES if each else {"c": floats(2, 5, 4, seed=1), "s": floats(2, 5, 4, seed=2)}
    inputs = {"x": floats(*shape), **tables} | ({"p": POSITIONS["each"]} if each else {})
    attrs = attrs or {"num_heads": 3}
    model, feeds = one_node("RotaryEmbedding", inputs, opset=23, interleaved=interleaved, **attrs)
    expected = ReferenceEvaluator(model.materialized()).run(None, dict(feeds))
    assert_same(model, feeds, expected={"y": np.asarray(expected[0])})


def test_multimodal_rotary_embedding() -> None:
    inputs = {"x": floats(2, 3, 5, 8), "p": np.random.default_rng(1).integers(0, 10, (3, 2, 5)), **TABLES}
    name = MS + "MRotaryEmbedding"
    assert_same(*one_node(name, inputs, constants=["c", "s"], mrope_section=[2, 1, 1]))
    mixed, _ = one_node(name, inputs, constants=["c", "s"], mrope_section=[2, 1, 1], mrope_layout=1)
    assert "interleaved" in refusals(mixed)[0]


def test_ragged_and_unknown_rotary_embeddings_are_refused() -> None:
    inputs = {"x": floats(2, 3, 5, 8), "p": POSITIONS["each"], **TABLES}
    assert "ragged" in refusals(one_node(MS + "RotaryEmbedding", inputs, is_packed_batching=1)[0])[0]
    dynamic, _ = one_node(MS + "RotaryEmbedding", inputs, dynamic=True)
    assert "width" in refusals(dynamic)[0]
