"""The pass `split-attention`: attention operators of all kinds, written in plain operators that MNN runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from graphkit import shapes
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes.attention import (
    contrib_attention,
    contrib_group_query,
    contrib_masked,
    contrib_multihead,
    contrib_packed,
    flash,
    onnx_attention,
)
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Change, PassResult, apply_rules
from graphkit.symbolic.evaluate import Evaluator, Scope
from graphkit.symbolic.state import UNKNOWN, State

_READERS = (
    onnx_attention,
    contrib_attention,
    contrib_multihead,
    contrib_group_query,
    contrib_packed,
    contrib_masked,
)


@dataclass(frozen=True)
class SplitAttention:
    """Write attention operators in plain ones (MatMul, Add, Softmax, …): MNN knows none of them.

    Takes ai.onnx Attention (opset 23 and later), com.microsoft Attention, MultiHeadAttention, GroupQueryAttention,
    PackedMultiHeadAttention and DecoderMaskedMultiHeadAttention, and FlashAttention by its many names in any custom
    domain: causal and windowed, with masks, biases, past and present keys, grouped queries, softcap. What they compute
    for queries that may see no key stays the same, too. What cannot be written so is left, with the reason.

    `chunk=N` computes N queries at a time, which takes less memory on long sequences of known length (the numbers
    are in docs/attention.md). `op`, `layout`, `scale` and `causal` describe an operator that a custom domain calls
    otherwise, or that does not say these itself: `split-attention{op="my.domain::FlashAttn",layout=bshd,scale=0.125}`.
    """

    name: ClassVar[str] = "split-attention"
    summary: ClassVar[str] = "attention operators (ONNX, onnxruntime, FlashAttention) as plain ones that MNN runs"

    chunk: int = field(default=0, metadata={"help": "queries computed at a time, to save memory; 0: all at once"})
    op: str = field(default="", metadata={"help": "one more operator that is a FlashAttention: domain::Name"})
    layout: Literal["auto", "bshd", "bhsd"] = field(
        default="auto", metadata={"help": "order of batch, sequence, heads, size in custom operators; auto: they say"}
    )
    scale: float | None = field(default=None, metadata={"help": "scale of custom operators; none: theirs, or 1/√d"})
    causal: bool | None = field(default=None, metadata={"help": "whether custom operators are causal; none: they say"})

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise UsageError(f"option 'chunk' is a number of queries, not {self.chunk}")
        domain, found, name = self.op.partition("::")
        if self.op and not (domain and found and name):
            raise UsageError(f"option 'op' is domain::Name, not '{self.op}'")

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        layout = "" if self.layout == "auto" else self.layout
        options = Options(self.chunk, self.op, layout, self.scale, self.causal)
        rules = [rule for reader in _READERS for rule in reader.rules(options)]
        rules += flash.rules(options, graph)
        result = PassResult()
        ops = {op for item in rules for op in item.ops}
        while any(node.op in ops for inner in graph.walk() for node in inner.nodes):
            _infer(graph, options)
            latest = apply_rules(graph, rules)
            result = PassResult(result.changes, (), result.counters, result.notes) + latest
            if not latest.modified:
                break
        return replace(result, notes=(*result.notes, *self._notes(result.changes)))

    def _notes(self, changes: Sequence[Change]) -> list[str]:
        """What became of `chunk` where it could not be heeded."""
        whole = sum("blocks" not in change.what for change in changes) if self.chunk else 0
        if not whole:
            return []
        return [
            f"{whole} of {len(changes)} attention operators compute all queries at once: there are at most "
            f"{self.chunk}, or their number is not known (static-shapes fixes it), or the scores are an output"
        ]


class _Evaluator(Evaluator):
    """An evaluator to which the result of a custom attention has the type of the query, with the value's last axis."""

    def __init__(self, graph: Graph, options: Options) -> None:
        super().__init__(graph)
        self.options = options

    def _transfer(self, scope: Scope, node: Node, ins: list[State]) -> tuple[State, ...]:
        if not flash.is_flash(scope.graph, node, self.options) or len(ins) < 3:
            return super()._transfer(scope, node, ins)
        query, value = ins[0], ins[2]
        rest = [UNKNOWN] * (len(node.outputs) - 1)
        if query.shape is None or value.shape is None or len(query.shape) != 4 != len(value.shape):
            # Of rank 3 the last axis is heads·d, and there may be fewer heads of values.
            shape = query.shape if query.shape is not None and query.shape == value.shape else None
            return (State(query.dtype, shape), *rest)
        return (State(query.dtype, (*query.shape[:3], value.shape[3])), *rest)


def _infer(graph: Graph, options: Options) -> None:
    """As `shapes.infer`, through custom attention operators."""
    evaluator = _Evaluator(graph, options)
    evaluator.run()
    shapes.publish(evaluator)
