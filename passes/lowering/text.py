"""TfIdfVectorizer on numbers, which MNN 3.6 does not have: windows compared with every n-gram of the pool."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import refuse
from graphkit.rewrite import Outcome, rule

_RULE = "tf-idf"
_LARGEST = 1 << 24  # elements of one comparison, windows × n-grams × n


@rule("TfIdfVectorizer", name=_RULE)
def tf_idf(graph: Graph, node: Node) -> Outcome:
    """Counts of n-grams by comparing all windows with all of them; which column each counts for is a matrix."""
    shape = graph.shape(node.inputs[0])
    if node.attr("pool_strings") or not node.attr("pool_int64s"):
        return refuse(_RULE, node, "its pool is text")
    if shape is None or len(shape) not in (1, 2) or not isinstance(shape[-1], int):
        return refuse(_RULE, node, "the number of words in a row is not known")
    build, total = Emit(graph, node), ""
    for number, (size, grams, columns) in enumerate(_levels(node)):
        for stride in range(1, 2 + (node.attr("max_skip_count", 0) if size > 1 else 0)):
            places = _windows(shape[-1], size, stride)
            if places.size * len(grams) > _LARGEST:
                return refuse(_RULE, node, f"{len(places)} windows and {len(grams)} {size}-grams are too many")
            if len(places):
                part = _counted(build, node.inputs[0], places, grams, columns, number)
                total = build.op("Add", total, part) if total else part
    if not total:
        return refuse(_RULE, node, "no row is as long as an n-gram")
    return build.rewrite({node.outputs[0]: _weighted(build, node, total)}, "n-grams counted by comparison")


def _levels(node: Node) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Size, n-grams [count, size] and the column of each as a one-hot row, for the sizes that are asked for."""
    pool, starts = np.array(node.attr("pool_int64s"), np.int64), [*node.attr("ngram_counts"), None]
    places = np.array(node.attr("ngram_indexes"), np.int64)
    taken = 0
    for size, (first, last) in enumerate(pairwise(starts), 1):
        grams = pool[first:last].reshape(-1, size)
        found = places[taken : taken + len(grams)]
        taken += len(grams)
        if len(grams) and node.attr("min_gram_length") <= size <= node.attr("max_gram_length"):
            yield size, grams, np.eye(int(places.max()) + 1, dtype=np.float32)[found]


def _windows(width: int, size: int, stride: int) -> npt.NDArray[np.int64]:
    """Positions of all windows, [windows, size]."""
    count = max(width - (size - 1) * stride, 0)
    return np.arange(count)[:, None] + np.arange(size)[None] * stride


def _counted(
    build: Emit,
    x: str,
    places: npt.NDArray[np.int64],
    grams: npt.NDArray[np.int64],
    columns: npt.NDArray[np.float32],
    number: int,
) -> str:
    """How often each column's n-grams come, [batch, columns] or [columns]."""
    words = build.op("Gather", build.cast(x, TensorProto.INT32), build.const(places[:, None]), axis=-1)
    apart = build.op("Sub", words, build.const(grams[None].astype(np.int32), f"grams{number}"))
    far = build.reduce("ReduceMax", build.op("Abs", apart), [-1], keepdims=False)
    same = build.cast(build.op("Equal", far, build.number(0, TensorProto.INT32)), TensorProto.FLOAT)
    return build.op("MatMul", build.reduce("ReduceSum", same, [-2], keepdims=False), build.const(columns, "columns"))


def _weighted(build: Emit, node: Node, counts: str) -> str:
    """TF: counts; IDF: the weight of what is there; TFIDF: counts times weights."""
    mode, weights = node.attr("mode"), node.attr("weights")
    if mode == "IDF":
        counts = build.op("Min", counts, build.number(1))
    if mode == "TF" or not weights:
        return counts
    row = np.ones(max(node.attr("ngram_indexes")) + 1, np.float32)
    row[np.array(node.attr("ngram_indexes"))] = weights
    return build.op("Mul", counts, build.const(row, "weights"))


RULES = (tf_idf,)
