"""The pass as a whole: what it writes, blocks of queries, its options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.optimizer import optimize
from graphkit.passes.split_attention import SplitAttention
from graphkit.registry import Registry
from graphkit.rewrite import PassResult
from graphkit.testing import assert_equal_outputs, assert_rewrites, canonical, graph_of, parse
from tests.in_mnn import assert_right_in_mnn


def onnx_text(shape: str, *, attrs: str = "", keys: str = "", mask: str = "") -> str:
    keys = keys or shape
    masked = f", {mask} m" if mask else ""
    used = ", m" if mask else ""
    return (
        f"g (float[{shape}] q, float[{keys}] k, float[{keys}] v{masked}) => (float[{shape}] y) "
        f"{{ y = Attention{attrs}(q, k, v{used}) }}"
    )


def test_the_plain_form() -> None:
    assert_rewrites(
        SplitAttention(),
        onnx_text("1,2,3,4"),
        """g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y) <float scale = {0.5}> {
        scaled = Mul(q, scale)
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        scores = MatMul(scaled, kt)
        weights = Softmax<axis: int = -1>(scores)
        y = MatMul(weights, v) }""",
        opset=23,
    )


def test_grouped_queries_repeat_no_keys() -> None:
    assert_rewrites(
        SplitAttention(),
        """g (float[1,3,16] q, float[1,3,8] k, float[1,3,8] v) => (float[1,3,16] y)
        { y = Attention<q_num_heads: int = 4, kv_num_heads: int = 2, scale: float = 1.0>(q, k, v) }""",
        """g (float[1,3,16] q, float[1,3,8] k, float[1,3,8] v) => (float[1,3,16] y)
        <int64[4] four = {0,0,4,-1}, int64[4] two = {0,0,2,-1}, int64[4] two_ = {0,0,2,-1},
         int64[4] fold = {0,2,-1,0}, int64[4] unfold = {0,4,-1,0}, int64[3] merge = {0,0,-1}> {
        q4 = Reshape(q, four)
        qt = Transpose<perm = [0, 2, 1, 3]>(q4)
        k4 = Reshape(k, two)
        kt = Transpose<perm = [0, 2, 1, 3]>(k4)
        v4 = Reshape(v, two_)
        vt = Transpose<perm = [0, 2, 1, 3]>(v4)
        rows = Reshape(qt, fold)
        ktt = Transpose<perm = [0, 1, 3, 2]>(kt)
        scores = MatMul(rows, ktt)
        weights = Softmax<axis: int = -1>(scores)
        mixed = MatMul(weights, vt)
        heads = Reshape(mixed, unfold)
        back = Transpose<perm = [0, 2, 1, 3]>(heads)
        y = Reshape(back, merge) }""",
        opset=23,
    )


@pytest.mark.parametrize("attrs", ["", "<is_causal: int = 1>", "<is_causal: int = 1, softcap: float = 2.0>"])
@pytest.mark.parametrize("mask", ["", "bool[7,7]", "float[1,2,7,7]"])
def test_blocks_compute_the_same(attrs: str, mask: str) -> None:
    text = onnx_text("2,2,7,4", attrs=attrs, mask=mask)
    graph = graph_of(text, opset=23)
    result = SplitAttention(chunk=3).run(graph)
    assert [change.what for change in result.changes] == ["Attention in plain operators, 3 blocks of queries"]
    assert not result.notes
    graph.check()
    assert_equal_outputs(parse(text, opset=23), graph.to_model())


def test_causal_blocks_read_no_keys_that_they_do_not_see() -> None:
    graph = graph_of(onnx_text("1,2,8,4", attrs="<is_causal: int = 1>"), opset=23)
    SplitAttention(chunk=4).run(graph)
    products = [node for node in graph.nodes if node.op == "MatMul"]
    assert len(products) == 4
    cut = [node for node in graph.nodes if node.op == "Slice"]
    assert len(cut) == 4  # two blocks of queries; keys and values of the first


def test_masks_of_one_row_and_of_unknown_rows_in_blocks() -> None:
    one = graph_of(onnx_text("1,2,6,4", mask="bool[1,6]"), opset=23)
    assert "3 blocks" in SplitAttention(chunk=2).run(one).changes[0].what
    unknown = graph_of(onnx_text("1,2,6,4", mask="bool[r,6]"), opset=23)
    result = SplitAttention(chunk=2).run(unknown)
    assert "blocks" not in result.changes[0].what
    assert "compute all queries at once" in result.notes[0]


def test_an_unknown_number_of_queries_is_not_cut_and_the_pass_says_so() -> None:
    graph = graph_of(onnx_text("1,2,s,4"), opset=23)
    result = SplitAttention(chunk=2).run(graph)
    assert len(result.changes) == 1
    assert "1 of 1 attention operators compute all queries at once" in result.notes[0]


def test_blocks_in_mnn_with_keys_of_unknown_number(tmp_path: Path) -> None:
    text = onnx_text("1,2,7,4", attrs="<is_causal: int = 1>", keys="1,2,t,4")
    assert_right_in_mnn(text, tmp_path, opset=23, passes="split-attention{chunk=3},mnn")


def test_a_second_run_and_the_preset_change_nothing_more() -> None:
    model = parse(onnx_text("b,2,s,4", attrs="<is_causal: int = 1>", mask="bool[b,1,s,s]"), opset=23)
    once = optimize(model, "mnn", verify="none").model
    twice = optimize(once, "mnn", verify="none").model
    assert canonical(Graph.of(twice)) == canonical(Graph.of(once))


def test_nothing_to_do() -> None:
    assert SplitAttention().run(graph_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")) == PassResult()


@pytest.mark.parametrize("options", ["chunk=-1", "layout=sbhd", "op=FlashAttn", 'op="com.microsoft::"'])
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(UsageError):
        Registry().stages(f"split-attention{{{options}}}")


def test_fully_masked_queries_get_zeros_in_mnn(tmp_path: Path) -> None:
    keep = np.array([[True, False, True], [False, False, False], [True, True, False]])
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for name in "qkv"} | {"m": keep}
    text = onnx_text("1,2,3,4", mask="bool[3,3]")
    assert_right_in_mnn(text, tmp_path, opset=23, feeds=feeds)


@pytest.mark.parametrize(("hidden", "guarded"), [([0, 1], False), ([1, 1], True)])
def test_a_constant_mask_is_guarded_only_where_a_query_sees_nothing(hidden: list[int], guarded: bool) -> None:
    bias = ",".join("-inf" if item else "0" for item in hidden)
    text = (
        "g (float[1,2,1,4] q, float[1,2,2,4] k, float[1,2,2,4] v) => (float[1,2,1,4] y) "
        f"<float[1,2] m = {{{bias}}}> {{ y = Attention(q, k, v, m) }}"
    )
    graph = graph_of(text, opset=23)
    SplitAttention().run(graph)
    assert any(node.op == "Where" for node in graph.nodes) == guarded


@pytest.mark.parametrize("chunk", [0, 3])
def test_grouped_queries_with_a_causal_mask(chunk: int, tmp_path: Path) -> None:
    text = (
        "g (float[2,7,16] q, float[2,5,8] k, float[2,5,8] v) => (float[2,7,16] y) "
        "{ y = Attention<q_num_heads: int = 4, kv_num_heads: int = 2, is_causal: int = 1>(q, k, v) }"
    )
    graph = graph_of(text, opset=23)
    SplitAttention(chunk=chunk).run(graph)
    assert not any(node.op == "Expand" for node in graph.nodes)
    assert_equal_outputs(parse(text, opset=23), graph.to_model())
    assert_right_in_mnn(text, tmp_path, opset=23, passes=f"split-attention{{chunk={chunk}}},mnn")
