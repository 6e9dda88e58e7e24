"""com.microsoft Attention: every mask and state, against onnxruntime's CPU kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.graph import Graph
from graphkit.passes.split_attention import SplitAttention
from graphkit.testing import run
from tests.passes.attention.contrib_models import (
    Case,
    assert_split,
    attend,
    case,
    heads_of,
    ints,
    merged,
    randn,
    refusal,
)

MASKS = ("none", "lengths", "ends and starts", "cumulative", "keys", "width 1", "one", "pairs")


def mask_of(rng: np.random.Generator, kind: str, batch: int, sq: int, sk: int) -> tuple[Any, list[Any]]:
    """A mask of one kind and its dims when batch and lengths are dynamic."""
    if kind == "lengths":
        return ints(*rng.integers(1, sk + 1, batch)), ["batch"]
    if kind == "ends and starts":
        starts = rng.integers(0, sk, batch)
        return ints(*[min(start + 2, sk) for start in starts], *starts), ["2*batch"]
    if kind == "cumulative":
        return ints(*rng.integers(1, sk + 1, batch), *range(2 * batch + 2)), ["3*batch + 2"]
    if kind == "keys":
        mask = rng.integers(-1, 3, (batch, sk)).astype(np.int32)
        mask[:, 0] = 1
        return mask, ["batch", "total"]
    if kind == "pairs":
        mask = rng.integers(0, 2, (batch, sq, sk)).astype(np.int32)
        mask[:, :, 0] = 1
        return mask, ["batch", "seq", "total"]
    return (None, []) if kind == "none" else (np.zeros((batch if kind == "width 1" else 1, 1), np.int32), [None, 1])


def attention(
    seed: int = 0, *, mask: str = "none", past: int | None = None, bias: tuple[bool, bool] | None = None, **options: Any
) -> Case:
    """A random node; options: batch, seq, heads, size, value (size of a value's head), dynamic, present, opset, …"""
    rng = np.random.default_rng(seed)
    batch, seq, heads, size = (options.pop(name, default) for name, default in _SIZES)
    value, dynamic, present = options.pop("value", size), options.pop("dynamic", False), options.pop("present", False)
    total = seq + (past or 0)
    widths = [heads * size, heads * size, heads * value]
    if value != size:
        options["qkv_hidden_sizes"] = widths
    array, mask_dims = mask_of(rng, mask, batch, seq, total)
    state = randn(rng, 2, batch, heads, past, size) if past is not None else None
    shape = [batch if bias[0] else 1, heads if bias[1] else 1, seq, total] if bias else []
    dims: dict[int, Any] = {
        0: ["batch", "seq", 12],
        3: mask_dims,
        4: [2, "batch", heads, "past" if past else past, size],
    }
    inputs = [
        randn(rng, batch, seq, 12),
        randn(rng, 12, sum(widths)),
        randn(rng, sum(widths)) if options.pop("projection_bias", True) else None,
        array,
        state,
        randn(rng, *shape) if bias else None,
    ]
    outputs = 1 + (present or past is not None)
    return case(
        "Attention", inputs, outputs, dims=dims if dynamic else None, constants=(1, 2), num_heads=heads, **options
    )


_SIZES = (("batch", 2), ("seq", 4), ("heads", 2), ("size", 8))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_variants(data: st.DataObject) -> None:
    draw = data.draw
    past = draw(st.sampled_from([None, 0, 1, 3]))
    options: dict[str, Any] = {
        "mask": draw(st.sampled_from(MASKS)),
        "past": past,
        "bias": draw(st.sampled_from([None, (True, True), (False, True), (True, False)])) if past is None else None,
        "dynamic": draw(st.booleans()),
        "opset": draw(st.sampled_from([11, 12, 13, 15, 18, 21])),
        "unidirectional": draw(st.integers(0, 1)),
        "mask_filter_value": draw(st.sampled_from([-10000.0, -2.5])),
        "scale": draw(st.sampled_from([0.0, 0.25])),
        "batch": draw(st.integers(1, 3)),
        "seq": draw(st.integers(1, 5)),
        "heads": draw(st.sampled_from([1, 2, 4])),
        "projection_bias": draw(st.booleans()),
    }
    if past is None and draw(st.booleans()):
        options["value"] = 4
    elif past is None:
        options["present"] = draw(st.booleans())
    # A query that may see no key has its biases rounded beside -10000, in another order than onnxruntime's.
    rounded = options["bias"] is not None and options["mask"] != "none" and options["mask_filter_value"] < -1000
    assert_split(attention(draw(st.integers(0, 99)), **options), rtol=5e-3 if rounded else 1e-5)


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_mask_of_rank_4(past: int, dynamic: bool) -> None:
    """onnxruntime's CPU kernel lacks it: rows of the last queries, columns of all keys count."""
    rng = np.random.default_rng(3)
    x, weights, state = randn(rng, 2, 3, 12), randn(rng, 12, 48), randn(rng, 2, 2, 2, past, 8)
    mask = np.tril(rng.integers(0, 2, (2, 1, 6, 6)) | np.eye(6, dtype=np.int64)).astype(np.int32)
    dims = {0: ["batch", "seq", 12], 3: ["batch", 1, "longest", "longest"], 4: [2, "batch", 2, "past", 8]}
    tried = case(
        "Attention",
        [x, weights, None, mask, state],
        2,
        dims=dims if dynamic else None,
        constants=(1,),
        num_heads=2,
    )
    query, key, value = (heads_of(part, 2) for part in np.split(x @ weights, 3, axis=2))
    key, value = np.concatenate([state[0], key], axis=2), np.concatenate([state[1], value], axis=2)
    total = past + 3
    hidden = np.where(mask[:, :, past:total, :total] > 0, 0.0, -10000.0)
    expected = merged(attend(query, key, value, hidden)).astype(np.float32)
    assert_split(tried, {"out0": expected, "out1": np.stack([key, value])})


@pytest.mark.parametrize("kind", ["lengths", "ends and starts", "cumulative"])
@pytest.mark.parametrize("dims", [{3: ["some"]}, {0: ["batch", 4, 12], 3: [None]}])
def test_masks_whose_kind_shows_when_they_are_there(kind: str, dims: Any) -> None:
    rng = np.random.default_rng(4)
    mask, _ = mask_of(rng, kind, 2, 4, 4)
    inputs = [randn(rng, 2, 4, 12), randn(rng, 12, 48), None, mask]
    assert_split(case("Attention", inputs, dims=dims, constants=(1,), num_heads=2, mask_filter_value=-2.5))


def test_blocks_of_queries_compute_the_same() -> None:
    tried = attention(seq=7, mask="pairs", bias=(False, True), unidirectional=1)
    assert_split(tried, split=SplitAttention(chunk=3))


def test_float16_stays_float16() -> None:
    """onnxruntime has no CPU kernel for it: compared with the same in float32."""
    tried = attention(5, mask="keys", unidirectional=1)
    expected = run(tried.model, tried.feeds)["out0"]
    half = {name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in tried.feeds.items()}
    graph = Graph.of(tried.model)
    weights = [graph.constant(name).astype(np.float16) for name in ("in1", "in2")]  # type: ignore[union-attr]
    node = case("Attention", [half["in0"], *weights, half["in3"]], constants=(1, 2), num_heads=2, unidirectional=1)
    assert_split(node, {"out0": expected.astype(np.float16)}, rtol=1e-2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"do_rotary": 1}, "do_rotary"),
        ({"past": 3, "past_present_share_buffer": 1}, "past_present_share_buffer"),
        ({"value": 4, "present": True}, "different sizes, 16 and 8"),
        ({"opset": 10}, "opset 11"),
        ({"num_heads": 0}, "num_heads is missing"),
    ],
)
def test_refusals(options: dict[str, Any], reason: str) -> None:
    if "num_heads" in options:
        rng = np.random.default_rng(0)
        assert reason in refusal(case("Attention", [randn(rng, 1, 2, 4), randn(rng, 4, 12)], constants=(1,)))
        return
    assert reason in refusal(attention(**options))


