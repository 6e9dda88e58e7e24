"""The pass `lower-for-mnn`: what MNN refuses or computes wrong, written in operators that it runs right."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes.lowering import FAMILIES
from graphkit.rewrite import Outcome, PassResult, Rewrite, Rule, apply_rules

_OPSET = 18  # of the operators we write into a model that has none of ONNX's own
_ROUNDS = 8  # lowerings of lowerings; the deepest chain so far takes three


@dataclass(frozen=True)
class LowerForMnn:
    """Write operators that MNN lacks, crashes on or computes wrong in ones that it runs right.

    Every rule computes the same numbers as the ONNX standard (or onnxruntime, for its contrib operators). What
    cannot be written so is left, with the reason; `graphkit check` tells what MNN will do with it.
    """

    name: ClassVar[str] = "lower-for-mnn"
    summary: ClassVar[str] = "what MNN refuses or computes wrong, in operators that it runs right"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place, until no rule matches any more."""
        rules = [_in_opset(rule) for family in FAMILIES for rule in family.RULES]
        foreign = "" not in graph.opsets and _any_match(graph, rules)
        if foreign:
            graph.opsets[""] = _OPSET
        total = PassResult()
        for _ in range(_ROUNDS):
            if not _any_match(graph, rules):
                break
            shapes.infer(graph)
            result = apply_rules(graph, rules)
            total = PassResult(total.changes, (), total.counters, total.notes) + result
            if not result.modified:
                break
        if foreign and not total.modified:
            del graph.opsets[""]
        return total


def _in_opset(rule: Rule) -> Rule:
    """The rule, but a refusal where it would write an operator that the model's operator set does not have yet."""

    def match(graph: Graph, node: Node) -> Outcome:
        outcome = rule.match(graph, node)
        if not isinstance(outcome, Rewrite):
            return outcome
        opset = graph.opset()
        missing = (made.op_type for made in outcome.nodes if not made.domain and not _has(made.op_type, opset))
        op = next(missing, "")
        return rule.refuse(node, f"it takes {op}, which operator set {opset} does not have") if op else outcome

    return replace(rule, match=match)


@functools.cache
def _has(op: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(op, opset))
    except onnx.defs.SchemaError:
        return False


def _any_match(graph: Graph, rules: list[Rule]) -> bool:
    ops = {op for item in rules for op in item.ops}
    return any(node.op in ops for inner in graph.walk() for node in inner.nodes)
