"""FlashAttention of custom domains: names, layouts, masks, windows, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.split_attention import SplitAttention
from graphkit.testing import assert_unchanged, graph_of, run
from tests.in_mnn import assert_right_in_mnn

Feeds = dict[str, np.ndarray]
DOMAIN = "my.domain"


def expected_of(
    feeds: Feeds, *, keep: np.ndarray, scale: float, softcap: float, bias: np.ndarray | float
) -> np.ndarray:
    """Attention in float64, [batch, heads, seq, d]; zeros where no key may be seen."""
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    scores = np.tanh(scores / softcap) * softcap if softcap else scores
    scores = np.where(keep, scores + bias, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total) @ v)


def positions(sq: int, sk: int, causal: bool, window: tuple[int, int], offset: int) -> np.ndarray:
    ahead = np.arange(sk)[None] - np.arange(sq)[:, None] - offset
    left, right = window
    seen = (ahead <= 0) if causal else np.ones((sq, sk), bool)
    seen = seen & (ahead >= -left) if left >= 0 else seen
    return seen & (ahead <= right) if right >= 0 else seen


def model_of(op: str, shapes: dict[str, Any], types: dict[str, int], opset: int, attrs: dict[str, Any]) -> Model:
    infos = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), s) for name, s in shapes.items()]
    node = helper.make_node(op, list(shapes), ["y"], domain=DOMAIN, **attrs)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shapes["q"]))
    graph = helper.make_graph([node], "g", infos, [y])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def split(model: Model, **options: Any) -> Model:
    graph = Graph.of(model)
    result = SplitAttention(**options).run(graph)
    assert result.modified, [refusal.reason for refusal in result.refusals]
    graph.check()
    return graph.to_model()


@st.composite
def variants(draw: st.DrawFn) -> tuple[Model, Feeds, np.ndarray, dict[str, Any]]:
    """A model, what goes in, what comes out, and options of the pass."""
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    batch, heads, d = draw(st.integers(1, 2)), kv_heads * groups, draw(st.integers(1, 4))
    sq, sk = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    causal, opset = draw(st.booleans()), draw(st.sampled_from([11, 13, 17, 21]))
    window = draw(st.sampled_from([(-1, -1), (1, -1), (-1, 0), (2, 1)]))
    softcap, torch = draw(st.sampled_from([0.0, 1.5])), draw(st.booleans())
    scale = draw(st.sampled_from([0.0, 0.7]))
    layout = draw(st.sampled_from(["bshd", "bhsd", "bsh"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sizes = {"q": (batch, heads, sq, d), "k": (batch, kv_heads, sk, d), "v": (batch, kv_heads, sk, d)}
    feeds = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    keep = positions(sq, sk, causal, window, 0 if torch else sk - sq)
    bias: np.ndarray | float = 0.0
    kind = draw(st.sampled_from(["none", "keep", "bias", "keys"]))
    given_: Feeds = {}
    if kind != "none":
        shape = (batch, 1, 1 if kind == "keys" else sq, sk)
        values = rng.standard_normal(shape).astype(np.float32)
        given_["m"] = np.where(values < -1, -np.inf, values).astype(np.float32) if kind == "bias" else values > 0
        keep, bias = (keep, given_["m"]) if kind == "bias" else (keep & given_["m"], bias)
    want = expected_of(feeds, keep=keep, scale=scale or d**-0.5, softcap=softcap, bias=bias)
    inner = {name: _laid(array, layout) for name, array in feeds.items()} | given_
    attrs: dict[str, Any] = {"causal": int(causal), "window_size": list(window), "softcap": softcap, "dropout_p": 0.1}
    attrs |= {"softmax_scale": scale} | ({} if layout == "bsh" else {"layout": layout.upper()})
    attrs |= {"num_heads": heads, "num_kv_heads": kv_heads}
    named = draw(st.booleans()) and kind == "none"
    shapes = {name: _named(array, name, layout) if named else list(array.shape) for name, array in inner.items()}
    types = {"m": helper.np_dtype_to_tensor_dtype(given_["m"].dtype)} if given_ else {}
    model = model_of("sdpa" if torch else "FlashAttention", shapes, types, opset, attrs)
    return model, inner, _laid(want, layout), {"chunk": draw(st.sampled_from([0, 2, 3]))}


def _laid(x: np.ndarray, layout: str) -> np.ndarray:
    """[batch, heads, seq, d] in a layout."""
    x = x if layout == "bhsd" else x.transpose(0, 2, 1, 3)
    return np.ascontiguousarray(x.reshape(*x.shape[:2], -1) if layout == "bsh" else x)


def _named(x: np.ndarray, name: str, layout: str) -> list[Any]:
    shape: list[Any] = list(x.shape)
    shape[0], shape[2 if layout == "bhsd" else 1] = "batch", "queries" if name == "q" else "keys"
    return shape


@settings(max_examples=100, deadline=None)
@given(variants())
def test_random_variants_equal_flash_attention(drawn: tuple[Model, Feeds, np.ndarray, dict[str, Any]]) -> None:
    model, feeds, want, options = drawn
    got = run(split(model, **options), feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1, np.abs(want).max()))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(variants())
def test_random_variants_in_mnn(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    model, feeds, want, options = drawn
    passes = f"split-attention{{chunk={options['chunk']}}},mnn"
    assert_right_in_mnn(model, tmp_path_factory.mktemp("mnn"), feeds=feeds, expected={"y": want}, passes=passes)


NAMES = [
    "FlashAttention", "flash_attn", "FlashAttn", "FlashAttention2", "flash_attn_v2", "FusedAttention", "FlashAttnFunc",
    "flash_attn_func", "ScaledDotProductAttention", "scaled_dot_product_flash_attention", "SDPA", "fused_attn",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    shape = [1, 6, 2, 4]
    split(model_of(name, {"q": shape, "k": shape, "v": shape}, {}, 17, {"layout": "BSND"}))


@pytest.mark.parametrize("name", ["Attention", "LinearAttention", "FlashAttnVarlenFunc", "FlashAttentionGrad"])
def test_other_names_are_not_matched(name: str) -> None:
    graph = Graph.of(model_of(name, {n: [1, 6, 2, 4] for n in "qkv"}, {}, 17, {"layout": "BSHD"}))
    assert SplitAttention().run(graph) == type(SplitAttention().run(graph))()


def test_an_odd_name_and_what_it_does_not_say_as_options(tmp_path: Path) -> None:
    shapes = {n: [1, 6, 2, 4] for n in "qkv"}
    model = model_of("Mystery", shapes, {}, 17, {})
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal([1, 6, 2, 4]).astype(np.float32) for n in "qkv"}
    inner = {n: x.transpose(0, 2, 1, 3) for n, x in feeds.items()}
    want = expected_of(inner, keep=np.tri(6, dtype=bool), scale=0.3, softcap=0, bias=0).transpose(0, 2, 1, 3)
    options = f'op="{DOMAIN}::Mystery",layout=bshd,scale=0.3,causal=true'
    passes = f"split-attention{{{options}}},mnn"
    assert_right_in_mnn(model, tmp_path, feeds=feeds, expected={"y": want}, passes=passes)


def test_layers_behind_each_other_and_a_function_of_that_name() -> None:
    text = (
        f'<ir_version: 8, opset_import: ["": 17, "{DOMAIN}": 1, "f": 1]> g (float[1,6,8] q) => (float[1,6,8] y) '
        f"{{ a = {DOMAIN}.FlashAttn<num_heads: int = 2>(q, q, q) b = Relu(a) "
        f"c = {DOMAIN}.FlashAttn<num_heads: int = 2>(b, b, a) y = f.FlashAttn(c) }} "
        f'<domain: "f", opset_import: ["": 17]> FlashAttn (x) => (y) {{ y = Relu(x) }}'
    )
    graph = graph_of(text)
    result = SplitAttention().run(graph)
    assert len(result.changes) == 2
    assert not result.refusals
    assert [node.op for node in graph.nodes if node.domain] == ["f::FlashAttn"]


@pytest.mark.parametrize(
    ("shape", "keys", "attrs", "reason"),
    [
        ([1, 4, 4, 8], [1, 4, 4, 8], "", "split-attention{layout=bshd}"),
        ([1, 8, 4, 8], [1, 4, 4, 8], "<num_heads: int = 3>", "split-attention{layout=bshd}"),
        ([1, 4, 4, 8], [1, 4, 4, 8], '<layout: string = "SBHD">', "layout 'SBHD' is not known"),
        ([1, 4, 3, 8], [1, 4, 2, 8], '<layout: string = "BSHD">', "3 heads cannot share 2 heads"),
        ([1, 4, 8], [1, 4, 8], "", "need the attribute num_heads"),
        ([1, 4, 9], [1, 4, 6], "<num_heads: int = 3, num_kv_heads: int = 2>", "3 heads cannot share 2"),
        ([4, 8], [4, 8], "", "of rank 2, not 3 or 4"),
        ([1, "s", 2, "d"], [1, "s", 2, "d"], "", "the head size is not known"),
        ([1, "s", "h", 4], [1, "s", 2, 4], '<layout: string = "BSHD">', "the number of heads"),
        ([1, "s", 2, 4], [1, "s", 2, 4], "<alibi: int = 1>", "attribute 'alibi' is not known"),
        ([1, "s", 2, 4], [1, "s", 2, 4], "<window_size: ints = [1, 2, 3]>", "the window [1, 2, 3]"),
        ([1, 4, 8], [4, 8], "<num_heads: int = 2>", "the ranks of query, key and value"),
    ],
)
def test_what_a_node_does_not_say_is_refused(shape: list[Any], keys: list[Any], attrs: str, reason: str) -> None:
    q, k = (f"float[{','.join(map(str, dims))}]" for dims in (shape, keys))
    text = f"g ({q} q, {k} k, {k} v) => ({q} y) {{ y = x.FlashAttention {attrs} (q, k, v) }}"
    assert_unchanged(SplitAttention(), text, refuses=reason, imports={"x": 1})


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ("float", "no mask or bias of known rank"),
        ("string[1,3]", "neither a mask nor a bias"),
        ("bool[3,3]", "whether the first axis of the mask of shape [3, 3] is the batch"),
        ("bool[7,3]", "whether the first axis of the mask of shape [7, 3] is the batch"),
    ],
)
def test_masks_that_are_not_clear_are_refused(mask: str, reason: str) -> None:
    text = (
        f"g (float[3,3,2,4] q, float[3,3,2,4] k, float[3,3,2,4] v, {mask} m) => (float[3,3,2,4] y) "
        "{ y = x.FlashAttention <num_heads: int = 2> (q, k, v, m) }"
    )
    assert_unchanged(SplitAttention(), text, refuses=reason, imports={"x": 1})


@pytest.mark.parametrize(
    ("inputs", "outputs", "kinds", "opset", "reason"),
    [
        ("q, k", "y", "float", 17, "must be three inputs"),
        ("q, k, v, , v", "y", "float", 17, "input 4 is not known"),
        ("q, k, v", "y, z", "float", 17, "output 'z' (log-sum-exp or weights) is used"),
        ("q, k, v", "y", "int32", 17, "of one floating-point type"),
        ("q, k, v", "y", "float", 10, "need Range of opset 11"),
    ],
)
def test_nodes_that_cannot_be_written_are_refused(
    inputs: str, outputs: str, kinds: str, opset: int, reason: str
) -> None:
    t = f"{kinds}[1,s,2,4]"
    other = ", float z" if "z" in outputs else ""
    text = (
        f"g ({t} q, {kinds}[1,t,2,4] k, {kinds}[1,t,2,4] v) => ({t} y{other}) "
        f"{{ {outputs} = x.FlashAttention <causal: int = 1, num_heads: int = 2> ({inputs}) }}"
    )
    assert_unchanged(SplitAttention(), text, refuses=reason, imports={"x": 1}, opset=opset)