@pytest.mark.parametrize(
    ("mask", "dims", "attrs", "reason"),
    [
        (ints(1, 2, 3), None, {}, "a mask of length 3 for a batch of 2"),
        (ints(*range(7)), None, {}, "a mask of length 7 for a batch of 2"),
        (ints(1, 2), {0: None}, {}, "the batch is not known"),
        (np.ones((2, 1, 4, 4, 1), np.int32), None, {}, "a mask of rank 5"),
        (np.ones((2, 1, 4, 4), np.int32), None, {"unidirectional": 1}, "unidirectional with a mask of rank 4"),
        (ints(1, 2), {3: None}, {}, "the rank of the mask is not known"),
    ],
)
def test_masks_that_are_refused(mask: Any, dims: Any, attrs: dict[str, int], reason: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [randn(rng, 2, 4, 12), randn(rng, 12, 48), None, mask]
    assert reason in refusal(case("Attention", inputs, dims=dims, constants=(1,), num_heads=2, **attrs))


@pytest.mark.parametrize(
    ("columns", "attrs", "dims", "reason"),
    [
        (48, {"qkv_hidden_sizes": [16, 16, 8]}, None, "qkv_hidden_sizes [16, 16, 8] for weights of 48 columns"),
        (40, {"qkv_hidden_sizes": [16, 8, 16]}, None, "query and key of different sizes"),
        (45, {}, None, "which 2 heads do not divide"),
        (48, {}, {1: [12, "columns"]}, "the size of the weights is not known"),
    ],
)
def test_sizes_that_are_refused(columns: int, attrs: dict[str, Any], dims: Any, reason: str) -> None:
    rng = np.random.default_rng(0)
    tried = case("Attention", [randn(rng, 2, 4, 12), randn(rng, 12, columns)], dims=dims, num_heads=2, **attrs)
    assert reason in refusal(tried)
