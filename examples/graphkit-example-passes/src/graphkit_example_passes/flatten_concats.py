"""A pass on onnx-graphsurgeon: import, change, and hand the graph back only when something changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from graphkit.graph import Graph
from graphkit.rewrite import Change, PassResult, Refusal


@dataclass(frozen=True)
class FlattenConcats:
    """Splice a Concat into the Concat that reads it, when both join along the same axis.

    Refuses when the inner result is used elsewhere or is a graph output. Subgraphs are left alone. The pass
    asks for no numbers of its own, so that graphkit counts all of its changes as one rewrite.
    """

    name: ClassVar[str] = "flatten-concats"
    summary: ClassVar[str] = "Concat of Concat along one axis becomes one Concat (on onnx-graphsurgeon)"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        surgeon = graph.to_graphsurgeon()
        changes: list[Change] = []
        refusals: list[Refusal] = []
        for node in surgeon.nodes:
            if node.op == "Concat":
                self._flatten(surgeon, node, changes, refusals)
        if changes:
            graph.from_graphsurgeon(surgeon.cleanup())
        return PassResult(tuple(changes), tuple(refusals), {"concat": len(changes)} if changes else {})

    def _flatten(self, surgeon: Any, node: Any, changes: list[Change], refusals: list[Refusal]) -> None:
        inputs = []
        for tensor in node.inputs:
            inner = tensor.inputs[0] if tensor.inputs else None
            if inner is None or inner.op != "Concat" or inner.attrs["axis"] != node.attrs["axis"]:
                inputs.append(tensor)
            elif len(tensor.outputs) > 1 or any(tensor is output for output in surgeon.outputs):
                refusals.append(Refusal(self.name, node.name, f"'{tensor.name}' is used elsewhere too"))
                inputs.append(tensor)
            else:
                inputs.extend(inner.inputs)
                changes.append(Change(node.name or node.outputs[0].name, f"took in '{inner.name or tensor.name}'"))
        node.inputs = inputs
