"""com.microsoft MultiHeadAttention and DecoderMaskedMultiHeadAttention, against onnxruntime's CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.passes.split_attention import SplitAttention
from tests.passes.attention.contrib_models import (
    Array,
    Case,
    assert_split,
    attend,
    case,
    heads_of,
    ints,
    merged,
    named,
    randn,
    refusal,
)

OP, MASKED = "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"
HEADS, SIZE, HIDDEN = 2, 8, 16
STATE = ["batch", HEADS, "past", SIZE]


def mask_of(rng: np.random.Generator, kind: str, batch: int, sq: int, sk: int) -> tuple[Array | None, list[str]]:
    """A mask of one kind that leaves every query a key, and its dims when they are dynamic."""
    if kind == "lengths":
        return ints(*rng.integers(1, sk + 1, batch)), ["batch"]
    if kind == "cumulative":
        return ints(*rng.integers(1, sk + 1, batch), *range(2 * batch + 2)), ["3*batch + 2"]
    if kind == "none":
        return None, []
    shape = (batch, sk) if kind == "keys" else (batch, sq, sk)
    mask = rng.integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask, ["batch", "total"] if kind == "keys" else ["batch", "seq", "total"]


def multihead(
    seed: int = 0, *, layout: str = "apart", mask: str = "none", past: int | None = None, **more: Any
) -> Case:
    """A random node; more: batch, sq, sk (new keys), value, bias, added, outputs, dynamic, and attributes."""
    rng = np.random.default_rng(seed)
    batch, sq, sk, value = (
        more.pop(name, default) for name, default in (("batch", 2), ("sq", 3), ("sk", 4), ("value", 8))
    )
    bias, added, dynamic = more.pop("bias", False), more.pop("added", None), more.pop("dynamic", False)
    total = sk + (past or 0)
    array, mask_dims = mask_of(rng, mask, batch, sq, total)
    wide = HEADS * value
    key, other = randn(rng, batch, sk, HIDDEN), randn(rng, batch, sk, wide)
    length = "seq" if sk == sq else "new"
    dims: dict[int, Any] = {0: ["batch", "seq", HIDDEN], 1: ["batch", length, HIDDEN], 2: ["batch", length, wide]}
    if layout == "split":
        key, other = heads_of(key, HEADS), heads_of(other, HEADS)
        dims.update({1: ["batch", HEADS, length, SIZE], 2: ["batch", HEADS, length, SIZE]})
    dims.update({4: mask_dims, 6: STATE, 7: STATE})
    rows = (batch if added[0] else 1, HEADS if added[1] else 1, sq, total) if added else ()
    state = [None if past is None else randn(rng, batch, HEADS, past, SIZE) for _ in range(2)]
    inputs = [
        randn(rng, batch, sq, HIDDEN),
        key,
        other,
        randn(rng, 2 * HIDDEN + wide) if bias else None,
        array,
        randn(rng, *rows) if added else None,
        *state,
    ]
    outputs = more.pop("outputs", 3 if past is not None else 1)
    dims = {place: shape for place, shape in dims.items() if inputs[place] is not None and (past or place < 6)}
    return case(OP, inputs, outputs, dims=dims if dynamic else None, constants=(3,), num_heads=HEADS, **more)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_variants(data: st.DataObject) -> None:
    draw = data.draw
    layout = draw(st.sampled_from(["apart", "apart", "split"]))
    past = draw(st.sampled_from([None, 0, 2])) if layout == "apart" else None
    options: dict[str, Any] = {
        "layout": layout,
        "past": past,
        "mask": draw(st.sampled_from(["none", "lengths", "cumulative", "keys", "pairs"])),
        "added": draw(st.sampled_from([None, (True, True), (False, True), (True, False), (False, False)])),
        "bias": draw(st.booleans()),
        "dynamic": draw(st.booleans()),
        "opset": draw(st.sampled_from([11, 12, 13, 15, 18, 21])),
        "unidirectional": draw(st.integers(0, 1)),
        "mask_filter_value": draw(st.sampled_from([-10000.0, -2.5])),
        "scale": draw(st.sampled_from([0.0, 0.25])),
        "batch": draw(st.integers(1, 3)),
        "sq": draw(st.integers(1, 5)),
        "sk": draw(st.integers(2, 5)),
    }
    if layout == "apart" and past is None:
        options["value"] = draw(st.sampled_from([4, 8]))
    if past is None:
        options["outputs"] = draw(st.sampled_from([1, 3, 4]))
    assert_split(multihead(draw(st.integers(0, 99)), **options))


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("fresh", [1, 3])
def test_past_in_a_buffer(unidirectional: int, fresh: int) -> None:
    rng = np.random.default_rng(1)
    inputs = [randn(rng, 2, fresh, HIDDEN) for _ in range(3)]
    buffers = [randn(rng, 2, HEADS, 9, SIZE) for _ in range(2)]
    tried = [*inputs, None, None, None, *buffers, ints(4)]
    state = ["batch", HEADS, "longest", SIZE]
    for dims in (None, {**{place: ["batch", "seq", HIDDEN] for place in range(3)}, 6: state, 7: state}):
        assert_split(case(OP, tried, 3, dims=dims, num_heads=HEADS, unidirectional=unidirectional))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_packed_query_key_and_value(with_bias: bool, dynamic: bool) -> None:
    """onnxruntime's CPU kernel lacks it."""
    rng = np.random.default_rng(2)
    packed, bias = randn(rng, 2, 3, HEADS, 3, SIZE), randn(rng, 3 * HIDDEN)
    inputs = [packed, None, None, bias if with_bias else None]
    dims = {0: ["batch", "seq", HEADS, 3, SIZE]} if dynamic else None
    sums = packed + bias.reshape(3, HEADS, SIZE).transpose(1, 0, 2) if with_bias else packed
    query, key, value = (sums[:, :, :, place].transpose(0, 2, 1, 3) for place in range(3))
    lower = np.where(np.tril(np.ones((3, 3))) > 0, 0.0, -np.inf)
    tried = case(OP, inputs, 3, dims=dims, constants=(3,), num_heads=HEADS, unidirectional=1)
    assert_split(tried, named(a=merged(attend(query, key, value, lower)), b=key, c=value))


