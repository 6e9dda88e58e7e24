"""`fold-shapes`: partial evaluation of shape arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph import Graph
from graphkit.passes._shape_folder import Folder
from graphkit.rewrite import PassResult
from graphkit.shapes import publish, scopes
from graphkit.symbolic.evaluate import Evaluator, evaluate


@dataclass(frozen=True)
class FoldShapes:
    """Compute with sizes that are only known by name, and remove shape arithmetic that this settles.

    Values that come out as numbers become constants. A Reshape whose target is known in part gets a constant
    one (0 copies an axis; -1 only where it means the same for sizes of 0 as well), an Expand one of ones and
    numbers; Reshape, Expand, Tile and Slice that keep the shape go. Chains of Reshape, Flatten, Squeeze and
    Unsqueeze become one; so does Reshape, Transpose, Reshape that only merges leading axes meanwhile, and a
    Gather or GatherND whose computed indices take everything in order. What is left of shape arithmetic over
    named sizes is computed once, from the shape of one graph input (Shape, Gather, Concat), or for sizes that
    no input has from the first value whose shape is asked for.
    Inputs whose axes have the same name are taken to agree on its size, and a size in a Reshape target to be
    meant as one (without allowzero, ONNX reads a 0 there as "copy").

    Refuses Reshape targets with two open sizes, or with one where another size may be 0, and arithmetic that
    depends on data. Nothing is computed from declared shapes of inner values and outputs.
    """

    name: ClassVar[str] = "fold-shapes"
    summary: ClassVar[str] = "partially evaluate shape arithmetic"

    def run(self, graph: Graph) -> PassResult:
        """Fold the graph and all graphs inside it; one sweep over the nodes to evaluate, one to rewrite.

        What evaluation found out is recorded as the types of the values, as infer-shapes does.
        """
        evaluator = evaluate(graph)
        publish(evaluator)
        return fold(graph, evaluator)


def fold(graph: Graph, evaluator: Evaluator) -> PassResult:
    """Rewrite with what an evaluator found out about the graph."""
    folder = Folder(evaluator)
    for scope in list(scopes(evaluator.root)):
        if folder.closed:
            break
        if scope.graph.owner is None or scope.graph.owner.alive:
            folder.fold(scope)
    return PassResult(tuple(folder.changes), tuple(folder.refusals), dict(Counter(folder.kinds)))
