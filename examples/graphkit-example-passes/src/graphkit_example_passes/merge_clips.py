"""A pass on graphkit's own API: a rule that answers with a rewrite, a refusal, or None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph, Node
from graphkit.rewrite import Builder, Outcome, PassResult, Rule, apply_rules

FLOAT_TYPES = {1: np.float32, 10: np.float16, 11: np.float64}  # by ONNX element type


@dataclass(frozen=True)
class MergeClips:
    """Merge a Clip with the Clip or Relu in front of it into one Clip.

    Clip(Clip(x, a, b), c, d) is Clip(x, clip(a, c, d), clip(b, c, d)) exactly; a Relu is a Clip from 0 up.

    Refuses when the value in between is used elsewhere or a graph output, when a bound is not a constant, and
    when a lower bound is above the upper one.
    """

    name: ClassVar[str] = "merge-clips"
    summary: ClassVar[str] = "Clip after Clip or Relu becomes one Clip"

    relu: bool = field(default=True, metadata={"help": "merge with a Relu in front too"})

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, [Rule(self.name, ("Clip",), self._match)])

    def _match(self, graph: Graph, node: Node) -> Outcome:
        rule = Rule(self.name, ("Clip",), self._match)
        first = graph.producer(node.inputs[0])
        dtype = FLOAT_TYPES.get(graph.dtype(node.inputs[0]))
        wanted = ("Clip", "Relu") if self.relu else ("Clip",)
        if first is None or first.op not in wanted or dtype is None:
            return None
        if graph.sole_consumer(first.outputs[0]) is None:
            return rule.refuse(node, f"'{first.outputs[0]}' is used elsewhere too")
        inner, outer = _bounds(graph, first), _bounds(graph, node)
        if inner is None or outer is None:
            return rule.refuse(node, "a bound is not a constant, or the lower one is above the upper one")
        build = Builder(graph, node)
        bounds = [build.const(np.array(bound, dtype)) if np.isfinite(bound) else "" for bound in np.clip(inner, *outer)]
        y = build.op("Clip", first.inputs[0], *bounds)
        return build.rewrite({node.outputs[0]: y}, f"{first.op} and Clip as one")


def _bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Lower and upper bound of a Relu or Clip (opset 11 and newer), None when they are not known."""
    if node.op == "Relu":
        return 0.0, np.inf
    low = graph.scalar(node.input(1)) if node.input(1) else -np.inf
    high = graph.scalar(node.input(2)) if node.input(2) else np.inf
    if low is None or high is None or low > high or graph.opset() < 11:
        return None
    return low, high
