"""The pass `lower-for-mnn`: what MNN refuses or computes wrong, written in operators that it runs right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.passes.lowering import FAMILIES
from graphkit.rewrite import PassResult, Rule, apply_rules

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
        rules = [rule for family in FAMILIES for rule in family.RULES]
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


def _any_match(graph: Graph, rules: list[Rule]) -> bool:
    ops = {op for item in rules for op in item.ops}
    return any(node.op in ops for inner in graph.walk() for node in inner.nodes)