def test_packed_key_and_value() -> None:
    """onnxruntime's CPU kernel lacks it."""
    rng = np.random.default_rng(3)
    query, packed = randn(rng, 2, 3, HIDDEN), randn(rng, 2, 4, HEADS, 2, SIZE)
    key, value = (packed[:, :, :, place].transpose(0, 2, 1, 3) for place in range(2))
    tried = case(OP, [query, packed], num_heads=HEADS)
    assert_split(tried, named(a=merged(attend(heads_of(query, HEADS), key, value))))


def test_blocks_of_queries_compute_the_same() -> None:
    tried = multihead(sq=7, sk=5, mask="pairs", added=(True, False), unidirectional=1)
    assert_split(tried, split=SplitAttention(chunk=3))


def decoder(seed: int = 0, *, cross: bool = False, dynamic: bool = False, **more: Any) -> Case:
    """A DecoderMaskedMultiHeadAttention; more: mask, added, bias, outputs, and attributes."""
    rng = np.random.default_rng(seed)
    inputs: list[Array | None] = [randn(rng, 2, 1, HIDDEN), *[None] * 10]
    total = 5 if cross else 4
    dims: dict[int, Any] = {0: ["batch", 1, HIDDEN]}
    for place in (1, 2):
        inputs[place] = randn(rng, *((2, HEADS, 5, SIZE) if cross else (2, 1, HIDDEN)))
        dims[place] = ["batch", HEADS, "keys", SIZE] if cross else ["batch", 1, HIDDEN]
    if not cross:
        inputs[5:8] = [randn(rng, 2, HEADS, 9, SIZE), randn(rng, 2, HEADS, 9, SIZE), ints(3)]
        dims.update({5: ["batch", HEADS, "longest", SIZE], 6: ["batch", HEADS, "longest", SIZE]})
        more["past_present_share_buffer"] = 1
    if more.pop("mask", False):
        inputs[3] = ints([1, 0, 1, 1, 1][:total], [0, 1, 1, 0, 1][:total])
        dims[3] = ["batch", "total"]
    if more.pop("added", False):
        inputs[4] = randn(rng, 1, HEADS, 1, total)
    if more.pop("bias", False):
        inputs[10] = randn(rng, 3 * HIDDEN)
    outputs = more.pop("outputs", 1 if cross else 3)
    return case(MASKED, inputs, outputs, dims=dims if dynamic else None, constants=(10,), num_heads=HEADS, **more)


