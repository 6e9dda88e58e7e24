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
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, Rule, apply_rules

OP_OPSET = 20


def _write_erf(build: Builder, x: str, dtype: np.dtype) -> str:
    """x · (1 + erf(x/√2)) · ½ in the five nodes that MNN 3.6 fuses, operand order included."""
    act = build.op("Erf", build.op("Div", x, build.const(np.array(math.sqrt(2), dtype), "gelu")))
    total = build.op("Add", act, build.const(np.array(1, dtype), "gelu"))
    return build.op("Mul", build.op("Mul", x, total), build.const(np.array(0.5, dtype), "gelu"))


def _write_sigmoid(build: Builder, x: str, dtype: np.dtype) -> str:
    """The tanh form in six nodes: x · sigmoid(x · (2c + 2ck · x²)), which MNN computes as it stands."""
    square = build.op("Mul", x, x)
    inner = build.op("Mul", square, build.const(np.array(2 * _gelu.C * _gelu.K, dtype), "gelu"))
    slope = build.op("Add", inner, build.const(np.array(2 * _gelu.C, dtype), "gelu"))
    return build.op("Mul", x, build.op("Sigmoid", build.op("Mul", x, slope)))


@dataclass(frozen=True)
class FuseGelu:
    """Turn Gelu spelled out in simpler operators into one Gelu, or into the spelling that MNN fuses.

    Rewrites x·½·(1 + erf(x/√2)) and the tanh form, whatever the order of operands and factors: as torch,
    Hugging Face, TorchScript and dynamo write them, x³ as Pow or as products, float16 constants included.
    `form=auto` writes the operator at opset 20 and above; below, the erf form becomes what MNN fuses, and the
    tanh form stays. `form=mnn` is exact in MNN 3.6, whose Gelu is a tanh approximation of its own, off by up
    to 4.7e-4 for the erf form and 1.8e-4 (at |x| near 4) for the tanh form, and which it also makes of some
    spellings: the erf form gets the spelling that MNN fuses exactly (1 operator, 5e-7), the tanh form one by
    sigmoid that it leaves alone (8 operators instead of 13, 4e-7); Gelu operators are spelled out so too.

    Refuses when a value inside is used elsewhere or is a graph output, when the constants are not those of
    Gelu, and with `form=op` below opset 20. x·sigmoid(1.702x) is another function and stays.
    """

    name: ClassVar[str] = "fuse-gelu"
    summary: ClassVar[str] = "Gelu spelled out (erf, tanh) becomes one operator, or the spelling MNN fuses"

    form: Literal["auto", "op", "mnn"] = field(
        default="auto",
        metadata={"help": "op: ONNX Gelu (opset 20); mnn: what MNN fuses exactly; auto: op if the opset has it"},
    )
    approx: Literal["any", "none", "tanh"] = field(
        default="any", metadata={"help": "fuse only the exact (none) or only the tanh form"}
    )

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """The rules of this pass with its options bound."""
        spelled = Rule("gelu", ("Erf", "Tanh", "Sigmoid"), self._match_spelled)
        return (spelled, Rule("gelu-op", ("Gelu",), self._match_op)) if self.form == "mnn" else (spelled,)

    def _match_spelled(self, graph: Graph, act: Node) -> Outcome:
        found = _gelu.find_gelu(graph, act)
        if isinstance(found, str):
            return Refusal("gelu", act.label, found)
        if found is None or self.approx not in ("any", found.approximate):
            return None
        if self.form == "op" or (self.form == "auto" and graph.opset() >= OP_OPSET):
            return _as_op(graph, act, found)
        if found.approximate == "none":
            stays = _gelu.is_mnn_spelling(graph, found)
        else:
            stays = self.form == "auto" or act.op_type == "Sigmoid"
        return None if stays else _as_spelling(graph, act, found.x, found.output, found.approximate)

    def _match_op(self, graph: Graph, node: Node) -> Outcome:
        approximate: Approximate = "tanh" if node.attr("approximate", "none") == "tanh" else "none"
        if self.approx not in ("any", approximate):
            return None
        return _as_spelling(graph, node, node.inputs[0], node.outputs[0], approximate)


def _as_op(graph: Graph, act: Node, found: GeluMatch) -> Outcome:
    if graph.opset() < OP_OPSET:
        reason = f"ONNX has Gelu from opset {OP_OPSET}, the model is opset {graph.opset()}"
        return Refusal("gelu", act.label, reason)
    build = Builder(graph, act)
    y = build.op("Gelu", found.x, approximate=None if found.approximate == "none" else found.approximate)
    return build.rewrite({found.output: y}, f"Gelu({found.approximate}) from {len(found.nodes)} nodes")


def _as_spelling(graph: Graph, near: Node, x: str, output: str, approximate: Approximate) -> Outcome:
    dtype = _match.np_dtype(graph, x) or _match.np_dtype(graph, near.inputs[0])
    if dtype is None:
        return Refusal("gelu", near.label, f"the element type of '{x}' is unknown")
    build = Builder(graph, near)
    y = _write_erf(build, x, dtype) if approximate == "none" else _write_sigmoid(build, x, dtype)
    return build.rewrite({output: y}, f"Gelu({approximate}) spelled exactly for MNN")
