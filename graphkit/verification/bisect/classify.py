"""What kind of fault: a region that MNN gets wrong is cut out, fed reference values, and taken apart.

Wrong alone with inner values as outputs: an operator is at fault, the first whose inputs are all right. Wrong alone
only while inner values are inner: MNN's converter fuses wrongly. Wrong only when others hand over the inputs: how they
lie in memory. Right alone: the fault needs the rest of the model, or lies in the file. What differs from itself, in
MNN or in onnxruntime, and what onnxruntime itself gets wrong (float64, ONNX's own evaluator) is told apart first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from graphkit._scratch import scratch
from graphkit.compare import OutputComparison, Tolerance
from graphkit.errors import MnnError
from graphkit.graph import Graph
from graphkit.mnn.locate import MAX_EXPOSED, failing_node
from graphkit.model import Model
from graphkit.node import Node
from graphkit.verification.bisect import _inside, _second, failures, regions
from graphkit.verification.bisect._lab import GARBAGE, ZEROS, Lab, Trial
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.conclusions import Alone, Conclusion, Kind, Witness, rearranged
from graphkit.verification.bisect.cutting import body_region, cut, feeds_of
from graphkit.verification.bisect.regions import Region

Array = npt.NDArray[Any]
_SUFFIXES = 12
_KEPT = 4  # trials, whose values take memory
_UNSTEADY = "MNN computes something else in a second run"
_UNWRITTEN = "MNN reads memory that nobody wrote: right or wrong by luck"


class Examiner:
    """Takes regions of one graph apart.

    graph: types inferred. truth: reference values of one sample. tolerance: what counts as right for what is
    converted alone; place: where the graph is in the model.
    """

    def __init__(self, lab: Lab, graph: Graph, truth: Truth, tolerance: Tolerance, place: str = "") -> None:
        self.lab, self.graph, self.truth, self.tolerance, self.place = lab, graph, truth, tolerance, place
        self._tried: dict[object, Trial] = {}

    # -- the answer ---------------------------------------------------------------------------------------

    def conclude(self, region: Region) -> Conclusion | None:
        """What is wrong with a region; None when, alone and on reference inputs, it is right.

        Raises what onnxruntime raises for the reference, and Exhausted when the budget ends before that is known.
        """
        if not self.truth.steady(region.outputs):
            last = self._last(region)
            return self._conclusion(region, last, "nondeterminism", "not tried", "the reference differs from itself")
        trial = self.attempt(region, runs=2)
        if trial.failure is not None:
            return self.failing(region)[0]
        if wrong := self.wrong(region, trial):
            found = self._take_apart(region, wrong[0])
            return replace(found, note=_UNSTEADY) if trial.unsteady else found
        return self._by_luck(region)

    def _by_luck(self, region: Region) -> Conclusion | None:
        """What is wrong with a region that is right while the memory that nobody wrote happens to be good."""
        for memory in (ZEROS, GARBAGE):
            with self.lab.filled(memory):
                trial = self.attempt(region)
                wrong = self.wrong(region, trial)
                if wrong:
                    return replace(self._take_apart(region, wrong[0]), note=_UNWRITTEN)
        return None

    def failing(self, region: Region, *, run: bool = True) -> tuple[Conclusion, Region]:
        """The node with which MNN begins to refuse a region, to crash on it or to run out of time, and the least that
        it takes to fail in the same way. run: converting it is not all, it must run too."""
        model, feeds = self.piece(region)
        whole = self._failure(model, feeds, run) or MnnError("MNN fails")
        faults = failing_node(Graph.of(model), lambda part: self._failure(part, feeds, run) is None, "MNN fails")
        node = next((n for n in region.nodes if faults and n.label == faults[0].node), self._last(region))
        made = regions.between(self.graph, [out for out in node.outputs if self.graph.is_used(out)], region.inputs)
        local = self.fails(made, run=run) or whole
        group = (
            self._smallest(node, region.nodes, lambda part: failures.alike(self.fails(part, run=run), local)) or region
        )
        kind: Kind = "crash" if any(failures.signature(whole)[:2]) else "refused"
        parts = [whole.message, *([local.message] if local.message != whole.message else []), *failures.told(local)]
        makers = [n.label for n in group.nodes if n is not node and n.op_type != "Constant"]
        if makers:
            fixed = self._fixed
            computed = " from constants" if all(n is node or n in fixed for n in group.nodes) else ""
            parts.append(f"when {', '.join(map(repr, makers[-4:]))} make its inputs{computed}")
        return self._conclusion(group, node, kind, "right" if makers else "fails", "; ".join(parts)), group

    def attempt(self, region: Region, expose: tuple[str, ...] = (), runs: int = 1) -> Trial:
        """Convert a region alone and run it on reference inputs; the last ones that worked are not tried again."""
        shown = frozenset((*region.outputs, *expose))
        key = (region.nodes, frozenset(region.inputs), shown, self.lab.memory)
        known = self._tried.get(key)
        if known is not None and len(known.runs) >= runs:
            return known
        trial = self.lab.attempt(*self.piece(region, expose), runs=runs)
        if trial.failure is None:
            self._tried = {**dict(list(self._tried.items())[1 - _KEPT :]), key: trial}
        return trial

    def piece(self, region: Region, expose: tuple[str, ...] = ()) -> tuple[Model, dict[str, Array]]:
        """A region as a model and what it is fed. What comes to it from constants alone is constant there too."""
        values = self.truth.of([*region.inputs, *region.outputs, *expose])
        fixed = self._fixed
        fold = {name for name in region.inputs if self.graph.producer(name) in fixed}
        return cut(region, values, expose=expose, fold=fold), feeds_of(region, values, fold=fold)

    # -- apart ----------------------------------------------------------------------------------------------

    def _take_apart(self, region: Region, wrong: OutputComparison) -> Conclusion:
        for memory in dict.fromkeys((self.lab.memory, ZEROS, GARBAGE)):
            with self.lab.filled(memory):
                first, exposed = self._first_wrong(region)
                if exposed.failure is not None:
                    return self._fused(region, wrong, f"with inner values as outputs: {exposed.failure.message}")
                if first is not None:
                    found = self._blame(region, first, exposed.outputs.get(first.name))
                    return replace(found, note=_UNWRITTEN) if memory and not found.note else found
        return self._fused(region, wrong, "right with inner values as outputs")

    def _blame(self, region: Region, first: OutputComparison, shown: Array | None) -> Conclusion:
        """The node that makes the first wrong value, or what it takes to make it wrong."""
        node = self.graph.producer(first.name)
        assert node is not None
        group = self._smallest(node, region.nodes, self._is_wrong, first.name)
        if group is None:
            return self._fused(region, first, "no part of it is wrong alone")
        if any(n is not node and n.op_type != "Constant" for n in group.nodes):
            return self._handed_over(group, node, first)
        return self._operator(group, node, first, shown)

    def _first_wrong(self, region: Region) -> tuple[OutputComparison | None, Trial]:
        """The first value that is wrong while all values are outputs, thinned to what MNN's converter bears."""
        names = region.inner
        step = -(-len(names) // MAX_EXPOSED) or 1
        names = tuple(name for i, name in enumerate(names) if i % step == 0 or name in region.outputs)
        trial = self.attempt(region, expose=names)
        wrong = {output.name: output for output in self._verdicts(names, trial) if _is_off(output)}
        return next((wrong[name] for name in names if name in wrong), None), trial

    def _operator(self, group: Region, node: Node, wrong: OutputComparison, shown: Array | None) -> Conclusion:
        """One node is wrong by itself: look inside it, ask a second reference, look at how the result is wrong."""
        inner = self._inside(node)
        if inner is not None:
            return inner
        trial = self.attempt(group, runs=2)
        actual = next((run[wrong.name] for run in trial.runs if wrong.name in run), shown)
        expected = self.truth.of([wrong.name])[wrong.name]
        if actual is not None:
            doubt = _second.opinion(*self.piece(group), wrong.name, expected, actual)
            if doubt:
                return self._conclusion(group, node, "reference", "wrong", doubt, wrong, trial)
        kind: Kind = "layout" if actual is not None and rearranged(expected, actual, self.tolerance) else "operator"
        return self._conclusion(group, node, kind, "wrong", self._said(expected, actual, wrong), wrong, trial)

    def _inside(self, node: Node) -> Conclusion | None:
        """What is wrong in the body that runs; None when the node has none, or its body is right alone."""
        branch, body, values = _inside.entered(self.graph, node, self.truth)
        if body is None or not body_region(body).nodes:
            return None
        place = "/".join(part for part in (self.place, node.label, branch) if part)
        truth = _inside.body_truth(body, values)
        return Examiner(self.lab, body, truth, self.tolerance, place).conclude(body_region(body))

    def _said(self, expected: Array, actual: Array | None, wrong: OutputComparison) -> str:
        if expected.size <= 1 and actual is not None and actual.size == expected.size:
            return f"expected {expected.reshape(-1)[:1].tolist()}, got {actual.reshape(-1)[:1].tolist()}"
        return wrong.reason

    def _handed_over(self, group: Region, node: Node, wrong: OutputComparison) -> Conclusion:
        """A node that is right on inputs of ours and wrong on the same values made by nodes in front of it."""
        trial = self.attempt(group, expose=group.inner)
        odd = [
            (output.name, output.shape)
            for output in self._verdicts(group.inner, trial)
            if output.ok and output.shape != output.expected_shape
        ]
        makers = [n.label for n in group.nodes if n is not node and n.op_type != "Constant"]
        reason = f"right on the same inputs from outside, wrong when {', '.join(repr(m) for m in makers)} makes them"
        if odd:
            name, shape = odd[-1]
            want = list(self.truth.of([name])[name].shape)
            reason = f"{reason}; MNN holds '{name}' as {list(shape or ())} where it is {want}"
        kind: Kind = "layout" if odd or self._moved(trial, wrong.name) else "fusion"
        return self._conclusion(group, node, kind, "right", reason, wrong, trial)

    def _moved(self, trial: Trial, name: str) -> bool:
        actual = trial.outputs.get(name)
        return actual is not None and rearranged(self.truth.of([name])[name], actual, self.tolerance)

    def _fused(self, region: Region, wrong: OutputComparison, reason: str) -> Conclusion:
        """Wrong as a whole only: the shortest end of the region that still is."""
        shortest = region
        ends = [regions.between(self.graph, [wrong.name], {name, *region.inputs})
                for name in reversed(regions.dominators(region, wrong.name))]  # fmt: skip
        for end in ends[:_SUFFIXES]:
            if self.wrong(end, self.attempt(end)):
                shortest = end
                break
        trial = self.attempt(shortest)
        node = self.graph.producer(wrong.name)
        assert node is not None
        found = self.wrong(shortest, trial)
        return self._conclusion(shortest, node, "fusion", "right", reason, found[0] if found else wrong, trial)

    # -- small questions ------------------------------------------------------------------------------------

    def _smallest(
        self, node: Node, within: Collection[Node], bad: Callable[[Region], bool], output: str = ""
    ) -> Region | None:
        """The node with as few layers of what feeds it as it takes to be bad; None when all of that is not enough."""
        seen: tuple[Node, ...] = ()
        for group in regions.upstream(self.graph, node, within, output, self._fixed):
            if group.nodes == seen:
                continue
            seen = group.nodes
            if bad(group):
                return group
        return None

    @cached_property
    def _fixed(self) -> set[Node]:
        return regions.constant_nodes(self.graph)

    def _is_wrong(self, region: Region) -> bool:
        trial = self.attempt(region, expose=region.inner, runs=2)
        if trial.failure is not None:
            return not region.inputs  # a constant that MNN cannot even show
        return bool(self.wrong(region, trial))

    def fails(self, region: Region, *, run: bool = True) -> MnnError | None:
        """What MNN says when it does not take a region (or, with `run`, does not run it)."""
        return self._failure(*self.piece(region), run)

    def _failure(self, model: Model, feeds: dict[str, Array], run: bool) -> MnnError | None:
        if not run:
            self.lab.check()
            with scratch("bisect") as folder:
                return self.lab.convert(model, Path(folder) / "model.mnn")
        failure = self.lab.attempt(model, feeds).failure
        return failure if isinstance(failure, MnnError) else None

    def _verdicts(self, names: Collection[str], trial: Trial) -> tuple[OutputComparison, ...]:
        expected = self.truth.of(list(names))
        return trial.verdict(expected, self.tolerance).outputs if trial.failure is None else ()

    def wrong(self, region: Region, trial: Trial, tolerance: Tolerance | None = None) -> list[OutputComparison]:
        """Outputs of a region that are wrong, when it was tried alone."""
        expected = self.truth.of(region.outputs)
        verdicts = trial.verdict(expected, tolerance or self.tolerance).outputs if trial.failure is None else ()
        return [output for output in verdicts if _is_off(output)]

    def witness(self, region: Region, tolerance: Tolerance | None = None) -> Witness:
        """The region as a model of its own, with its inputs and what it must compute."""
        return Witness(*self.piece(region), dict(self.truth.of(region.outputs)), tolerance or self.tolerance)

    def _last(self, region: Region) -> Node:
        return next(node for node in reversed(region.nodes) if set(node.outputs) & set(region.outputs))

    def _conclusion(
        self, group: Region, node: Node, kind: Kind, alone: Alone, reason: str, wrong: OutputComparison | None = None,
        trial: Trial | None = None,
    ) -> Conclusion:  # fmt: skip
        tensor = wrong.name if wrong is not None else next((out for out in node.outputs if out), "")
        sizes = (wrong.max_error, wrong.max_abs, wrong.max_ref) if wrong is not None else (float("nan"),) * 3
        return Conclusion(
            node.label, node.op, tensor, kind, group.labels, alone, *sizes,
            into=_holder(trial, tensor) if kind == "fusion" else "", place=self.place, reason=reason,
            witness=self.witness(group),
        )  # fmt: skip


def _is_off(output: OutputComparison) -> bool:
    """True for a value that is there and wrong: MNN drops outputs that equal others."""
    return not output.ok and output.shape is not None


def _holder(trial: Trial | None, tensor: str) -> str:
    """Type of the MNN operator that makes a value."""
    ops = trial.info.ops if trial is not None and trial.info is not None else ()
    return next((op.type for op in ops if tensor in op.outputs), "")
