"""LayerNorm followed by Gelu: both fused in one pass, and the pairs counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _gelu, _match, _norm
from graphkit.passes.fuse_gelu import FuseGelu
from graphkit.passes.fuse_layernorm import FuseLayernorm
from graphkit.rewrite import PassResult, apply_rules

_BETWEEN = ("Mul", "Add", "Cast")


@dataclass(frozen=True)
class FuseLayernormGelu:
    """Fuse LayerNorm and Gelu together: the rules of fuse-layernorm and of fuse-gelu in one walk.

    A LayerNorm whose result goes into a Gelu becomes two operators, LayerNormalization and Gelu (spelled as
    MNN fuses them where the opset or `form=mnn` asks for that); neither ONNX nor MNN has one for both. The
    counter `layernorm-gelu` says how many such pairs the graph has afterwards, `layernorm` and `gelu` what
    was rewritten, pairs or not. Refusals are those of the two passes.
    """

    name: ClassVar[str] = "fuse-layernorm-gelu"
    summary: ClassVar[str] = "LayerNorm and the Gelu behind it, both fused in one pass"

    form: Literal["auto", "op", "mnn"] = field(
        default="auto", metadata={"help": "as in fuse-layernorm and fuse-gelu: operators, or what MNN fuses"}
    )
    approx: Literal["any", "none", "tanh"] = field(
        default="any", metadata={"help": "fuse only the exact (none) or only the tanh form of Gelu"}
    )

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        rules = (*FuseLayernorm(self.form).rules(), *FuseGelu(self.form, self.approx).rules())
        result = apply_rules(graph, rules)
        pairs = sum(_follows_norm(inner, x) for inner in graph.walk() for x in _gelu_inputs(inner))
        if not pairs:
            return result
        return replace(result, counters={**result.counters, "layernorm-gelu": pairs})


def _gelu_inputs(graph: Graph) -> list[str]:
    """Inputs of all Gelus of a graph, operators and spellings."""
    found = [node.inputs[0] for node in graph.by_op("Gelu")]
    for act in (*graph.by_op("Erf"), *graph.by_op("Tanh")):
        gelu = _gelu.find_gelu(graph, act)
        if isinstance(gelu, _gelu.GeluMatch):
            found.append(gelu.x)
    return found


def _follows_norm(graph: Graph, value: str) -> bool:
    """True when a LayerNorm makes the value: the operator, or a spelling with its scale and bias."""
    if _match.made_by(graph, value, "LayerNormalization"):
        return True
    node = graph.producer(value)
    for _ in _BETWEEN:
        if node is None or not _match.is_op(node, *_BETWEEN):
            break
        operands = _match.with_constant(graph, node)
        node = graph.producer(operands[0] if operands else node.inputs[0])
    return node is not None and _match.is_op(node, "Div") and _is_norm(graph, node)


def _is_norm(graph: Graph, division: Node) -> bool:
    root = _match.made_by(graph, division.inputs[1], "Sqrt")
    found = _norm.find_norm(graph, root) if root is not None else None
    return isinstance(found, _norm.NormMatch) and found.centred
