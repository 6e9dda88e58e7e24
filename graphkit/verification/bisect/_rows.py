"""Rows of the table from what was measured: which node, how much was allowed, what that says."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.mnn.tracing import OpTrace
from graphkit.node import Node
from graphkit.verification.bisect import noise
from graphkit.verification.bisect._floors import Floor, widened
from graphkit.verification.bisect.alignment import Alignment, main_node, region
from graphkit.verification.bisect.noise import Allowance, Drift
from graphkit.verification.bisect.references import References
from graphkit.verification.bisect.regions import Region
from graphkit.verification.bisect.types import LayerRow, Verdict


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one graph on one sample.

    place: "" for the main graph. halved: the MNN file stores half floats, or the graph computes in them. bits: of the
    quantized operators, by name. steps: what a quantized operator's codes may add to its error, by name. floors: what
    nodes may be off by because of the numbers that they read.
    """

    graph: Graph
    alignments: Mapping[tuple[str, int], Alignment]
    references: References
    drifts: Mapping[str, Drift]
    sample: int = 0
    place: str = ""
    halved: bool = False
    bits: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    floors: Mapping[Node, Floor] = field(default_factory=dict)

    def make(self, traces: Sequence[OpTrace], given: Collection[str] = (), *, forced: bool) -> list[LayerRow]:
        """A row for each value that was compared; `given` are tensors that were inputs of the run."""
        known = {*given, *(trace.tensor for trace in traces if trace.tensor is not None)}
        return [self.row(trace, known, forced) for trace in traces if trace.tensor is not None]

    def row(self, trace: OpTrace, known: Set[str], forced: bool, note: str = "") -> LayerRow:
        """The row of one value; `known` are the tensors that were right (or put right) upstream."""
        tensor = trace.tensor or ""
        alignment = self.alignments[trace.op, trace.slot]
        between = region(self.graph, tensor, known)
        node = main_node(self.graph, alignment.start, trace.type, between.nodes)
        dtype = self.references.array(tensor).dtype
        allowed = self._allowed(between, trace, dtype, forced)
        error = math.nan if trace.mismatched else trace.error
        return LayerRow(
            node=node.label if node else tensor, op=node.op if node else "", tensor=tensor,
            mnn_op=trace.op, mnn_type=trace.type, shape=trace.shape, dtype=dtype.name,
            local=error if forced else None, accumulated=trace.accumulated if forced else error,
            max_abs=trace.stats.max_abs, max_ref=trace.stats.max_ref, tolerance=allowed.over(trace.stats.max_ref),
            verdict=self._verdict(trace, allowed, dtype), bits=self.bits.get(trace.op, 0),
            fused=tuple(other.label for other in between.nodes if other is not node),
            anchors=between.inputs, sample=self.sample, place=self.place, note=note or trace.note,
            slot=trace.slot,
        )  # fmt: skip

    def _allowed(self, between: Region, trace: OpTrace, dtype: np.dtype[Any], forced: bool) -> Allowance:
        drift = self.drifts.get(trace.tensor or "", Drift())
        local = noise.allowance(between.nodes, drift, dtype, halved=self.halved)
        local = local.widened(self.steps.get(trace.op, 0.0) + self._inner_steps(between, trace))
        local = widened(local, between.nodes, self.floors, dtype.kind)
        return local if forced else noise.accumulated(drift, local)

    def _inner_steps(self, between: Region, trace: OpTrace) -> float:
        """What quantized operators on the way to a value may add to it, where no value of theirs was put right."""
        found = 0.0
        for op, step in self.steps.items():
            item = self.alignments.get((op, 0))
            if item is None or op == trace.op or self.graph.producer(item.tensors[0]) not in between.nodes:
                continue
            largest = float(np.abs(self.references.array(item.tensors[0]).astype(np.float64)).max(initial=0.0))
            found += step * largest / max(trace.stats.max_ref, 1e-30)
        return found

    def _verdict(self, trace: OpTrace, allowed: Allowance, dtype: np.dtype[Any]) -> Verdict:
        if dtype.kind in "iub":
            return "agrees" if trace.stats.differing <= allowed.flips else "suspect"
        if trace.mismatched and not self.drifts.get(trace.tensor or "", Drift()).mismatched:
            return "suspect"
        return "agrees" if trace.error <= allowed.over(trace.stats.max_ref) else "suspect"
