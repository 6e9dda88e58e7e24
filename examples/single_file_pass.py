"""A pass in a single file, for `--plugin`: HardSwish and HardSigmoid in plain operators.

graphkit optimize model.onnx --plugin examples/single_file_pass.py --passes infer-shapes,plain-activations
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit import Builder, Graph, Node, PassResult, apply_rules, rule
from graphkit.rewrite import Outcome

FLOAT_TYPES: dict[int, type[np.floating]] = {1: np.float32, 10: np.float16, 11: np.float64}  # by ONNX element type


@rule("HardSwish", "HardSigmoid")
def plain_activation(graph: Graph, node: Node) -> Outcome:
    """HardSigmoid(x) is αx + β between 0 and 1; HardSwish(x) is x times that, with α = 1/6 and β = 1/2."""
    x = node.inputs[0]
    dtype = FLOAT_TYPES.get(graph.dtype(x))
    if dtype is None:
        return plain_activation.refuse(node, f"the element type of '{x}' is not known")
    swish = node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (node.attr("alpha", 0.2), node.attr("beta", 0.5))
    build = Builder(graph, node)
    line = build.op("Add", build.op("Mul", x, build.const(dtype(alpha))), build.const(dtype(beta)))
    gate = build.op("Clip", line, build.const(dtype(0)), build.const(dtype(1)))
    y = build.op("Mul", x, gate) if swish else gate
    return build.rewrite({node.outputs[0]: y}, f"{node.op_type} in plain operators")


@dataclass(frozen=True)
class PlainActivations:
    """Write HardSwish and HardSigmoid with Mul, Add and Clip, for runtimes that have neither.

    Refuses where the element type is not known; run `infer-shapes` before.
    """

    name: ClassVar[str] = "plain-activations"
    summary: ClassVar[str] = "HardSwish and HardSigmoid become Mul, Add and Clip"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, [plain_activation])
