"""The pass `dequantize-weights`: quantized constants become float ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _dequantize
from graphkit.passes._dequantize import DEQUANTIZE, Layout, folded
from graphkit.passes._emit import Emit
from graphkit.passes._quantized_params import guarded
from graphkit.rewrite import Outcome, PassResult, Refusal, Rewrite, Rule, apply_rules

_NAME = "dequantize-weights"
_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


@dataclass(frozen=True)
class DequantizeWeights:
    """Fold DequantizeLinear of constants into float constants: MNN ignores `axis` and `block_size`, and INT4 ends it.

    Exact: the float constants are what DequantizeLinear computes. Takes codes of 2 to 32 bits and float8, scales
    per tensor, per axis or in blocks, with or without zero points, in both domains, also where views or casts stand
    between the stored codes and the node. Tables of int8 or uint8 rows that only Gather reads stay as they are
    stored (`embeddings=keep`): the rows are gathered first, then multiplied by their scales; MNN keeps them at one
    byte a number. Every weight is noted with its bits, its blocks and its bytes before and after.
    """

    name: ClassVar[str] = _NAME
    summary: ClassVar[str] = "DequantizeLinear of constants becomes float constants; byte embeddings stay bytes"

    keep_embeddings: bool = field(default=True, metadata={"help": "tables that Gather reads stay at a byte a number"})

    def run(self, graph: Graph) -> PassResult:
        """Fold in the graph and all graphs inside it."""
        rules = (GATHERED,) if self.keep_embeddings else ()
        read = {
            value for inner in graph.walk() for op in DEQUANTIZE for node in inner.by_op(op) for value in node.inputs
        }
        result = apply_rules(graph, (*rules, FOLDED))
        for value in read:
            if value in graph.initializers and value not in graph.input_infos and not graph.is_used(value):
                graph.remove_initializer(value)
        return PassResult(result.changes, result.refusals, _kinds(result), tuple(c.what for c in result.changes))


def _kinds(result: PassResult) -> dict[str, int]:
    """Counts by the code's type, which is the word after the weight's name."""
    return dict(Counter(change.what.rsplit("': ", 1)[1].split()[0] for change in result.changes))


def _fold(graph: Graph, node: Node) -> Outcome:
    """MNN reads one scale a tensor at best: the product is computed here."""
    values = folded(graph, node)
    if isinstance(values, str):
        return Refusal(_NAME, node.label, values)
    if values is None:
        return None
    name = graph.new_name(f"{node.inputs[0]}_float")
    what = f"{_described(graph, node)} become {values.nbytes:,} of {values.dtype}"
    return Rewrite(what, {node.outputs[0]: name}, constants={name: np.asarray(values)})


def _described(graph: Graph, node: Node) -> str:
    """A weight in words: name, type of the codes, shape, how many share a scale, bytes."""
    codes, scale = (_dequantize.constant(graph, value) for value in node.inputs[:2])
    assert codes is not None
    assert scale is not None
    layout = Layout.of(node)
    if scale.size == 1:
        shared = "one scale"
    elif layout.block:
        shared = f"blocks of {layout.block} along axis {layout.axis}"
    else:
        shared = f"scales along axis {layout.axis}"
    kind = codes.dtype.name
    params = [array for value in node.inputs[1:] if (array := _dequantize.constant(graph, value)) is not None]
    nbytes = sum((array.size * _bits(array) + 7) // 8 for array in (codes, *params))
    return f"'{node.inputs[0]}': {kind} {list(codes.shape)}, {_bits(codes)} bits, {shared}: {nbytes:,} bytes"


def _bits(array: np.ndarray) -> int:
    """Bits of one element as ONNX stores it."""
    return _BITS.get(array.dtype.name, array.dtype.itemsize * 8)


def _gathered(graph: Graph, node: Node) -> Outcome:
    """A table that only Gather reads: rows of bytes are gathered and then scaled, so that MNN stores bytes."""
    users = graph.consumers(node.outputs[0])
    codes = graph.constant(node.inputs[0])
    if codes is None or codes.dtype.name not in ("int8", "uint8") or codes.ndim < 2 or graph.is_output(node.outputs[0]):
        return None
    if not users or any(not _reads_rows(user, node.outputs[0]) for user in users):
        return None
    user = users[0]
    params = [_rows(graph, value, codes) if value else None for value in (node.inputs[1], node.input(2))]
    axis = Layout.of(node).axis % codes.ndim
    if (
        params[0] is None
        or (node.input(2) and params[1] is None)
        or (axis and _many(graph, node))
        or node.attr("block_size", 0)
    ):
        return None
    build = Emit(graph, user)
    indices = user.inputs[1]
    result = build.cast(build.op("Gather", node.inputs[0], indices, axis=0), 1)
    if params[1] is not None and np.any(params[1]):
        result = build.op("Sub", result, _row(build, params[1], indices))
    result = build.op("Mul", result, _row(build, params[0], indices))
    kind = _dequantize.result_type(graph, node)
    result = build.cast(result, kind) if kind not in (0, 1) else result
    what = f"{_described(graph, node)} stay, rows are scaled after Gather"
    return build.rewrite({user.outputs[0]: result}, what)


def _reads_rows(user: Node, table: str) -> bool:
    return user.op == "Gather" and user.inputs[0] == table and user.attr("axis", 0) == 0 and user.inputs[1] != table


def _many(graph: Graph, node: Node) -> bool:
    scale = graph.constant(node.inputs[1])
    return scale is None or scale.size != 1


def _rows(graph: Graph, value: str, codes: np.ndarray) -> np.ndarray | None:
    """A scale or zero point of every row as float32, shaped to broadcast over rows; or of all."""
    array = graph.constant(value)
    if array is None or (array.size != 1 and array.shape != codes.shape[:1]):
        return None
    flat = array.astype(np.float32)
    return flat.reshape(()) if array.size == 1 else flat.reshape([-1] + [1] * (codes.ndim - 1))


def _row(build: Emit, values: np.ndarray, indices: str) -> str:
    """The scales of the rows that were gathered."""
    name = build.const(values, "rows")
    return name if values.ndim == 0 else build.op("Gather", name, indices, axis=0)


FOLDED, GATHERED = guarded(
    Rule(_NAME, DEQUANTIZE, _fold),
    Rule("scale-after-gather", DEQUANTIZE, _gathered),
)
