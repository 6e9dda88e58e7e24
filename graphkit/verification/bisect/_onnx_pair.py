"""Two ONNX models, value by value: the candidate run once with the reference's value behind each that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto

from graphkit.compare import OutputComparison, Tolerance, compare
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.verification.bisect import regions
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect._lab import Truth, Values
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.conclusions import Conclusion

_MADE = "/graphkit-made"
_RTOL = 1e-4  # of the largest value: two runs of onnxruntime on the same inputs


@dataclass(frozen=True)
class Pair:
    """What was compared: verdicts by the value's name, in the candidate's order."""

    verdicts: dict[str, OutputComparison]

    @property
    def wrong(self) -> tuple[str, ...]:
        """Values that are wrong although everything in front of them is the reference's."""
        return tuple(name for name, verdict in self.verdicts.items() if not verdict.ok)


def common(reference: Graph, candidate: Graph) -> tuple[str, ...]:
    """Values that nodes of both main graphs make, in the candidate's order; values of Constant nodes left out."""
    return tuple(
        out
        for node in candidate.nodes
        if node.op_type != "Constant"
        for out in node.outputs
        if out and (made := reference.producer(out)) is not None and made.op_type != "Constant"
    )


def judge(reference: Graph, candidate: Model, truth: Truth, tolerance: Tolerance) -> Pair:
    """Compare every value that both have; `truth` knows the reference's. Raises what onnxruntime raises."""
    graph = Graph.of(candidate)
    names = common(reference, graph)
    if not names:
        return Pair({})
    values = truth.values(names)
    inputs = truth.values([name for name in graph.inputs if name not in graph.initializers])
    forced = _forced(graph, names, values)
    with Session(forced, outputs=[name + _MADE for name in names]) as session:
        made = session.run({**inputs, **{name: values[name] for name in names}})
    actual = {name: made[name + _MADE] for name in names}
    return Pair({output.name: output for output in compare(values, actual, tolerance).outputs})


def _forced(graph: Graph, names: Sequence[str], values: Values) -> Model:
    """The graph in which each of these values is made under another name and read from an input."""
    proto = ModelProto()
    proto.CopyFrom(graph.to_model().proto)
    chosen = set(names)
    for node in proto.graph.node:
        node.output[:] = [out + _MADE if out in chosen else out for out in node.output]
    for name in names:
        array = np.asarray(values[name])
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [None] * array.ndim))
    del proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name + _MADE) for name in names)
    return Model(proto, graph.store, graph.model.path)


def against_onnx(case: Case, candidate: Model) -> BisectResult:
    """The nodes in which another ONNX model computes something else, on the reference's own values."""
    found: dict[str, Fault] = {}
    graph = Graph.of(candidate)
    extra = [name for name in graph.inputs if name not in graph.initializers and name not in case.graph.inputs]
    if extra:
        raise UsageError(
            f"it has an input '{extra[0]}' that {case.model.path or 'the reference'} has not", file=candidate.path
        )
    wrong, judged, worst = "", 0, 0.0
    for number in range(len(case.evidence.samples)):
        pair = judge(case.graph, candidate, case.truth(number), Tolerance(rtol=_RTOL))
        judged = max(judged, len(pair.verdicts))
        worst = max([worst, *(v.max_error for v in pair.verdicts.values() if v.ok)])
        for name in pair.wrong:
            verdict, node = pair.verdicts[name], graph.producer(name)
            if node is None or name in found:
                continue
            anchors = set(pair.verdicts) - {name}
            labels = regions.between(graph, [name], anchors).labels
            found[name] = Fault(Conclusion(
                node.label, node.op, name, "model", labels, "wrong", verdict.max_error, verdict.max_abs,
                verdict.max_ref, reason=verdict.reason,
            ))  # fmt: skip
    if not judged:
        raise UsageError("the two models have no inner value of the same name", hint="compare their outputs: verify")
    proof = case.evidence.judge_model(candidate, case.tolerance)
    wrong = "" if proof.kind == "equal" else proof.reason or proof.note
    return BisectResult(tuple(found.values()), wrong, judged, judged - len(found), worst)
