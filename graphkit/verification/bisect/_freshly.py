"""Fresh conversions to hold a given file against: the model as it is, and as our passes make it.

A file from `graphkit convert` went through passes, so a plain conversion differs in operators that nobody changed. The
conversion that is nearer to the file tells what was. Which of these differences matter is tried: each is put into the
fresh file by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.mnn._diff_types import OpChange
from graphkit.mnn.document import GraphView, read, write
from graphkit.mnn.document.tree import Table
from graphkit.mnn.fileinfo import FileInfo, FileOp, read_file_info
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.proof import Proof
from graphkit.verification.bisect import _altered
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect.conclusions import Conclusion

_PASSES = "mnn"
_MOST = 40  # differences that are tried one by one
_FEW = 6  # differences that are named although they cannot be tried
_TIMES = 2.0  # the error of a fresh conversion: what is quantized is off by itself


@dataclass(frozen=True)
class Fresh:
    """A fresh conversion, and how the file differs from it."""

    path: Path
    changes: tuple[OpChange, ...]


def nearest(case: Case, candidate: Path, folder: Path) -> Fresh | None:
    """The fresh conversion that a file differs from in fewest operators; None when there is none."""
    found: list[Fresh] = []
    for model in (case.model, None):
        if found and _is_clear(found[0].changes):
            break
        model = model or passed(case)
        if model is None:
            break
        made = folder / f"fresh{len(found)}.mnn"
        if case.convert(model, made) is None:
            found.append(Fresh(made, _altered.changed(made, candidate)))
    return min(found, key=lambda fresh: len(fresh.changes), default=None)


def _is_clear(changes: Sequence[OpChange]) -> bool:
    """True for a difference that no pass makes: numbers or a parameter of one operator, or nothing."""
    if len(changes) > 1:
        return False
    made = {"type", "inputs", "outputs"}
    return all(
        change.kind == "changed" and not {field.field.split("[")[0] for field in change.fields} & made
        for change in changes
    )


def passed(case: Case) -> Model | None:
    """The model as our passes make it, None when they do not."""
    try:
        return optimize(case.model, _PASSES, verify="none").model
    except GraphkitError:
        return None


def wrong_in(proof: Proof) -> tuple[int, list[str]]:
    """The first sample on which outputs are wrong, and the wrong outputs of all samples."""
    bad = next((number for number, check in enumerate(proof.checks) if not check.comparison.ok), 0)
    return bad, [output.name for check in proof.checks for output in check.comparison.outputs if not output.ok]


def runs(case: Case, fresh: Fresh, number: int, tolerance: Tolerance | None = None) -> bool:
    """True when MNN runs a fresh conversion on a sample and, where a tolerance is given, its outputs are right."""
    sample = case.evidence.samples[number]
    trial = case.lab.run(fresh.path, [sample.feeds])
    return trial.failure is None and (tolerance is None or trial.verdict(sample.expected, tolerance).ok)


def _bound(case: Case, fresh: Fresh, number: int) -> Tolerance:
    """What an output may be off by: what convert allows, or some times as much as the fresh conversion is."""
    sample = case.evidence.samples[number]
    trial = case.lab.run(fresh.path, [sample.feeds])
    worst = trial.verdict(sample.expected, case.tolerance).worst if trial.failure is None else None
    error = worst.max_error if worst is not None and np.isfinite(worst.max_error) else 0.0
    return replace(case.tolerance, rtol=max(case.tolerance.rtol, _TIMES * error))


def mattering(
    case: Case, candidate: Path, fresh: Fresh, number: int, wrong: Sequence[str] = ()
) -> tuple[OpChange, ...]:
    """The changes that make an output of a sample wrong, or that MNN does not run, each by itself.

    wrong: names of outputs that are wrong (none: all may be). Where no single change does it, what cannot be tried by
    itself, if that is little.
    """
    info = read_file_info(candidate)
    reached = _upstream(info, wrong) if wrong else set()
    leading = [change for change in fresh.changes if change.graph or not reached or _is_in(change, reached)]
    if not leading or len(leading) > _MOST:
        return ()
    guilty, open_ = [], []
    bound = _bound(case, fresh, number)
    for change in leading:
        tried = fresh.path.with_name("tried.mnn")
        if case.lab.exhausted or not _with(fresh.path, candidate, change, tried):
            open_.append(change)
        elif not runs(case, replace(fresh, path=tried), number, bound):
            guilty.append(change)
    return tuple(guilty or (open_ if len(open_) <= _FEW else ()))


def _is_in(change: OpChange, names: set[str]) -> bool:
    return bool({change.name, change.old_name, *change.outputs} & names)


def _upstream(info: FileInfo, outputs: Sequence[str]) -> set[str]:
    """Names of operators, and of what they write, that lead to these outputs."""
    makers: dict[str, FileOp] = {name: op for op in info.ops for name in op.outputs}
    found, waiting = set[str](), list(outputs)
    while waiting:
        op = makers.get(waiting.pop())
        if op is not None and op.name not in found:
            found |= {op.name, *op.outputs}
            waiting += op.inputs
    return found


def _with(fresh: Path, candidate: Path, change: OpChange, target: Path) -> bool:
    """Write the fresh file with one operator as the candidate has it; False when it does not fit in there."""
    if change.kind != "changed":
        return False
    document, other = read(fresh), read(candidate)
    if document.weights is not None or other.weights is not None:  # arrays outside belong to one file
        return False
    mine, theirs = _find(document.graphs(), change, old=True), _find(other.graphs(), change, old=False)
    if mine is None or theirs is None:
        return False
    (view, op), (source, new) = mine, theirs
    places = {name: number for number, name in enumerate(view.tensors)}
    names = [source.tensors[index] for index in new.ints("inputIndexes")]
    if not places.keys() >= set(names) or len(new.ints("outputIndexes")) != len(op.ints("outputIndexes")):
        return False
    kept = {"name": op["name"], "outputIndexes": op.fields.get("outputIndexes")}
    op.fields.clear()
    op.fields.update({**new.fields, **{key: value for key, value in kept.items() if value is not None}})
    op.fields["inputIndexes"] = np.array([places[name] for name in names], "<i4")
    try:
        write(document, target)
    except GraphkitError:
        return False
    return True


def _find(views: Iterator[GraphView], change: OpChange, *, old: bool) -> tuple[GraphView, Table] | None:
    name = (change.old_name or change.name) if old else change.name
    for view in views:
        found = [op for op in view.ops if op["name"] == name and op.label("type") != "Input"]
        if view.name == change.graph and len(found) == 1:
            return view, found[0]
    return None


def owners(root: Graph, info: FileInfo, change: OpChange) -> tuple[OpChange, ...]:
    """The change as one of the next operators behind it that are named after an ONNX node, itself if it is.

    What a node is made of, its constants too, has names of its own; several nodes may share a constant.
    """
    ops = info.subgraphs.get(change.graph, ()) if change.graph else info.ops
    readers: dict[str, list[FileOp]] = {}
    for op in ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    waiting = [op for op in ops if op.name == change.name]
    found: dict[str, OpChange] = {}
    for _ in range(_MOST):
        if not waiting:
            break
        op = waiting.pop(0)
        moved = replace(change, name=op.name, old_name="", outputs=op.outputs)
        if _altered.node_of(root, moved) is not None:
            found[op.name] = moved if op.name != change.name else change
        else:
            waiting += [reader for name in op.outputs for reader in readers.get(name, [])]
    return tuple(found.values()) or (change,)


def conclusion(root: Graph, info: FileInfo, change: OpChange, said: str) -> Conclusion | None:
    """That a changed operator is at fault; None when it stands for no ONNX node. said: why that is known."""
    found = _altered.node_of(root, owners(root, info, change)[0])
    if found is None:
        return None
    place, label, op, tensor = found
    reason = f"{said}: {_altered.told(change)}"
    return Conclusion(label, op, tensor, "file", (label,), "not tried", place=place, reason=reason)


def conclusions(root: Graph, info: FileInfo, changes: Sequence[OpChange], said: str) -> list[Conclusion]:
    """The same for several changes: one for each node, which tells all that was changed there."""
    kept: dict[tuple[str, str], Conclusion] = {}
    for change in changes:
        found = conclusion(root, info, change, said)
        if found is None:
            continue
        first = kept.get((found.place, found.node))
        joined = found if first is None else replace(first, reason=f"{first.reason}; {_altered.told(change)}")
        kept[found.place, found.node] = joined
    return list(kept.values())
