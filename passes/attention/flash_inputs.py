"""How the inputs of a custom attention operator lie: the order of their axes, the number of heads, the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import form as forms

_LAYOUTS = ("layout", "input_layout", "qkv_format", "data_layout")
_HEADS = ("num_heads", "q_num_heads", "head_num")
_KV_HEADS = ("num_kv_heads", "kv_num_heads", "num_key_value_heads", "num_heads_k")
_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_SAY = "say it: split-attention{layout=bshd} or {layout=bhsd}"


@dataclass(frozen=True)
class Layout:
    """Order of the axes (`bsh`: heads and their dims in one axis) and sizes of the inputs."""

    order: Literal["bshd", "bhsd", "bsh"]
    heads: int
    kv_heads: int
    size: int | None
    batch: Dim
    sq: Dim
    sk: Dim

    def heads_second(self, build: Emit, x: str, index: int) -> str:
        """Input 0, 1 or 2 as [batch, heads, seq, d]."""
        if self.order == "bsh":
            return forms.split_heads(build, x, self.heads if index == 0 else self.kv_heads)
        return forms.swap_heads(build, x) if self.order == "bshd" else x

    def as_given(self, build: Emit, x: str) -> str:
        """A result [batch, heads, seq, d] in the order of the inputs."""
        if self.order == "bsh":
            return forms.merge_heads(build, x)
        return forms.swap_heads(build, x) if self.order == "bshd" else x


@dataclass(frozen=True)
class Mask:
    """A mask that broadcasts to [batch, heads, sq, sk], `rows` as in the form; or the problem with it."""

    bias: str = ""
    keep: str = ""
    rows: bool | None = None
    problem: str = ""


def read_layout(graph: Graph, node: Node, option: str) -> Layout | str:
    """The layout of a node by the option, its attributes or its shapes; or why it is not known."""
    query, key, value = (graph.shape(x) for x in node.inputs[:3])
    if query is None or key is None or value is None or len({len(query), len(key), len(value)}) != 1:
        return "the ranks of query, key and value are not known, or differ"
    heads, kv_heads = _attribute(node, _HEADS), _attribute(node, _KV_HEADS)
    if len(query) == 3:
        return _flat(query, key, heads, kv_heads)
    if len(query) != 4:
        return f"query is of rank {len(query)}, not 3 or 4"
    order = option or _named(node) or _inferred(query, key, heads, kv_heads)
    if order not in ("bshd", "bhsd"):
        return order
    axis, sequence = (2, 1) if order == "bshd" else (1, 2)
    found, shared = query[axis], key[axis]
    if not isinstance(found, int) or not isinstance(shared, int):
        return f"the number of heads, axis {axis} in layout {order}, is not known"
    if shared == 0 or found % shared:
        return f"{found} heads cannot share {shared} heads of keys; is the layout {order}? {_SAY}"
    spelled: Literal["bshd", "bhsd"] = "bshd" if order == "bshd" else "bhsd"
    return Layout(spelled, found, shared, forms.known(query[3]), query[0], query[sequence], key[sequence])


def _flat(query: Sequence[Dim], key: Sequence[Dim], heads: int | None, kv_heads: int | None) -> Layout | str:
    """[batch, seq, heads·d]."""
    if not heads:
        return "inputs of rank 3 need the attribute num_heads"
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        return f"{heads} heads cannot share {kv_heads} heads of keys"
    hidden = forms.known(query[2])
    size = hidden // heads if hidden is not None else None
    return Layout("bsh", heads, kv_heads, size, query[0], query[1], key[1])


def _attribute(node: Node, names: Sequence[str]) -> int | None:
    return next((int(value) for name in names if (value := node.attr(name))), None)


def _named(node: Node) -> str:
    """The layout that an attribute names; N is another letter for heads."""
    for name in _LAYOUTS:
        text = node.attr(name)
        if isinstance(text, str) and text:
            order = text.lower().replace("n", "h")
            return order if order in ("bshd", "bhsd") else f"layout '{text}' is not known; {_SAY}"
    return ""


def _inferred(query: Sequence[Dim], key: Sequence[Dim], heads: int | None, kv_heads: int | None) -> str:
    """The layout that only one reading of the shapes allows, or why there is none."""
    fits = {order: _fits(query[axis], key[axis], heads, kv_heads) for order, axis in (("bshd", 2), ("bhsd", 1))}
    possible = [order for order, fit in fits.items() if fit]
    if len(possible) == 1:
        return possible[0]
    return f"neither attributes nor shapes tell the order of the axes; {_SAY}"


def _fits(found: Dim, shared: Dim, heads: int | None, kv_heads: int | None) -> bool:
    """True when an axis can be that of the heads: their number is always known."""
    if not isinstance(found, int) or not isinstance(shared, int) or shared == 0 or found % shared:
        return False
    return found == (heads or found) and shared == (kv_heads or shared)


def read_mask(build: Emit, node: Node, layout: Layout) -> Mask | None:
    """Input 3: a mask (bool, or integers that are not 0 where a key may be seen) or a bias (floating point)."""
    value = node.input(3)
    if not value:
        return None
    graph = build.graph
    shape, kind = graph.shape(value), graph.dtype(value)
    if shape is None or kind is None or not 2 <= len(shape) <= 4:
        return Mask(problem="input 3 is no mask or bias of known rank 2 to 4 and known type")
    axis = _batch_axis(shape, layout)
    if axis is None:
        return Mask(problem=f"whether the first axis of the mask of shape {_text(shape)} is the batch is not clear")
    rows = len(shape) - 2 if axis != "keys" else None
    if axis == "keys":
        value = build.unsqueeze(value, 1, 2)
    elif axis == "batch":
        value = build.unsqueeze(value, 1)
    by_query = _by_query(shape[rows], layout.sq) if rows is not None else False
    if kind in _FLOATS:
        dtype = graph.dtype(node.inputs[0])
        return Mask(bias=value if dtype in (kind, None) else build.cast(value, dtype or kind), rows=by_query)
    if kind in _INTEGERS:
        value = build.cast(value, TensorProto.BOOL)
    elif kind != TensorProto.BOOL:
        return Mask(problem="input 3 is neither a mask nor a bias")
    return Mask(keep=value, rows=by_query)


def _by_query(rows: Dim, queries: Dim) -> bool | None:
    """Whether a mask has a row for each query."""
    if rows == 1:
        return queries == 1
    return True if isinstance(rows, int) or (rows is not None and rows == queries) else None


def _batch_axis(shape: Sequence[Dim], layout: Layout) -> Literal["none", "batch", "keys"] | None:
    """What the axes of a mask before the last are; "keys": [batch, keys]; None: more than one reading."""
    if len(shape) == 4:
        return "none"
    first = shape[0]
    other = layout.sq if len(shape) == 2 else layout.heads
    by_batch, as_it_is = first == layout.batch and first is not None, first in (1, other) and first is not None
    if first == 1 or (as_it_is and not by_batch):
        return "none"
    if not by_batch or as_it_is:
        return None
    return "keys" if len(shape) == 2 else "batch"


def _text(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
