"""Attention operators of onnxruntime that have CUDA kernels only, against what its documentation says, in numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

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

HEADS, SIZE, HIDDEN = 2, 8, 16
LENGTHS, LONGEST = (1, 2, 4), 4
TOKENS = sum(LENGTHS)
OFFSETS = ints([0, 4, 5, 8], [9, 10, 11, 1], [2, 3, 6, 7])  # those of tokens, row by row, then those of padding
STARTS = ints(0, 1, 3, 7)


def padded(tokens: Array) -> Array:
    """[tokens, …] → [batch, longest, …]."""
    whole = np.zeros((len(LENGTHS) * LONGEST, *tokens.shape[1:]), tokens.dtype)
    whole[OFFSETS.reshape(-1)[:TOKENS]] = tokens
    return whole.reshape(len(LENGTHS), LONGEST, *tokens.shape[1:])


def packed_attention(query: Array, key: Array, value: Array, bias: Any = 0.0, scale: float | None = None) -> Array:
    """Attention of each sequence for itself, [tokens, hidden]."""
    hidden = np.where(np.arange(LONGEST) < np.array(LENGTHS)[:, None], 0.0, -np.inf)[:, None, None]
    parts = [heads_of(padded(x), HEADS) for x in (query, key, value)]
    output = merged(attend(*parts, hidden + bias, scale))
    return output.reshape(-1, output.shape[2])[OFFSETS.reshape(-1)[:TOKENS]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [None, (1, HEADS), (3, 1)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_multihead(dynamic: bool, shape: tuple[int, int] | None, with_bias: bool) -> None:
    rng = np.random.default_rng(0)
    query, key, value = randn(rng, TOKENS, HIDDEN), randn(rng, TOKENS, HIDDEN), randn(rng, TOKENS, 12)
    bias = randn(rng, 44) if with_bias else None
    added = randn(rng, *shape, LONGEST, LONGEST) if shape else None
    dims = {0: ["tokens", HIDDEN], 1: ["tokens", HIDDEN], 2: ["tokens", 12], 4: ["batch", "seq"], 5: ["entries"]}
    inputs = [query, key, value, bias, OFFSETS, STARTS, added]
    name = "PackedMultiHeadAttention"
    tried = case(name, inputs, dims=dims if dynamic else None, constants=(3,), num_heads=HEADS, scale=0.3)
    sums = (query, key, value)
    if bias is not None:
        sums = (query + bias[:16], key + bias[16:32], value + bias[32:])
    assert_split(tried, named(a=packed_attention(*sums, 0.0 if added is None else added, 0.3)))


@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_multihead_in_one_value(with_bias: bool) -> None:
    rng = np.random.default_rng(1)
    packed, bias = randn(rng, TOKENS, HEADS, 3, SIZE), randn(rng, 3 * HIDDEN)
    inputs = [packed, None, None, bias if with_bias else None, OFFSETS, STARTS]
    tried = case("PackedMultiHeadAttention", inputs, num_heads=HEADS)
    sums = packed + bias.reshape(3, HEADS, SIZE).transpose(1, 0, 2) if with_bias else packed
    parts = (sums[:, :, place].reshape(TOKENS, HIDDEN) for place in range(3))
    assert_split(tried, named(a=packed_attention(*parts)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_packed_attention(dynamic: bool, opset: int) -> None:
    rng = np.random.default_rng(2)
    x, weights, bias = randn(rng, TOKENS, 12), randn(rng, 12, 40), randn(rng, 40)
    dims = {0: ["tokens", 12], 3: ["batch", "seq"], 4: ["entries"]} if dynamic else None
    inputs = [x, weights, bias, OFFSETS, STARTS]
    sizes = [HIDDEN, HIDDEN, 8]
    tried = case(
        "PackedAttention", inputs, dims=dims, constants=(1, 2), opset=opset, num_heads=HEADS, qkv_hidden_sizes=sizes
    )
    query, key, value = np.split(x @ weights + bias, [16, 32], axis=1)
    assert_split(tried, named(a=packed_attention(query, key, value)))


@pytest.mark.parametrize(
    ("query", "key", "offsets", "reason"),
    [
        (randn(np.random.default_rng(0), 7, 2, 8), None, OFFSETS, "the rank of the query"),
        (randn(np.random.default_rng(0), 7, 16), None, OFFSETS, "key and value are missing"),
        (randn(np.random.default_rng(0), 7, 16), None, OFFSETS.reshape(-1), "token_offset is not [batch, seq]"),
    ],
)
def test_refusals_of_packed_multihead(query: Array, key: Array | None, offsets: Array, reason: str) -> None:
    tried = case("PackedMultiHeadAttention", [query, key, key, None, offsets, STARTS], num_heads=HEADS)
    assert reason in refusal(tried)


WEIGHTS = [randn(np.random.default_rng(7), *shape) for shape in ((HIDDEN, HIDDEN), (HIDDEN, 2 * HIDDEN), (3 * HIDDEN,))]


def decoder(flags: tuple[bool, bool, bool, bool], **more: Any) -> tuple[Case, dict[str, Array]]:
    """A DecoderAttention (static_kv, use_past, has_layer_state, has_key_padding_mask) and what it computes."""
    rng = np.random.default_rng(5)
    static, use_past, state, masked = flags
    cached = use_past and state
    query, key = randn(rng, 3, 2, HIDDEN), randn(rng, 5, 2, HIDDEN)
    caches = [randn(rng, 2, HEADS, 4, SIZE) for _ in range(2)]
    kv = caches if static and cached else _projected(key if static else query)
    if cached and not static:
        kv = [np.concatenate(pair, axis=2) for pair in zip(caches, kv, strict=True)]
    mask = rng.random((2, kv[0].shape[2])) < 0.4
    mask[:, 0] = False
    heads = _turned(query @ WEIGHTS[0] + WEIGHTS[2][:HIDDEN])
    output = attend(heads, *kv, np.where(mask[:, None, None], -np.inf, 0.0) if masked else 0.0)
    inputs = [query, key, *WEIGHTS, mask, *caches, *(np.array([flag]) for flag in flags)]
    tried = case("DecoderAttention", inputs, 3, num_heads=HEADS, **{"constants": (2, 3, 4, 8, 9, 10, 11), **more})
    return tried, named(a=output.transpose(2, 0, 1, 3).reshape(3, 2, HIDDEN), b=kv[0], c=kv[1])


def _turned(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, SIZE).transpose(1, 2, 0, 3)


def _projected(x: Array) -> list[Array]:
    both = x @ WEIGHTS[1] + WEIGHTS[2][HIDDEN:]
    return [_turned(part) for part in np.split(both, 2, axis=2)]


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=4)))
@pytest.mark.parametrize("dynamic", [False, True])
def test_decoder_attention(flags: tuple[bool, bool, bool, bool], dynamic: bool) -> None:
    cache = ["batch", HEADS, "cache", SIZE]
    dims = {0: ["seq", "batch", HIDDEN], 1: ["keys", "batch", HIDDEN], 5: ["batch", "total"], 6: cache, 7: cache}
    assert_split(*decoder(flags, dims=dims if dynamic else None))


def test_decoder_attention_refuses_flags_that_are_not_known() -> None:
    tried, _ = decoder((True, True, True, True), constants=(2, 3, 4, 8, 10, 11))
    assert "use_past is not a constant" in refusal(tried)


def masked_self(changed: dict[int, Array | None] | None = None, **more: Any) -> tuple[Case, dict[str, Array]]:
    """A DecoderMaskedSelfAttention and what it computes; its keys are stored in groups of 4 numbers."""
    rng = np.random.default_rng(6)
    x, weights, bias = randn(rng, 2, 1, 12), randn(rng, 12, 48), randn(rng, 48)
    past, mask, added = randn(rng, 2, 2, HEADS, 9, SIZE), ints([1, 0, 1, 1], [0, 1, 1, 1]), randn(rng, 1, HEADS, 1, 4)
    query, key, value = (heads_of(part, HEADS) for part in np.split(x @ weights + bias, 3, axis=2))
    present = past.copy()
    present[0, :, :, 3], present[1, :, :, 3] = key[:, :, 0], value[:, :, 0]
    hidden = np.where(mask > 0, 0.0, -10000.0)[:, None, None] + added
    output = attend(query, present[0, :, :, :4], present[1, :, :, :4], hidden)
    inputs = [x, weights, bias, mask, np.stack([_stored(past[0]), past[1]]), added, ints(3), None, None]
    for place, array in (changed or {}).items():
        inputs[place] = array
    attrs = {"num_heads": HEADS, "past_present_share_buffer": 1, "constants": (1, 2), **more}
    tried = case("DecoderMaskedSelfAttention", inputs, 2, **attrs)
    return tried, named(a=merged(output), b=np.stack([_stored(present[0]), present[1]]))


def _stored(keys: Array) -> Array:
    groups = keys.reshape(*keys.shape[:3], SIZE // 4, 4)
    return groups.transpose(0, 1, 3, 2, 4).reshape(keys.shape)


@pytest.mark.parametrize("dynamic", [False, True])
def test_decoder_masked_self_attention(dynamic: bool) -> None:
    dims = {0: ["batch", 1, 12], 3: ["batch", "total"], 4: [2, "batch", HEADS, "longest", SIZE]}
    assert_split(*masked_self(dims=dims if dynamic else None))


@pytest.mark.parametrize(
    ("changed", "more", "reason"),
    [
        ({}, {"do_rotary": 1}, "do_rotary"),
        ({7: ints(2)}, {}, "beam_width"),
        ({8: np.zeros((2, 1, 9), np.int32)}, {}, "cache_indirection"),
        ({}, {"past_present_share_buffer": 0}, "a past without a buffer"),
        ({}, {"num_heads": 8}, "a head of size 2 is not in groups of 4"),
    ],
)
def test_refusals_of_masked_self_attention(changed: dict[int, Array | None], more: dict[str, Any], reason: str) -> None:
    assert reason in refusal(masked_self(changed, **more)[0])
