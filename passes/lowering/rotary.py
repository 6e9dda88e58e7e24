"""Rotary position embeddings (Su et al., "RoFormer", 2021): ai.onnx 23 and onnxruntime's, in plain operators.

A head of width D is turned pairwise: (a, b) → (a·cos − b·sin, b·cos + a·sin). The pairs are the two halves of the
rotated part, or neighbours when interleaved; what lies behind the rotated part stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Rule, rule


@dataclass(frozen=True)
class _Heads:
    """How the input is laid out: number of heads (0: unknown), width of one, rotated part of it."""

    rank: int
    heads: int
    width: int
    rotated: int
    interleaved: bool


@rule("RotaryEmbedding", name="rotary-embedding")
def rotary_embedding(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: Split, Mul, Sub, Add, Concat."""
    x, cosine, sine, positions = (node.input(index) for index in range(4))
    build, heads = Emit(graph, node), _heads(graph, node, cosine)
    if isinstance(heads, str):
        return rotary_embedding.refuse(node, heads)
    if positions:
        cosine, sine = (build.op("Gather", table, positions) for table in (cosine, sine))
    axis = 2 if heads.rank == 3 else 1
    turned = _turned(build, heads, x, build.unsqueeze(cosine, axis), build.unsqueeze(sine, axis))
    return build.rewrite({node.outputs[0]: turned}, "RotaryEmbedding spelled out")


@rule("com.microsoft::RotaryEmbedding", name="contrib-rotary-embedding")
def contrib_rotary_embedding(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: rows of the tables (from one offset, or per token), Split, Mul, Sub, Add, Concat."""
    x, positions, cosine, sine = node.inputs
    build, heads, rank = Emit(graph, node), _heads(graph, node, cosine), graph.rank(positions)
    if isinstance(heads, str):
        return contrib_rotary_embedding.refuse(node, heads)
    if node.attr("is_packed_batching", 0) or rank not in (1, 2):
        return contrib_rotary_embedding.refuse(node, "ragged batches, or positions of unknown rank")
    if rank == 1 and build.opset < 11:
        return contrib_rotary_embedding.refuse(node, "positions are counted by Range, which came with opset 11")
    if rank == 1:
        positions = _counted(build, x, positions, 1 if heads.rank == 3 else 2)
    cosine, sine = (build.op("Gather", table, positions) for table in (cosine, sine))
    axis = rank if heads.rank == 3 else rank - 1
    turned = _turned(build, heads, x, build.unsqueeze(cosine, axis), build.unsqueeze(sine, axis))
    return build.rewrite({node.outputs[0]: turned}, "RotaryEmbedding spelled out")


def _counted(build: Emit, x: str, offset: str, axis: int) -> str:
    """offset, offset + 1, …, as many as the sequence is long."""
    zero, one = build.number(0, TensorProto.INT64), build.number(1, TensorProto.INT64)
    steps = build.op("Range", zero, build.squeeze(build.dim(x, axis), 0), one)
    return build.op("Add", steps, offset)


@rule("com.microsoft::MRotaryEmbedding", name="multimodal-rotary-embedding")
def multimodal_rotary_embedding(graph: Graph, node: Node) -> Outcome:
    """Three positions for each token, each for a section of the tables (Qwen2-VL): rows, sections, then as ever."""
    x, positions, cosine, sine = node.inputs
    build, heads, sections = Emit(graph, node), _heads(graph, node, cosine), node.attr("mrope_section")
    if isinstance(heads, str):
        return multimodal_rotary_embedding.refuse(node, heads)
    if node.attr("is_packed_batching", 0) or node.attr("mrope_layout", 0) or build.opset < 10:
        return multimodal_rotary_embedding.refuse(node, "ragged batches, or interleaved sections")
    tables = []
    for table in (cosine, sine):
        rows, parts, start = build.op("Gather", table, positions), [], 0
        for index, length in enumerate(sections):
            part = build.slice(build.slice(rows, 0, index, index + 1), 3, start, start + length)
            parts += [part] if length else []
            start += length
        tables.append(build.squeeze(build.op("Concat", *parts, axis=3), 0))
    axis = 2 if heads.rank == 3 else 1
    turned = _turned(build, heads, x, *(build.unsqueeze(table, axis) for table in tables))
    return build.rewrite({node.outputs[0]: turned}, "MRotaryEmbedding spelled out")


def _heads(graph: Graph, node: Node, cosine: str) -> _Heads | str:
    """The layout of the input, or why it is not known."""
    shape, table = graph.shape(node.inputs[0]), graph.shape(cosine)
    if shape is None or len(shape) not in (3, 4):
        return "the rank of the input is unknown, or neither 3 nor 4"
    rotated, heads = int(node.attr("rotary_embedding_dim", 0)), int(node.attr("num_heads", 0))
    half = table[-1] if table else None
    width = shape[-1]
    if not rotated and isinstance(half, int):
        rotated = 2 * half
    if len(shape) == 3:
        whole = width if isinstance(width, int) else 0
        width = whole // heads if heads and whole else (rotated if not node.attr("rotary_embedding_dim", 0) else None)
    if not isinstance(width, int) or not width or not rotated:
        return "the width of a head, or of the tables, is unknown"
    return _Heads(len(shape), heads, width, min(rotated, width), bool(node.attr("interleaved", 0)))


def _turned(build: Emit, heads: _Heads, x: str, cosine: str, sine: str) -> str:
    """The rotated input; cosine and sine are […, half] and fit [batch, seq, heads, half] (or heads before seq)."""
    y = build.op("Reshape", x, build.ints(0, 0, heads.heads or -1, heads.width)) if heads.rank == 3 else x
    rest: list[str] = []
    if heads.rotated != heads.width:
        y, *rest = build.split(y, 3, [heads.rotated, heads.width - heads.rotated])
    y = (_neighbours if heads.interleaved else _halves)(build, y, heads.rotated // 2, cosine, sine)
    y = build.op("Concat", y, *rest, axis=3) if rest else y
    return build.op("Reshape", y, build.op("Shape", x)) if heads.rank == 3 else y


def _halves(build: Emit, x: str, half: int, cosine: str, sine: str) -> str:
    first, second = build.split(x, 3, [half, half])
    return build.op("Concat", *_pair(build, first, second, cosine, sine), axis=3)


def _neighbours(build: Emit, x: str, half: int, cosine: str, sine: str) -> str:
    pairs = build.op(
        "Reshape", x, build.op("Concat", build.slice(build.op("Shape", x), 0, 0, 3), build.ints(half, 2), axis=0)
    )
    first, second = build.split(pairs, 4, [1, 1])
    turned = _pair(build, first, second, build.unsqueeze(cosine, -1), build.unsqueeze(sine, -1))
    return build.op("Reshape", build.op("Concat", *turned, axis=4), build.op("Shape", x))


def _pair(build: Emit, a: str, b: str, cosine: str, sine: str) -> tuple[str, str]:
    real = build.op("Sub", build.op("Mul", a, cosine), build.op("Mul", b, sine))
    return real, build.op("Add", build.op("Mul", b, cosine), build.op("Mul", a, sine))


RULES: tuple[Rule, ...] = (rotary_embedding, contrib_rotary_embedding, multimodal_rotary_embedding)
