"""Attention operators of onnxruntime in MNN: one of each kind, as the preset `mnn` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.in_mnn import assert_right_in_mnn
from tests.passes.attention.contrib_models import case, named, randn
from tests.passes.attention.test_contrib_attention import attention
from tests.passes.attention.test_contrib_group_query import group_query
from tests.passes.attention.test_contrib_multihead import decoder, multihead
from tests.passes.attention.test_contrib_packed import OFFSETS, STARTS, masked_self, packed_attention
from tests.passes.attention.test_contrib_packed import decoder as with_flags


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "lengths", "unidirectional": 1},
        {"mask": "ends and starts"},
        {"mask": "keys", "past": 3, "unidirectional": 1},
        {"mask": "pairs", "bias": (False, True)},
        {"past": 0, "unidirectional": 1},
    ],
    ids=str,
)
def test_attention(options: dict[str, Any], tmp_path: Path) -> None:
    tried = attention(dynamic=True, **options)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True, "mask": "lengths", "value": 4},
        {"past": 2, "mask": "keys", "added": (True, False), "unidirectional": 1},
        {"layout": "split", "mask": "cumulative"},
        {"sq": 2, "sk": 5, "unidirectional": 1, "outputs": 4},
    ],
    ids=str,
)
def test_multihead(options: dict[str, Any], tmp_path: Path) -> None:
    tried = multihead(dynamic=True, **options)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


@pytest.mark.parametrize(
    "options",
    [
        {"step": "padded prompt", "rotated": 16},
        {"step": "prompt into a buffer", "packed": True},
        {"step": "decoding, growing", "rotated": 16, "rotary_interleaved": 1, "positions": True},
        {"step": "decoding in a buffer", "sink": True, "softcap": 1.5, "local_window_size": 2},
        {"step": "more prompt, growing", "bias": (False, True), "qk_output": 1, "outputs": 4},
        {"step": "prompt, empty past", "smooth_softmax": 1},
    ],
    ids=str,
)
def test_group_query(options: dict[str, Any], tmp_path: Path) -> None:
    tried = group_query(dynamic=True, **options)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


@pytest.mark.parametrize("step", ["prompt", "decoding, growing", "decoding in a buffer"])
def test_group_query_of_known_lengths(step: str, tmp_path: Path) -> None:
    tried = group_query(step=step, constant=True, rotated=16, sink=True, local_window_size=3)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


def test_an_empty_past_that_is_known_when_it_runs_only(tmp_path: Path) -> None:
    """A prompt in a model that has the length of the past as a dynamic dim."""
    known = group_query(step="prompt, empty past")
    inputs = [known.feeds[f"in{place}"] for place in range(7)]
    past = ["batch", 2, "past", 16]
    tried = case("GroupQueryAttention", inputs, 3, dims={3: past, 4: past}, num_heads=4, kv_num_heads=2)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


@pytest.mark.parametrize("cross", [False, True])
def test_decoder(cross: bool, tmp_path: Path) -> None:
    tried = decoder(cross=cross, dynamic=True, mask=True, bias=True)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds)


def test_decoders_of_cuda(tmp_path: Path) -> None:
    for name, (tried, expected) in (
        ("self", masked_self()),
        ("cross", with_flags((True, False, True, True))),
        ("cached", with_flags((False, True, True, False))),
    ):
        folder = tmp_path / name
        folder.mkdir()
        assert_right_in_mnn(tried.model, folder, feeds=tried.feeds, expected=expected)


def test_packed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [randn(rng, 7, 16) for _ in range(3)]
    dims = {**{place: ["tokens", 16] for place in range(3)}, 4: ["batch", "seq"], 5: ["entries"]}
    tried = case("PackedMultiHeadAttention", [*parts, None, OFFSETS, STARTS], dims=dims, num_heads=2)
    assert_right_in_mnn(tried.model, tmp_path, feeds=tried.feeds, expected=named(a=packed_attention(*parts)))
