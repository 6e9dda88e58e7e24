"""How a .mnn file differs from a fresh conversion of the same model: faults that no conversion makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.mnn.diff import OpChange, diff
from graphkit.mnn.document import read
from graphkit.mnn.document.summary import QuantizedLayer, summarize
from graphkit.mnn.options import ConverterOptions, Value
from graphkit.verification.bisect.regions import places

_MATMUL = "__matmul_converted"
_SHOWN = 3


def options_of(candidate: Path) -> ConverterOptions:
    """The options that a file was converted with, as far as it tells: quantized weights, half floats.

    Raises ModelError for a file that is no MNN model.
    """
    held = summarize(read(candidate))
    values: dict[str, Value | None] = {}
    if held.quantized:
        layer = _typical(held.quantized)
        values = {"weightQuantBits": layer.bits, "weightQuantAsymmetric": layer.symmetry == "asymmetric"}
        if layer.sharing.startswith("block "):
            values["weightQuantBlock"] = int(layer.sharing.split()[1])
        if layer.scales == "float16":
            values["weightQuantScaleBit"] = 16
    elif "float16" in held.by_dtype:
        values["fp16"] = True
    try:
        return ConverterOptions.of(values=values)
    except GraphkitError:  # a scheme that MNN's converter does not make
        return ConverterOptions.of()


def _typical(layers: tuple[QuantizedLayer, ...]) -> QuantizedLayer:
    """One of the layers whose scheme most weights have."""
    weights: dict[tuple[int, str, str], int] = {}
    for layer in layers:
        key = (layer.bits, layer.sharing, layer.symmetry)
        weights[key] = weights.get(key, 0) + max(1, layer.weights)
    most = max(weights, key=lambda key: weights[key])
    return next(layer for layer in layers if (layer.bits, layer.sharing, layer.symmetry) == most)


def changed(fresh: Path, candidate: Path) -> tuple[OpChange, ...]:
    """Operators of the candidate that are not as a fresh conversion makes them; none when the files cannot be read."""
    try:
        return diff(fresh, candidate).ops
    except GraphkitError:
        return ()


def told(change: OpChange) -> str:
    """What differs in an operator, one line."""
    if change.kind != "changed":
        return f"MNN operator '{change.name}' ({change.type}) was {change.kind}"
    parts = [f"{array.field} differs{_amount(array.relative, array.changed, array.count)}" for array in change.arrays]
    parts += [f"{field.field} is {field.new} where {field.old} was converted" for field in change.fields]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return f"MNN operator '{change.name}' ({change.type}): {'; '.join(parts[:_SHOWN])}{more}"


def _amount(relative: float | None, count: int | None, total: int | None) -> str:
    if relative is None:
        return ""
    return f" by {relative:.1e} in {count} of {total} numbers" if count is not None else f" by {relative:.1e}"


def hidden(
    root: Graph, place: str, labels: Sequence[str], changes: Iterable[OpChange]
) -> list[tuple[OpChange, str, str, str]]:
    """Changes of operators that stand for one of these nodes, or of constants that one reads, in the nodes' order.

    With the label, the type and the value of the node.
    """
    graph = dict(places(root)).get(place)
    found: dict[str, tuple[OpChange, str, str, str]] = {}
    if graph is None:
        return []
    for change in changes:
        for name in _names(change):
            maker = graph.producer(name)
            nodes = [maker] if maker is not None and maker.op_type != "Constant" else graph.consumers(name)
            for node in nodes:
                if node.label in labels:
                    found.setdefault(node.label, (change, node.label, node.op, node.outputs[0]))
    return [found[label] for label in labels if label in found]


def node_of(root: Graph, change: OpChange) -> tuple[str, str, str, str] | None:
    """Place, label, operator and value of the ONNX node that a changed operator is named after, if there is one."""
    names = _names(change)
    for place, graph in places(root):
        for name in names:
            node = graph.producer(name)
            if node is not None and node.op_type != "Constant":
                return place, node.label, node.op, name
    return None


def _names(change: OpChange) -> list[str]:
    """ONNX values that a changed operator may be named after."""
    return [name.removesuffix(_MATMUL) for name in (change.name, change.old_name, *change.outputs) if name]
