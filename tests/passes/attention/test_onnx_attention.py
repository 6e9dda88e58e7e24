"""ai.onnx Attention: every backend test, random variants, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.split_attention import SplitAttention
from graphkit.testing import assert_equal_outputs, assert_unchanged, parse, random_feeds
from tests.in_mnn import assert_right_in_mnn

Feeds = dict[str, np.ndarray]
_EXACT = {"float32": 1e-5, "float64": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow and divide by zero on purpose
        from onnx.backend.test.case import node
        from onnx.backend.test.case.node import attention  # noqa: F401 - importing it makes the tests

    return [c for c in node._NodeTestCases if c.name.startswith("test_attention") and "expanded" not in c.name]


def split(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    graph = Graph.of(Model.from_proto(model))
    result = SplitAttention(**options).run(graph)
    assert result.modified, [refusal.reason for refusal in result.refusals]
    graph.check()
    split_model = graph.to_model().materialized()
    onnx.checker.check_model(split_model, full_check=True)
    assert not any("ttention" in node.op_type for node in split_model.graph.node)
    return split_model


def assert_equal(model: onnx.ModelProto, feeds: Feeds, expected: list[np.ndarray]) -> None:
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(None, feeds)
    for want, got in zip(expected, map(np.asarray, results), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        tolerance = _EXACT[want.dtype.name]
        got64, want64 = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got64, want64, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name.removeprefix("test_attention_"))
def test_the_backend_tests(case: Any) -> None:
    names = [info.name for info in case.model.graph.input]
    inputs, outputs = case.data_sets[0]
    assert_equal(split(case.model), dict(zip(names, inputs, strict=True)), list(outputs))


@st.composite
def attentions(draw: st.DrawFn) -> tuple[onnx.ModelProto, Feeds]:
    """A random Attention: any opset, rank, mask, past, padding, heads and attributes; sizes named or not."""
    opset, flat = draw(st.sampled_from([23, 24, 25])), draw(st.booleans())
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads, sk, batch, sq, d, dv = kv_heads * groups, draw(st.integers(2, 5)), *(draw(st.integers(1, 4)) for _ in "1234")
    past = draw(st.sampled_from([None, 0, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    attrs: dict[str, Any] = {"is_causal": draw(st.integers(0, 1)), "qk_matmul_output_mode": draw(st.integers(0, 3))}
    attrs |= draw(st.sampled_from([{}, {"softcap": 1.5}, {"scale": 0.7}, {"softcap": 1.0, "scale": 1.0}]))
    if "softcap" in attrs and attrs["qk_matmul_output_mode"] == 0:
        attrs["qk_matmul_output_mode"] = 1  # the reference gives the capped scores for 0, too
    attrs |= draw(st.sampled_from([{}, {"softmax_precision": TensorProto.DOUBLE}]))
    if opset == 25:
        attrs |= {"left_window_size": draw(st.integers(-1, 2)), "right_window_size": draw(st.integers(-1, 2))}
    if flat:
        attrs |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    sizes = {"Q": (heads, sq, d), "K": (kv_heads, sk, d), "V": (kv_heads, sk, dv)}
    feeds = {
        name: rng.standard_normal((batch, n, h * size) if flat else (batch, h, n, size)).astype(np.float32)
        for name, (h, n, size) in sizes.items()
    }
    total = sk + (past or 0)
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        last = draw(st.integers(2, total)) if opset >= 24 and total > 2 else total
        # The reference's causal mask has as many rows as the mask, not as many as there are queries.
        rows = sq if attrs["is_causal"] else draw(st.sampled_from([1, sq]))
        shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), rows)
        mask = rng.standard_normal((*shape, last)[4 - draw(st.integers(2, 4)) :]).astype(np.float32)
        hidden = np.where(mask < -0.5, -np.inf, mask).astype(np.float32)
        feeds["M"] = mask > 0 if kind == "bool" else hidden
    if past is not None:
        feeds["PK"] = rng.standard_normal((batch, kv_heads, past, d)).astype(np.float32)
        feeds["PV"] = rng.standard_normal((batch, kv_heads, past, dv)).astype(np.float32)
    elif opset >= 24 and draw(st.booleans()):
        feeds["N"] = rng.integers(0, sk + 1, batch)
    named = draw(st.booleans())
    return model_of(feeds, opset, attrs, named=named), feeds


def model_of(feeds: Feeds, opset: int, attrs: dict[str, Any], *, named: bool) -> onnx.ModelProto:
    """The node alone; with `named`, batch and lengths have names in place of numbers."""
    infos = []
    for name, array in feeds.items():
        shape: list[Any] = list(array.shape)
        if named and name != "M":
            shape[0] = "batch"
            axis = {3: 1, 4: 2}.get(array.ndim)
            if axis is not None:
                shape[axis] = {"Q": "queries", "K": "keys", "V": "keys", "PK": "past", "PV": "past"}[name]
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    inputs = [name if name in feeds else "" for name in ("Q", "K", "V", "M", "PK", "PV", "N")]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["Y", "NK" if "PK" in feeds else "", "NV" if "PV" in feeds else "", "S"]
    ranks = {"Y": feeds["Q"].ndim}
    types = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * ranks.get(name, 4)) for name in outputs if name
    ]
    node = helper.make_node("Attention", inputs, outputs, **attrs)
    graph = helper.make_graph([node], "g", infos, types)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@settings(max_examples=100, deadline=None)
@given(attentions())
def test_random_variants_equal_the_reference(drawn: tuple[onnx.ModelProto, Feeds]) -> None:
    model, feeds = drawn
    with np.errstate(all="ignore"):
        expected = [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
    assert_equal(split(model), feeds, expected)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(attentions())
def test_random_variants_in_mnn(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    model, feeds = drawn
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(None, feeds)
    names = [info.name for info in model.graph.output]
    expected = {name: np.asarray(value) for name, value in zip(names, results, strict=True)}
    folder: Path = tmp_path_factory.mktemp("mnn")
    assert_right_in_mnn(Model.from_proto(model), folder, feeds=feeds, expected=expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (float[1,2,3,d] q, float[1,2,3,d] k, float[1,2,3,d] v) => (float[1,2,3,d] y) { y = Attention(q, k, v) }",
            "the head size is not known",
        ),
        (
            "g (float[1,h,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,h,3,4] y) { y = Attention(q, k, v) }",
            "the numbers of heads are not known",
        ),
        (
            "g (float[1,3,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,3,3,4] y) { y = Attention(q, k, v) }",
            "3 heads share 2 heads of keys",
        ),
        (
            "g (float[1,3,8] q, float[1,3,8] k, float[1,3,8] v) => (float[1,3,8] y) { y = Attention(q, k, v) }",
            "q_num_heads and kv_num_heads must be given",
        ),
        (
            "g (float[1,2,3,4] q, float[1,2,3,4] k, float16[1,2,3,4] v) => (float[1,2,3,4] y) "
            "{ y = Attention(q, k, v) }",
            "different element types",
        ),
        (
            "g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, float[3,1] m) => (float[1,2,3,4] y) "
            "{ y = Attention(q, k, v, m) }",
            "the standard broadcasts it, its reference fills it up",
        ),
        (
            "g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, bool[1,1,1,3,3] m) => (float[1,2,3,4] y) "
            "{ y = Attention(q, k, v, m) }",
            "the rank (1 to 4) or the element type of attn_mask",
        ),
        (
            "g (float q, float[1,2,3,4] k, float[1,2,3,4] v) => (float y) { y = Attention(q, k, v) }",
            "the shapes (rank 3 or 4) or the element type",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, reason: str) -> None:
    assert_unchanged(SplitAttention(), text, refuses=reason, opset=23)


def test_the_scores_are_not_capped_when_they_are_asked_for_as_they_are() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,1,2,4] q, float[1,1,3,4] k, float[1,1,3,4] v) '
        "=> (float[1,1,2,4] y, float[1,1,2,3] s) { y, , , s = Attention<softcap: float = 1.5>(q, k, v) }"
    )
    assert_equal_outputs(Model.from_proto(model), Model.from_proto(split(model)))


def test_an_integer_mask_is_added() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,1,2,4] q, float[1,1,3,4] k, float[1,1,3,4] v, '
        "int32[2,3] m) => (float[1,1,2,4] y) { y = Attention(q, k, v, m) }"
    )
    feeds = random_feeds(Model.from_proto(model))
    expected = [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
    assert_equal(split(model), feeds, expected)


def test_as_many_unknown_heads_of_keys_as_of_queries(tmp_path: Path) -> None:
    text = "g (float[b,h,s,4] q, float[b,h,t,4] k, float[b,h,t,4] v) => (float[b,h,s,4] y) { y = Attention(q, k, v) }"
    assert_right_in_mnn(text, tmp_path, opset=23)


def test_a_mask_of_zeros_and_low_numbers_needs_no_guard() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, '
        "bool[3,3] m) => (float[1,2,3,4] y) <float zero = {0}, float low = {-1e9}> "
        "{ w = Where(m, zero, low) u = Unsqueeze(w, axes) y = Attention(q, k, v, u) }"
    )
    model = onnx.parser.parse_model(text.replace("float low = {-1e9}", "float low = {-1e9}, int64[1] axes = {0}"))
    assert not any(node.op_type == "ReduceMax" for node in split(model).graph.node)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y, float[1,2,3,4] nk, "
        "float[1,2,3,4] nv) { y, nk, nv = Attention(q, k, v) }",
        "g (float[1,3,8] q, float[1,3,8] k, float[1,3,8] v) => (float[1,2,3,4] nk) "
        "{ y, nk = Attention<q_num_heads: int = 2, kv_num_heads: int = 2>(q, k, v) }",
        "g (bool c, float[1,2,3,4] q) => (float[1,2,3,4] y) { y = If(c) <then_branch = a () => (float[1,2,3,4] z) "
        "{ z = Attention(q, q, q) }, else_branch = b () => (float[1,2,3,4] w) { w = Identity(q) }> }",
    ],
)
def test_present_without_past_and_attention_in_a_branch(text: str) -> None:
    model = parse(text, opset=23)
    result = Model.from_proto(split(model.materialized()))
    feeds = random_feeds(model)
    expected = ReferenceEvaluator(model.materialized()).run(None, feeds)
    actual = ReferenceEvaluator(result.materialized()).run(None, feeds)
    for want, got in zip(expected, actual, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
