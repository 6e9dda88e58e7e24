"""com.microsoft GroupQueryAttention, prompt and decoding, growing caches and buffers, against onnxruntime's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphkit.graph import Graph
from graphkit.passes.split_attention import SplitAttention
from graphkit.testing import run
from tests.passes.attention.contrib_models import Array, Case, assert_split, case, ints, randn, refusal

OP = "GroupQueryAttention"
# name: batch, new tokens, tokens of the past (None: no input), tokens afterwards of each entry, total_sequence_length
STEPS: dict[str, tuple[int, int, int | None, list[int], int]] = {
    "prompt": (2, 4, None, [4, 4], 4),
    "padded prompt": (2, 4, None, [4, 2], 4),
    "prompt, empty past": (2, 4, 0, [4, 4], 4),
    "prompt into a buffer": (2, 4, 9, [4, 3], 4),
    "decoding, growing": (2, 1, 5, [6, 6], 6),
    "decoding, growing, padded": (2, 1, 5, [6, 3], 6),
    "decoding in a buffer": (2, 1, 9, [6, 3], 6),
    "more prompt, growing": (1, 3, 5, [8], 8),
    "more prompt in a buffer": (1, 3, 12, [8], 8),
}


def group_query(seed: int = 0, *, step: str = "prompt", **more: Any) -> Case:
    """A random node; more: heads, kv_heads, size, packed, rotated (dims), positions, bias, sink, dtype, outputs, …

    dynamic: batch and lengths are not known; constant: seqlens_k and total_sequence_length are initializers.
    """
    rng = np.random.default_rng(seed)
    batch, seq, past, lengths, total = STEPS[step]
    heads, kv_heads, size = (more.pop(name, default) for name, default in (("heads", 4), ("kv_heads", 2), ("size", 16)))
    widths = [heads * size, kv_heads * size, kv_heads * size]
    apart = [randn(rng, batch, seq, width) for width in widths]
    if more.pop("packed", False):
        apart = [np.concatenate(apart, axis=2)]
    inputs: list[Array | None] = [*apart, *[None] * (12 - len(apart))]
    if past is not None:
        inputs[3:5] = [randn(rng, batch, kv_heads, past, size) for _ in range(2)]
    inputs[5:7] = [ints(*lengths) - 1, ints(total)]
    rotated, bias = more.pop("rotated", 0), more.pop("bias", None)
    if rotated:
        angles = randn(rng, max(total, past or 0) + 8, rotated // 2)
        inputs[7:9] = [np.cos(angles), np.sin(angles)]
        inputs[9] = rng.integers(0, 4, (batch, seq)) if more.pop("positions", False) else None
        more["do_rotary"] = 1
    if bias:
        inputs[10] = randn(rng, batch if bias[0] else 1, heads if bias[1] else 1, seq, total)
    inputs[11] = randn(rng, heads) if more.pop("sink", False) else None
    dtype = more.pop("dtype", np.float32)
    inputs = [x.astype(dtype) if x is not None and x.dtype == np.float32 else x for x in inputs]
    dims = _dims(inputs, kv_heads, size) if more.pop("dynamic", False) else None
    constants = (5, 6, 7, 8) if more.pop("constant", False) else (7, 8)
    outputs = more.pop("outputs", 3)
    return case(OP, inputs, outputs, dims=dims, constants=constants, num_heads=heads, kv_num_heads=kv_heads, **more)


def _dims(inputs: list[Array | None], kv_heads: int, size: int) -> dict[int, Any]:
    """Shapes with names for what is not known."""
    found: dict[int, Any] = {5: ["batch"], 9: ["batch", "seq"]}
    for place in range(3):
        array = inputs[place]
        found[place] = ["batch", "seq", array.shape[2]] if array is not None else None
    past = inputs[3]
    if past is not None:
        found[3] = found[4] = ["batch", kv_heads, "past" if past.shape[2] else 0, size]
    return found


@settings(max_examples=90, deadline=None)
@given(data=st.data())
def test_random_variants(data: st.DataObject) -> None:
    draw = data.draw
    step = draw(st.sampled_from(list(STEPS)))
    heads, kv_heads = draw(st.sampled_from([(4, 2), (4, 4), (4, 1), (6, 3)]))
    size = draw(st.sampled_from([16, 32]))
    options: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "size": size,
        "packed": draw(st.booleans()),
        "rotated": draw(st.sampled_from([0, 16, size])),
        "bias": draw(st.sampled_from([None, None, (True, False), (False, True)])),
        "sink": draw(st.booleans()),
        "smooth_softmax": draw(st.integers(0, 1)),
        "softcap": draw(st.sampled_from([0.0, 1.5])),
        "scale": draw(st.sampled_from([0.0, 0.25])),
        "local_window_size": draw(st.sampled_from([-1, -1, 1, 2, 20])),
        "dynamic": draw(st.booleans()),
        "constant": draw(st.booleans()),
        "opset": draw(st.sampled_from([11, 12, 13, 15, 18, 21])),
    }
    if options["rotated"]:
        options["positions"] = draw(st.booleans())
        options["rotary_interleaved"] = draw(st.integers(0, 1))
    if options["local_window_size"] < 0:
        options["causal"] = draw(st.integers(0, 1))
    qk_output = draw(st.integers(0, 2))
    if qk_output:
        options.update(qk_output=qk_output, outputs=4)
    # Windows of padding's queries are not specified, and onnxruntime's kernels differ there.
    assume(not (step in ("padded prompt", "prompt into a buffer") and options["local_window_size"] > 0))
    assert_split(group_query(draw(st.integers(0, 99)), step=step, **options), rtol=2e-5)


@pytest.mark.parametrize("step", ["prompt", "padded prompt", "decoding, growing", "decoding in a buffer"])
def test_float16(step: str) -> None:
    options: dict[str, Any] = {"step": step, "rotated": 16, "bias": (True, True), "sink": True, "dtype": np.float16}
    assert_split(group_query(**options), rtol=4e-3)


def test_a_window_over_a_padded_prompt() -> None:
    """Rows of tokens are as onnxruntime has them; those of padding are not specified."""
    tried = group_query(step="padded prompt", local_window_size=2)
    graph = Graph.of(tried.model)
    assert SplitAttention().run(graph).modified
    want, got = (run(model, tried.feeds)["out0"] for model in (tried.model, graph.to_model()))
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(got[1, :2], want[1, :2], rtol=0, atol=1e-5)


def test_blocks_of_queries_compute_the_same() -> None:
    for constant in (False, True):
        tried = group_query(constant=constant, bias=(True, True))
        assert_split(tried, split=SplitAttention(chunk=3))


def test_known_lengths_need_no_gather() -> None:
    """A cache that is full before and after is appended to."""
    tried = group_query(step="decoding, growing", constant=True)
    kinds = [node.op_type for node in assert_split(tried).proto.graph.node]
    assert "Gather" not in kinds
    assert kinds.count("Concat") == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"local_window_size": 0}, "local_window_size is 0"),
        ({"sliding_window_cache": 1}, "sliding_window_cache"),
        ({"k_quant_type": "PER_TENSOR"}, "a quantized cache"),
        ({"v_quant_type": "PER_TENSOR"}, "a quantized cache"),
        ({"heads": 3}, "3 heads share 2 heads of keys"),
        ({"outputs": 4}, "output_qk is used, but qk_output is 0"),
        ({"do_rotary": 1}, "do_rotary without cos_cache and sin_cache"),
        ({"opset": 10}, "opset 11"),
    ],
)
def test_refused_attributes(options: dict[str, Any], reason: str) -> None:
    assert reason in refusal(group_query(**options))


@pytest.mark.parametrize(
    ("changed", "dims", "reason"),
    [
        ({12: np.ones(1, np.float32)}, None, "k_scale"),
        ({13: np.ones(1, np.float32)}, None, "v_scale"),
        ({14: np.ones(16, np.float32)}, None, "q_norm_weight"),
        ({15: np.ones(16, np.float32)}, None, "k_norm_weight"),
        ({16: ints(1, 1)}, None, "query_seqlens"),
        ({4: None}, None, "past_key and past_value go together"),
        ({2: None}, None, "key and value go together"),
        ({1: np.zeros((2, 0, 32), np.float32), 2: np.zeros((2, 0, 32), np.float32)}, None, "keys of length 0"),
        ({}, {0: [2, 1, "hidden"]}, "the hidden size is not known"),
        ({0: np.zeros((2, 1, 63), np.float32)}, None, "the hidden size is 63"),
        ({7: np.zeros((9, 8), np.float32)}, {7: [9, "half"]}, "the size of cos_cache is not known"),
    ],
)
def test_refused_inputs(changed: dict[int, Array | None], dims: Any, reason: str) -> None:
    base = group_query(step="decoding, growing")
    inputs: list[Array | None] = [base.feeds.get(f"in{place}") for place in range(7)] + [None] * 10
    for place, array in changed.items():
        inputs[place] = array
    inputs[8] = inputs[7]
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(7 in changed)}
    assert reason in refusal(case(OP, inputs, 3, dims=dims, **attrs))


def test_refuses_a_total_length_that_is_not_that_of_a_prompt() -> None:
    base = group_query()
    inputs = [base.feeds[f"in{place}"] for place in range(3)]
    tried = case(OP, [*inputs, None, None, ints(3, 3), ints(9)], 3, constants=(6,), num_heads=4, kv_num_heads=2)
    assert "total_sequence_length is not that of the keys" in refusal(tried)