@settings(max_examples=30, deadline=None)
@given(cross=st.booleans(), dynamic=st.booleans(), mask=st.booleans(), added=st.booleans(), bias=st.booleans())
def test_decoder(cross: bool, dynamic: bool, mask: bool, added: bool, bias: bool) -> None:
    assert_split(decoder(cross=cross, dynamic=dynamic, mask=mask, added=added and not cross, bias=bias, scale=0.3))


def test_decoder_shows_its_scores() -> None:
    assert_split(decoder(outputs=4, output_qk=1, mask=True, added=True, mask_filter_value=-2.5))


def test_decoder_with_a_packed_query() -> None:
    """onnxruntime's CPU kernel fails on it; the same as with query, key and value apart."""
    apart = decoder(4)
    parts = [apart.feeds[f"in{place}"] for place in range(3)]
    inputs = [
        np.concatenate(parts, axis=2),
        None,
        None,
        None,
        None,
        *(apart.feeds[f"in{place}"] for place in (5, 6, 7)),
    ]
    packed = case(MASKED, inputs, 3, num_heads=HEADS, past_present_share_buffer=1)
    key, value = (apart.feeds[name].copy() for name in ("in5", "in6"))
    key[:, :, 3], value[:, :, 3] = (heads_of(part, HEADS)[:, :, 0] for part in parts[1:])
    output = attend(heads_of(parts[0], HEADS), key[:, :, :4], value[:, :, :4])
    assert_split(packed, named(a=merged(output), b=key, c=value))


def _inputs(**places: Array | None) -> list[Array | None]:
    rng = np.random.default_rng(0)
    found: list[Array | None] = [randn(rng, 2, 3, HIDDEN) for _ in range(3)] + [None] * 7
    for place, array in places.items():
        found[int(place[1:])] = array
    return found


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (_inputs(_6=np.zeros((2, 2, 9, 8), np.float32), _9=np.zeros((2, 1, 9), np.int32)), "cache_indirection"),
        (_inputs(_6=np.zeros((2, 2, 9, 8), np.float32)), "past_key and past_value go together"),
        (_inputs(_1=None, _2=None), "query of rank 3 and key of rank 0"),
        (_inputs(_2=None), "the value and how the key is packed do not go together"),
        (
            _inputs(_1=np.zeros((2, 3, 2, 2, 8), np.float32), _2=None, _3=np.zeros(48, np.float32)),
            "a bias beside packed",
        ),
        (_inputs(_3=np.zeros(32, np.float32)), "a bias of size 32 for a hidden size of 16"),
        (_inputs(_4=ints(1, 2, 3, 4)), "a mask of length 4 for a batch of 2"),
        (_inputs(_0=np.zeros((2, 3, 15), np.float32)), "the hidden size is 15, which 2 heads do not divide"),
    ],
)
def test_refusals(inputs: list[Array | None], reason: str) -> None:
    assert reason in refusal(case(OP, inputs, num_heads=HEADS))


def test_refuses_unknown_ranks_and_sizes() -> None:
    assert "ranks of query and key" in refusal(case(OP, _inputs(), dims={0: None}, num_heads=HEADS))  # type: ignore[dict-item]
    assert "hidden size is not known" in refusal(case(OP, _inputs(), dims={0: [2, 3, "hidden"]}, num_heads=HEADS))


def test_refuses_other_element_types() -> None:
    inputs = [array.astype(np.float64) for array in _inputs()[:3] if array is not None]
    assert "float or float16" in refusal(case(OP, inputs, num_heads=HEADS))


@pytest.mark.parametrize(
    ("more", "changed", "reason"),
    [
        ({}, {8: ints(2)}, "beam_width"),
        ({}, {9: np.zeros((2, 1, 9), np.int32)}, "cache_indirection"),
        ({}, {7: None}, "past_present_share_buffer without past_sequence_length"),
        ({"past_present_share_buffer": 0}, {}, "past_sequence_length without a buffer"),
        ({"outputs": 4}, {}, "output 3 is used, but output_qk is 0"),
    ],
)
def test_refusals_of_the_decoder(more: dict[str, int], changed: dict[int, Array | None], reason: str) -> None:
    apart = decoder()
    inputs: list[Array | None] = [apart.feeds.get(f"in{place}") for place in range(10)]
    for place, array in changed.items():
        inputs[place] = array
    attrs = {"past_present_share_buffer": 1, **more}
    outputs = attrs.pop("outputs", 3)
    assert reason in refusal(case(MASKED, inputs, outputs, num_heads=HEADS, **attrs))
