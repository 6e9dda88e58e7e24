"""Types of onnxruntime's contrib operators: inferred ones are those of what onnxruntime computes."""

from __future__ import annotations

import pytest

from graphkit.graph import Graph
from graphkit.node import TensorType
from graphkit.testing import graph_of, random_feeds, run

MS = {"com.microsoft": 1}
WIDE = "float[8] g, float[8] b"
MODELS = {
    "BiasGelu": "g (float[B,S,8] x, float[8] b) => (float[*] y) { y = com.microsoft.BiasGelu(x, b) }",
    "FastGelu": "g (float[B,S,8] x) => (float[*] y) { y = com.microsoft.FastGelu(x) }",
    "SkipLayerNormalization": (
        f"g (float[B,S,8] x, float[B,S,8] s, {WIDE}) => (float[*] y, float[*] sum)"
        " { y, mean, deviation, sum = com.microsoft.SkipLayerNormalization(x, s, g, b) }"
    ),
    "Attention": (
        "g (float[B,S,8] x, float[8,24] w, float[24] b) => (float[*] y)"
        " { y = com.microsoft.Attention<num_heads = 2>(x, w, b) }"
    ),
    "Attention, sizes": (
        "g (float[B,S,8] x, float[8,20] w, float[20] b) => (float[*] y)"
        " { y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 4]>(x, w, b) }"
    ),
    "MultiHeadAttention": (
        "g (float[B,S,8] q, float[B,T,8] k, float[B,T,4] v) => (float[*] y)"
        " { y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }"
    ),
    "EmbedLayerNormalization": (
        f"g (int32[B,2] ids, float[5,8] words, float[4,8] places, {WIDE}) => (float[*] y, float[*] sum)"
        " { y, mask, sum = com.microsoft.EmbedLayerNormalization(ids,, words, places,, g, b) }"
    ),
    "FusedMatMul": (
        "g (float[B,8,S] x, float[6,8] w) => (float[*] y)"
        " { y = com.microsoft.FusedMatMul<transA = 1, transB = 1>(x, w) }"
    ),
}


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_inferred_types_are_those_of_onnxruntime(text: str) -> None:
    graph = graph_of(text.replace("float[*] ", "float[] "), imports=MS, opset=17)
    for size in (2, 3):
        sizes = {"B": size, "S": size, "T": size}
        outputs = run(_open(graph), random_feeds(graph.model, size=size))
        for name, array in outputs.items():
            type_ = graph.inferred.get(name) or graph.type(name)
            assert isinstance(type_, TensorType)
            assert type_.shape is not None
            assert tuple(sizes.get(d, d) if isinstance(d, str) else d for d in type_.shape) == array.shape


def _open(graph: Graph):  # type: ignore[no-untyped-def]  # a Model
    model = graph.to_model()
    for output in model.proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def test_a_chain_ends_typed() -> None:
    chain = " ".join(
        f"v{i + 1} = com.microsoft.FastGelu(v{i}) w{i + 1} = com.microsoft.BiasGelu(v{i + 1}, b)" for i in range(20)
    )
    graph = graph_of(f"g (float[B,8] v0, float[8] b) => (float[B,8] w20) {{ {chain} }}", imports=MS)
    assert graph.shape("w20") == ("B", 8)
