"""Loop in the form on which MNN 3.6 crashes, optional values that are known, and SequenceMap."""

from __future__ import annotations

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._cleanup_noops import pass_on
from graphkit.passes._emit import Emit
from graphkit.passes._match import made_by
from graphkit.passes.lowering._bodies import write_out
from graphkit.rewrite import Outcome, Refusal, Rule, rule


@rule("Loop", name="loop-without-state")
def loop_without_state(graph: Graph, node: Node) -> Outcome:
    """A Loop with neither condition nor state, on which MNN crashes: it is given the condition that it has anyway."""
    if any(node.inputs[1:]) or not node.input(0):
        return None
    emit = Emit(graph, node)
    body = node.subgraphs["body"].to_proto()
    emit.op("Loop", node.inputs[0], emit.const(np.array(True), "condition"), outputs=len(node.outputs), body=body)
    outputs = dict(zip(node.outputs, emit.nodes[-1].output, strict=True))
    return emit.rewrite({old: new for old, new in outputs.items() if old}, "Loop with its condition written")


@rule("OptionalHasElement", name="optional-has-element")
def optional_has_element(graph: Graph, node: Node) -> Outcome:
    """OptionalHasElement of nothing, of a tensor, or of what Optional makes: the answer as a constant."""
    found = _element(graph, node)
    if found is None:
        return Refusal("optional-has-element", node.label, "its input is an optional value that is not known here")
    emit = Emit(graph, node)
    return emit.rewrite({node.outputs[0]: emit.const(np.array(bool(found)), "has")}, "the answer as a constant")


@rule("OptionalGetElement", name="optional-get-element")
def optional_get_element(graph: Graph, node: Node) -> Outcome:
    """OptionalGetElement of a tensor, or of what Optional was made of: the value itself."""
    found = _element(graph, node)
    if not found:
        return Refusal("optional-get-element", node.label, "its input is an optional value that is not known here")
    return pass_on(node, found, "the value in place of the optional one")


def _element(graph: Graph, node: Node) -> str | None:
    """The value inside an optional input, "" for an empty one, None when that is not known."""
    value = node.input(0)
    maker = made_by(graph, value, "Optional") if value else None
    if maker is not None:
        return maker.input(0)
    return value if not value or graph.type(value) is not None else None


@rule("SequenceMap", name="sequence-map")
def sequence_map(graph: Graph, node: Node) -> Outcome:
    """SequenceMap is not in MNN: its body once for each element of a sequence that was just made."""
    columns = [_elements(graph, value) for value in node.inputs]
    items = columns[0]
    if not isinstance(items, tuple) or not items or any(column is None for column in columns):
        return Refusal("sequence-map", node.label, "an input is a sequence whose elements are not known here")
    if any(isinstance(column, tuple) and len(column) != len(items) for column in columns):
        return Refusal("sequence-map", node.label, "its sequences are not of the same length")
    emit, body, rows = Emit(graph, node), node.subgraphs["body"], []
    for index in range(len(items)):
        given = [str(column[index] if isinstance(column, tuple) else column) for column in columns]
        rows.append(write_out(emit, body, dict(zip(body.inputs, given, strict=True))))
    made = [emit.op("SequenceConstruct", *column) for column in zip(*rows, strict=True)]
    outputs = {old: new for old, new in zip(node.outputs, made, strict=True) if old}
    return emit.rewrite(outputs, f"SequenceMap for {len(items)} elements")


def _elements(graph: Graph, value: str) -> tuple[str, ...] | str | None:
    """The elements of a sequence, the name of a tensor, None for a sequence that is not known."""
    maker = made_by(graph, value, "SequenceConstruct")
    if maker is not None:
        return maker.inputs
    return value if graph.type(value) is not None else None


RULES: tuple[Rule, ...] = (loop_without_state, optional_has_element, optional_get_element, sequence_map)
