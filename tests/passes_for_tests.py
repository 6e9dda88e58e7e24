"""Passes that behave well or badly, for the tests of registry, manager, optimize and plugins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.registry import PassInfo, Registry
from graphkit.rewrite import Builder, Change, Outcome, PassResult, Refusal, Rewrite, Rule, apply_rules


@dataclass(frozen=True)
class DropIdentity:
    """Remove Identity, one numbered rewrite each; refuses those that make a graph output."""

    name: ClassVar[str] = "drop-identity"
    summary: ClassVar[str] = "remove Identity"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, [Rule("identity", ("Identity",), self._match)])

    def _match(self, graph: Graph, node: Node) -> Outcome:
        if graph.is_output(node.outputs[0]):
            return Refusal("identity", node.label, "it makes a graph output")
        return Rewrite("identity", {node.outputs[0]: node.inputs[0]})


@dataclass(frozen=True)
class Replace:
    """Replace nodes of one operator by another with the same inputs, one numbered rewrite each."""

    name: ClassVar[str] = "replace"
    summary: ClassVar[str] = "replace an operator"

    op: str = field(default="Relu", metadata={"help": "operator to replace"})
    by: str = "Sigmoid"
    limit: int = 1 << 20

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, [Rule(f"{self.op}-{self.by}", (self.op,), self._match)])

    def _match(self, graph: Graph, node: Node) -> Outcome:
        build = Builder(graph, node)
        return build.rewrite({node.outputs[0]: build.op(self.by, *node.inputs)}, f"{self.op} to {self.by}")


@dataclass(frozen=True)
class ScaleOutput:
    """Multiply the first output by a factor: it changes numbers, in one unnumbered change."""

    name: ClassVar[str] = "scale-output"
    summary: ClassVar[str] = "wrong on purpose"

    by: float = 2.0

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        node = graph.producer(graph.outputs[0])
        assert node is not None
        inner, out = graph.new_name("inner"), node.outputs[0]
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        proto.output[0] = inner
        graph.replace_node(node, proto)
        factor = graph.add_constant(np.float32(self.by), "factor")
        graph.insert(NodeProto(op_type="Mul", input=[inner, factor], output=[out], name=graph.new_name("scale")))
        return PassResult((Change(node.label, "scaled"),), notes=("scaled it",))


@dataclass(frozen=True)
class Silent:
    """Do what another pass does and report nothing."""

    name: ClassVar[str] = "silent"
    summary: ClassVar[str] = "lies about what it did"

    inner: Any = DropIdentity()

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        gate, graph.gate = graph.gate, lambda node, what: True
        self.inner.run(graph)
        graph.gate = gate
        return PassResult()


@dataclass(frozen=True)
class Custom:
    """Run any function of the graph."""

    name: ClassVar[str] = "custom"
    summary: ClassVar[str] = "for one test"

    do: Callable[[Graph], Any] | None = None

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        result = self.do(graph) if self.do is not None else None
        return result if result is not None else PassResult()


@dataclass(frozen=True)
class Crash:
    """Raise when the graph holds a Sigmoid of rank 2."""

    name: ClassVar[str] = "crash"
    summary: ClassVar[str] = "raises"

    def run(self, graph: Graph) -> PassResult:
        """Change a little, then raise."""
        for node in graph.by_op("Sigmoid"):
            graph.rename(node.outputs[0], "half done")
            raise IndexError("list index out of range")
        return PassResult()


def registry() -> Registry:
    """The built-in passes and those of this file that can be made from text."""
    found = Registry()
    for cls in (DropIdentity, Replace, ScaleOutput, Silent, Crash):
        found.add(PassInfo(cls.name, "tests", cls))
    return found
