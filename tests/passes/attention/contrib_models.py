"""Models of one attention operator of onnxruntime, numpy references for those without a CPU kernel, and asserts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.split_attention import SplitAttention
from graphkit.testing import run

Array = npt.NDArray[Any]
_RANKS = {
    "Attention": (3, 5),
    "MultiHeadAttention": (3, 4, 4, 4),
    "GroupQueryAttention": (3, 4, 4, 4),
    "DecoderMaskedMultiHeadAttention": (3, 4, 4, 4),
    "DecoderMaskedSelfAttention": (3, 5),
    "DecoderAttention": (3, 4, 4),
    "PackedAttention": (2,),
    "PackedMultiHeadAttention": (2,),
}


@dataclass(frozen=True)
class Case:
    """A model of one node and what to feed it."""

    model: Model
    feeds: dict[str, Array]


def randn(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> Array:
    """int32, as onnxruntime's operators want masks and lengths."""
    return np.array(values, dtype=np.int32)


def case(
    op: str,
    inputs: Sequence[Array | None],
    outputs: int = 1,
    *,
    dims: Mapping[int, Any] | None = None,
    constants: Collection[int] = (),
    opset: int = 18,
    **attrs: Any,
) -> Case:
    """A model of one com.microsoft node; `dims` gives shapes of inputs (by place), `constants` makes initializers."""
    names = [f"in{place}" if array is not None else "" for place, array in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    made = [f"out{place}" for place in range(outputs)]
    kind = helper.np_dtype_to_tensor_dtype(next(array.dtype for array in inputs if array is not None))
    infos, weights, feeds = [], [], {}
    for place, (name, array) in enumerate(zip(names, inputs, strict=False)):
        if array is None:
            continue
        if place in constants:
            weights.append(numpy_helper.from_array(array, name))
            continue
        feeds[name] = array
        shape = (dims or {}).get(place, array.shape)
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    results = [
        helper.make_tensor_value_info(name, kind, [None] * rank) for name, rank in zip(made, _RANKS[op], strict=False)
    ]
    node = helper.make_node(op, names, made, name="attention", domain="com.microsoft", **attrs)
    proto = helper.make_model(
        helper.make_graph([node], "graph", infos, results, weights),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10 if opset > 20 else 8,
    )
    return Case(Model.from_proto(proto), feeds)


def named(**values: Array) -> dict[str, Array]:
    """Results by output names: a=…, b=… are out0, out1, …, as float32."""
    return {f"out{place}": np.asarray(value, np.float32) for place, value in enumerate(values.values())}


def assert_split(
    tried: Case, expected: Mapping[str, Array] | None = None, *, rtol: float = 1e-5, split: SplitAttention | None = None
) -> Model:
    """Assert that split-attention leaves plain operators only, which compute the same, and nothing to do again."""
    expected = run(tried.model, tried.feeds) if expected is None else expected
    graph = Graph.of(tried.model)
    result = (split or SplitAttention()).run(graph)
    graph.check()
    assert not result.refusals, result.refusals
    assert {node.domain for node in graph.nodes} == {""}
    assert not SplitAttention().run(graph).modified
    after = graph.to_model()
    onnx.checker.check_model(after.materialized())
    actual = run(after, tried.feeds)
    for name, want in expected.items():
        assert actual[name].dtype == want.dtype, name
        assert actual[name].shape == want.shape, name
        scale = max(float(np.abs(want).max(initial=0)), 1e-6)
        difference = actual[name].astype(np.float64) - want.astype(np.float64)
        assert float(np.abs(difference).max(initial=0)) <= rtol * scale, name
    return after


def refusal(tried: Case) -> str:
    """Why split-attention leaves the node of a model alone."""
    graph = Graph.of(tried.model)
    result = SplitAttention().run(graph)
    assert not result.modified
    (only,) = result.refusals
    assert only.node == "attention"
    return only.reason


def heads_of(x: Array, heads: int) -> Array:
    """[batch, seq, heads·d] → [batch, heads, seq, d]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merged(x: Array) -> Array:
    """[batch, heads, seq, d] → [batch, seq, heads·d]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attend(query: Array, key: Array, value: Array, added: Any = 0.0, scale: float | None = None) -> Array:
    """softmax(Q·Kᵀ·scale + added)·V in float64, heads split."""
    scores = query.astype(np.float64) @ key.swapaxes(2, 3).astype(np.float64)
    scores = scores * (scale or query.shape[3] ** -0.5) + added
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=-1, keepdims=True)) @ value)
