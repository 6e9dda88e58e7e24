"""`fold-constants`: evaluate everything that depends on constants only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _constant_if, _evaluate_region
from graphkit.passes._canonical_constants import unify_constants
from graphkit.passes._foldable import Limits, find_region
from graphkit.rewrite import Change, PassResult, Refusal


@dataclass(frozen=True)
class FoldConstants:
    """Evaluate nodes whose inputs are all constant; the results become constants under the same names.

    Whole constant regions run in onnxruntime without optimizations, so results are exactly those of the
    reference. Constant nodes become initializers; an If with a constant condition gives way to its branch.
    Refuses: random operators and training modes, operators of unknown domains, results over `max_bytes` that
    are larger than what they are made from (ConstantOfShape, Expand, Tile), DequantizeLinear unless
    `fold_dequantize` (folding it would undo a quantization), and what onnxruntime cannot run.
    """

    name: ClassVar[str] = "fold-constants"
    summary: ClassVar[str] = "evaluate nodes whose inputs are constant"

    max_bytes: int = field(default=64 << 20, metadata={"help": "largest result that may be larger than its inputs"})
    fold_dequantize: bool = field(default=False, metadata={"help": "fold DequantizeLinear of weights too"})

    def run(self, graph: Graph) -> PassResult:
        """Fold the graph and all graphs inside it, outer ones first."""
        constants = tuple(unify_constants(graph))
        result = PassResult(constants, counters={"constant": len(constants)} if constants else {})
        for inner in graph.walk():
            if inner.owner is not None and not inner.owner.alive:
                continue
            result += self._fold(inner)
            result += _constant_if.inline(inner, self.name)
        return result

    def _fold(self, graph: Graph) -> PassResult:
        region = find_region(graph, Limits(self.max_bytes, self.fold_dequantize))
        reasons = dict(region.refused)
        changes: list[Change] = []
        if region.nodes:
            wanted = _frontier(graph, region.nodes)
            values, failed = _evaluate_region.evaluate(graph, list(region.nodes), wanted, region.scope)
            reasons |= failed
            changes = _replace(graph, list(region.nodes), values)
        refusals = tuple(Refusal(self.name, node.label, reason) for node, reason in reasons.items())
        return PassResult(tuple(changes), refusals, {"folded": len(changes)} if changes else {})


def _frontier(graph: Graph, region: dict[Node, None]) -> list[str]:
    """Values of the region that graph outputs or nodes outside the region use."""
    return [
        value
        for node in region
        for value in node.outputs
        if value and (graph.is_output(value) or any(user not in region for user in graph.consumers(value)))
    ]


def _replace(graph: Graph, region: list[Node], values: dict[str, np.ndarray]) -> list[Change]:
    """Define computed values as constants, as far as the gate allows.

    Last nodes first: what only they needed is then unused and goes with them, however many outputs it has;
    so do weights that only they read.
    """
    changes: list[Change] = []
    read = {value for node in region for value in node.inputs if value in graph.initializers}
    unused = {node for node in region if not any(graph.is_used(value) for value in node.outputs)}
    for node in reversed(region):
        used = [value for value in node.outputs if value and graph.is_used(value)]
        if not used:
            if node not in unused:
                graph.remove(node)
            continue
        if not all(value in values for value in used):
            continue
        if not graph.allows(node, f"fold {node.op}"):
            break
        graph.remove(node)
        for value in used:
            graph.define_constant(value, values[value])
        changes.append(Change(node.label, f"fold {node.op}"))
    for value in read:
        if not graph.is_used(value) and value not in graph.input_infos:
            graph.remove_initializer(value)
    return changes
