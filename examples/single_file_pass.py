"""A pass in a single file, for `--plugin`: the square of a value as one product.

graphkit optimize model.onnx --plugin examples/single_file_pass.py --passes default,square-by-mul
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph import Graph, Node
from graphkit.rewrite import Builder, Outcome, PassResult, apply_rules, rule


@rule("Pow")
def square_by_mul(graph: Graph, node: Node) -> Outcome:
    """Pow(x, 2) → Mul(x, x), for a constant of one element that adds no axes."""
    x, exponent = node.inputs
    if graph.scalar(exponent) != 2 or graph.rank(exponent) != 0:
        return None
    if graph.dtype(x) != graph.dtype(node.outputs[0]) or not graph.dtype(x):
        return square_by_mul.refuse(node, f"the element type of '{x}' is not known")
    build = Builder(graph, node)
    return build.rewrite({node.outputs[0]: build.op("Mul", x, x)}, "x² as a product")


@dataclass(frozen=True)
class SquareByMul:
    """Write Pow(x, 2) as Mul(x, x), which runtimes compute faster and at least as exactly.

    Refuses when the element type of x is not known (run `infer-shapes` before).
    """

    name: ClassVar[str] = "square-by-mul"
    summary: ClassVar[str] = "Pow(x, 2) becomes Mul(x, x)"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, [square_by_mul])
