"""RNN, LSTM and GRU in the variants that MNN's own operators compute once they are turned the right way."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import _recurrent
from graphkit.passes.lowering._recurrent import Form
from graphkit.rewrite import Outcome, Refusal, Rewrite, Rule, rule


@rule("RNN", "LSTM", "GRU", name="recurrent-layout")
def layout(graph: Graph, node: Node) -> Outcome:
    """layout = 1 (batch first), which MNN ignores: Transposes around the operator."""
    if not node.attr("layout", 0):
        return None
    emit = Emit(graph, node)
    inputs = list(node.inputs)
    for index in (0, 5, 6):
        if node.input(index):
            inputs[index] = emit.op("Transpose", inputs[index], perm=[1, 0, 2])
    attrs = {key: value for key, value in node.attrs.items() if key != "layout"}
    made = _operator(emit, node.op_type, inputs, [bool(out) for out in node.outputs], attrs)
    outputs = {}
    for index, out in enumerate(node.outputs):
        if out:
            perm = [2, 0, 1, 3] if index == 0 else [1, 0, 2]
            outputs[out] = emit.op("Transpose", made[index], perm=perm)
    return emit.rewrite(outputs, f"{node.op_type} with the steps first")


def _operator(emit: Emit, op: str, inputs: list[str], wanted: list[bool], attrs: dict[str, Any]) -> list[str]:
    """Add a recurrent operator; returns the names of its outputs, "" where it is not wanted."""
    emit.op(op, *inputs, outputs=len(wanted), **attrs)
    made = [name if wanted[index] else "" for index, name in enumerate(emit.nodes[-1].output)]
    _set_outputs(emit.nodes[-1], made)
    return made


def _set_outputs(proto: NodeProto, names: list[str]) -> None:
    del proto.output[:]
    proto.output.extend(names)


@rule("RNN", "LSTM", "GRU", name="recurrent-defaults")
def defaults(graph: Graph, node: Node) -> Outcome:
    """What says nothing, but makes MNN refuse: full sequence lengths, peepholes of zeros, omitted inputs at the end."""
    form = _recurrent.read(graph, node)
    if isinstance(form, str) or node.attr("layout", 0):
        return None
    inputs, dropped = list(node.inputs), []
    if _recurrent.full_lengths(graph, form):
        inputs[4] = ""
        dropped.append("full sequence lengths")
    if _recurrent.no_peepholes(graph, node):
        inputs[7] = ""
        dropped.append("peepholes of zeros")
    if not inputs[-1]:
        dropped.append("omitted inputs")
    if not dropped:
        return None
    return _replaced(graph, form, inputs, f"{form.kind} without its {' and '.join(dropped)}")


def _replaced(graph: Graph, form: Form, inputs: list[str], what: str) -> Rewrite:
    """The same operator with other inputs; omitted ones at the end go."""
    while not inputs[-1]:
        inputs.pop()
    emit, node = Emit(graph, form.node), form.node
    made = _operator(emit, node.op_type, inputs, [bool(out) for out in node.outputs], node.attrs)
    return emit.rewrite({old: new for old, new in zip(node.outputs, made, strict=True) if old}, what)


@rule("RNN", "LSTM", "GRU", name="recurrent-outputs")
def outputs(graph: Graph, node: Node) -> Outcome:
    """Outputs that nobody asks for: without them MNN gives Y for Y_h, and its converter crashes on LSTM."""
    form = _native(graph, node)
    if form is None or "" not in form.outputs:
        return None
    emit = Emit(graph, node)
    made = _operator(emit, form.kind, list(node.inputs), [True] * len(form.outputs), node.attrs)
    used = {old: new for old, new in zip(node.outputs, made, strict=False) if old}
    return emit.rewrite(used, f"{form.kind} with all outputs declared")


@rule("RNN", "LSTM", "GRU", name="recurrent-reverse")
def reverse(graph: Graph, node: Node) -> Outcome:
    """direction = reverse, which MNN ignores: the sequence is reversed around the forward operator."""
    form = _native(graph, node)
    if form is None or form.reversed != (True,):
        return None
    problem = _recurrent.cannot_reverse(graph, form)
    if problem:
        return Refusal("recurrent-reverse", node.label, problem)
    emit = Emit(graph, node)
    attrs = {**node.attrs, "direction": "forward"}
    inputs = [_recurrent.flipped(emit, form, node.inputs[0]), *node.inputs[1:]]
    made = _operator(emit, form.kind, inputs, [True] * len(form.outputs), attrs)
    results = {}
    for index, old in enumerate(node.outputs):
        if old:
            results[old] = _flipped_y(emit, form, made[0]) if index == 0 and graph.is_used(old) else made[index]
    return emit.rewrite(results, f"{form.kind} forward over the reversed sequence")


def _native(graph: Graph, node: Node) -> Form | None:
    """The node when MNN's operator can compute it, opset 7 and later (before, the outputs were others)."""
    if node.attr("layout", 0) or graph.opset() < 7:
        return None
    form = _recurrent.read(graph, node)
    if isinstance(form, str) or _recurrent.not_for_mnn(graph, form) is not None:
        return None
    return form


def _flipped_y(emit: Emit, form: Form, value: str) -> str:
    """Y [steps, 1, batch, hidden] in reverse order."""
    return emit.unsqueeze(_recurrent.flipped(emit, form, emit.squeeze(value, 1)), 1)


RULES: tuple[Rule, ...] = (layout, defaults, reverse, outputs)
