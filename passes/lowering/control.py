"""Loop in the form on which MNN 3.6 crashes, and optional values that are known."""

from __future__ import annotations

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._cleanup_noops import pass_on
from graphkit.passes._emit import Emit
from graphkit.passes._match import made_by
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


RULES: tuple[Rule, ...] = (loop_without_state, optional_has_element, optional_get_element)
