"""Casts to narrow integers: MNN keeps all but uint8 and int8 in 32 bits, and its converter fails on some."""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, bits, wrapped
from graphkit.rewrite import Outcome, rule

_NAME = "cast-for-mnn"
_REACH: dict[int, frozenset[int]] = {  # element types whose values fit as they are
    TensorProto.INT16: frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL, TensorProto.INT16}),
    TensorProto.UINT16: frozenset({TensorProto.UINT8, TensorProto.BOOL, TensorProto.UINT16}),
}


@rule("Cast", name=_NAME)
def cast(graph: Graph, node: Node) -> Outcome:
    """Casts that MNN gets wrong: uint8 straight from a graph input, int8 from uint8, 16 bits from wider integers."""
    to, x = int(node.attr("to", 0)), node.inputs[0]
    source = graph.dtype(x)
    if source == to or source not in FLOATS | INTEGERS | {TensorProto.BOOL}:
        return None
    emit = Emit(graph, node)
    if to == TensorProto.UINT8:
        y = _to_uint8(emit, graph, x, source)
    elif to == TensorProto.INT8 and source == TensorProto.UINT8:
        y = _to_int8(emit, x)
    elif to in _REACH and source in INTEGERS and source not in _REACH[to]:
        y = _to_16_bits(emit, graph, x, to)
    else:
        return None
    return emit.rewrite({node.outputs[0]: y}, "Cast in steps that MNN has") if y is not None else None


def _to_uint8(emit: Emit, graph: Graph, x: str, source: int) -> str | None:
    """MNN's converter crashes on a Cast to uint8 that reads a graph input."""
    if x not in graph.root.inputs or graph.parent is not None:
        return None
    if source == TensorProto.BOOL:
        return emit.op("Where", x, *(emit.number(k, TensorProto.UINT8) for k in (1, 0)))
    if source in FLOATS:
        return emit.cast(emit.cast(x, TensorProto.INT32), TensorProto.UINT8)
    wide = x if bits(source) >= 32 and source in (TensorProto.INT32, TensorProto.INT64) else None
    wide = wide or emit.cast(x, TensorProto.INT32)
    kind = source if wide == x else TensorProto.INT32
    return emit.cast(emit.op("Mod", wide, emit.number(256, kind)), TensorProto.UINT8)


def _to_int8(emit: Emit, x: str) -> str:
    """uint8 wrapped into int8 by arithmetic: two Casts alone would be merged into the one that MNN does not have."""
    raised = emit.op("Add", emit.cast(x, TensorProto.INT32), emit.number(128, TensorProto.INT32))
    wide = emit.op("Mod", raised, emit.number(256, TensorProto.INT32))
    return emit.cast(emit.op("Sub", wide, emit.number(128, TensorProto.INT32)), TensorProto.INT8)


def _to_16_bits(emit: Emit, graph: Graph, x: str, to: int) -> str | None:
    """Wrapped into 16 bits, unless that was done already."""
    maker = graph.producer(x)
    if maker is not None and maker.op in ("Mod", "Sub") and graph.dtype(x) == TensorProto.INT32:
        modulus = maker if maker.op == "Mod" else graph.producer(maker.inputs[0])
        if modulus is not None and modulus.op == "Mod" and graph.scalar(modulus.inputs[1]) == 65536:
            return None
    wide = x if graph.dtype(x) == TensorProto.INT32 else emit.cast(x, TensorProto.INT32)
    return wrapped(emit, wide, to)


RULES = (cast,)
