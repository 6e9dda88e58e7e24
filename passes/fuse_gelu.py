"""Gelu in the spellings of exporters → one operator, or the spelling that MNN turns into one operator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _gelu, _match
from graphkit.passes._gelu import Approximate, GeluMatch
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, Rewrite, Rule, apply_rules

OP_OPSET = 20


def write_op(graph: Graph, near: Node, x: str, output: str, approximate: Approximate, what: str) -> Rewrite:
    """One Gelu operator (opset 20)."""
    build = Builder(graph, near)
    y = build.op("Gelu", x, approximate=None if approximate == "none" else approximate)
    return build.rewrite({output: y}, what)


def write_spelling(
    graph: Graph, near: Node, x: str, output: str, approximate: Approximate, what: str, dtype: np.dtype
) -> Rewrite:
    """The five (erf) or eight (tanh) nodes that MNN 3.6 fuses, operand order included."""
    build = Builder(graph, near)

    def number(value: float) -> str:
        return build.const(np.array(value, dtype), "gelu")

    if approximate == "none":
        act = build.op("Erf", build.op("Div", x, number(math.sqrt(2))))
        y = build.op("Mul", build.op("Mul", x, build.op("Add", act, number(1))), number(0.5))
    else:
        cubic = build.op("Mul", build.op("Pow", x, number(3)), number(_gelu.K))
        act = build.op("Tanh", build.op("Mul", build.op("Add", x, cubic), number(_gelu.C)))
        y = build.op("Mul", x, build.op("Mul", build.op("Add", act, number(1)), number(0.5)))
    return build.rewrite({output: y}, what)


@dataclass(frozen=True)
class FuseGelu:
    """Turn Gelu spelled out in simpler operators into one Gelu, or into the spelling that MNN fuses.

    Rewrites x·½·(1 + erf(x/√2)) and the tanh form, whatever the order of operands and factors: as torch,
    Hugging Face, TorchScript and dynamo write them, x³ as Pow or as products, float16 constants included.
    MNN computes the Gelu operator always by tanh (1.8e-4 to 4.7e-4 off), but fuses one spelling of the erf
    form exactly: `form=mnn` writes that one and spells exact Gelu operators out; with `form=auto` it is
    written below opset 20 only, where ONNX has no Gelu.

    Refuses when a value inside is used elsewhere or is a graph output, when the constants are not those of
    Gelu, and with `form=op` below opset 20. x·sigmoid(1.702x) is another function and stays.
    """

    name: ClassVar[str] = "fuse-gelu"
    summary: ClassVar[str] = "Gelu spelled out (erf, tanh) becomes one operator, or the spelling MNN fuses"

    form: Literal["auto", "op", "mnn"] = field(
        default="auto",
        metadata={
            "help": "op: ONNX Gelu (opset 20); mnn: what MNN fuses exactly; auto: op if the opset has it"
        },
    )
    approx: Literal["any", "none", "tanh"] = field(
        default="any", metadata={"help": "fuse only the exact (none) or only the tanh form"}
    )

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """The rules of this pass with its options bound."""
        spelled = Rule("gelu", ("Erf", "Tanh"), self._match_spelled)
        return (spelled, Rule("gelu-op", ("Gelu",), _match_op)) if self.form == "mnn" else (spelled,)

    def _match_spelled(self, graph: Graph, act: Node) -> Outcome:
        found = _gelu.find_gelu(graph, act)
        if isinstance(found, str):
            return Refusal("gelu", act.label, found)
        if found is None or self.approx not in ("any", found.approximate):
            return None
        if self._writes_op(graph, found.approximate):
            return _as_op(graph, act, found)
        if _gelu.is_mnn_spelling(graph, found):
            return None
        return _as_spelling(graph, act, found.x, found.output, found.approximate)

    def _writes_op(self, graph: Graph, approximate: Approximate) -> bool:
        if self.form == "mnn":  # MNN's Gelu is the tanh form, so there the operator is right
            return approximate == "tanh" and graph.opset() >= OP_OPSET
        return self.form == "op" or graph.opset() >= OP_OPSET


def _as_op(graph: Graph, act: Node, found: GeluMatch) -> Outcome:
    if graph.opset() < OP_OPSET:
        reason = f"ONNX has Gelu from opset {OP_OPSET}, the model is opset {graph.opset()}"
        return Refusal("gelu", act.label, reason)
    what = f"Gelu({found.approximate}) from {len(found.nodes)} nodes"
    return write_op(graph, act, found.x, found.output, found.approximate, what)


def _as_spelling(graph: Graph, near: Node, x: str, output: str, approximate: Approximate) -> Outcome:
    dtype = _match.np_dtype(graph, x) or _match.np_dtype(graph, near.inputs[0])
    if dtype is None:
        return Refusal("gelu", near.label, f"the element type of '{x}' is unknown")
    what = f"Gelu({approximate}) spelled as MNN fuses it"
    return write_spelling(graph, near, x, output, approximate, what, dtype)


def _match_op(graph: Graph, node: Node) -> Outcome:
    if node.attr("approximate", "none") != "none":
        return None
    return _as_spelling(graph, node, node.inputs[0], node.outputs[0], "none")
