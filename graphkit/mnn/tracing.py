"""Run a .mnn once, look at every value on the way, and put the reference's in its place.

MNN's session calls back after each operator that computes something (layout changes are views and are not seen). The
value is compared there, and then overwritten: so each operator works on right inputs, and every independent fault
shows as itself. Convolutions run with the smallest Winograd tiles, which are exact; see `proving`.

A session cannot run If and Loop; then `trace` raises RunError, as for every other failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphkit._measure import Stats
from graphkit._scratch import scratch
from graphkit.errors import UsageError
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.process import run_child
from graphkit.mnn.worker import PRECISIONS, Array, Precision, check_ending, prepare

_NEAR = 1e-2  # of the largest value; see Target


@dataclass(frozen=True)
class Target:
    """What one output of one MNN operator is compared with.

    op, slot: the operator's name and the number of its output. tensors: names of reference tensors it may hold, the
    likeliest first. sure: the first of the right size is the one; else the values decide, and the nearest is written
    into the run only when it is off by no more than `near` of its largest value. write: False only looks.
    """

    op: str
    slot: int
    tensors: tuple[str, ...]
    sure: bool = True
    write: bool = True
    near: float = _NEAR


@dataclass(frozen=True)
class OpTrace:
    """One output of one MNN operator in one run.

    order: place in the run. tensor: the reference tensor it was compared with, None when there is none of its size.
    stats: how far it is off; `differing` counts every element that differs, of floats too. forced: whether
    the reference was written in its place. accumulated: the error in a run in which nothing was; None when nothing was
    compared. nearest: the reference tensor that is nearest among those it may hold.
    """

    op: str
    type: str
    slot: int
    order: int
    shape: tuple[int, ...]
    tensor: str | None = None
    stats: Stats = field(default_factory=Stats)
    forced: bool = False
    accumulated: float | None = None
    nearest: str | None = None
    note: str = ""

    @property
    def mismatched(self) -> bool:
        """True when NaN or infinity stand in other places."""
        return self.stats.nan_mismatch + self.stats.inf_mismatch > 0

    @property
    def error(self) -> float:
        """Largest error over the reference's largest value, where both are finite."""
        return self.stats.max_error(1e-30)


def trace(
    mnn_path: Path | str,
    feeds: Mapping[str, Array],
    references: Mapping[str, Path],
    plan: Sequence[Target],
    *,
    force: bool = True,
    memory: int = 0,
    precision: Precision = "high",
    threads: int = 1,
    timeout: float = 300.0,
) -> list[OpTrace]:
    """Run a .mnn file on one sample in a child and compare what its operators compute; a line for each value seen.

    feeds: as `worker.run`. references: .npy files by tensor name, plan: what to compare with which. force: run once
    more, with the reference written over each value that has one; without it `error` is that of the plain run.
    Raises ModelError for a file that is no MNN model, UsageError for wrong inputs, RunError when a session cannot run
    the model (If, Loop), crashes or hangs.
    """
    path = Path(mnn_path)
    file = read_file_info(path)
    names = list(references)
    request = {
        "task": "trace",
        "model": str(path.absolute()),
        "inputs": [spec.name for spec in file.inputs],
        "targets": _targets(plan, {name: number for number, name in enumerate(names)}),
        "force": force,
        "numThread": threads,
        "precision": PRECISIONS[precision],
        "memory": memory,
        "winograd": 0,
    }
    with scratch("trace") as folder_name:
        folder = Path(folder_name)
        arrays = prepare(file, feeds, path)
        numbered: dict[str, Any] = {f"i{k}": array for k, array in enumerate(arrays.values())}
        np.savez(folder / "inputs-0.npz", **numbered)
        files = [str(Path(references[name]).absolute()) for name in names]
        folder.joinpath("references.json").write_text(json.dumps(files), encoding="utf-8")
        ending = run_child(request, folder, timeout)
        check_ending(ending, path, timeout)
    return _traces(ending.result, names)


def _targets(plan: Sequence[Target], numbers: Mapping[str, int]) -> list[list[Any]]:
    found: list[list[Any]] = []
    for target in plan:
        missing = [name for name in target.tensors if name not in numbers]
        if missing:
            raise UsageError(f"there is no reference for tensor '{missing[0]}'", tensor=missing[0])
        files = [numbers[name] for name in target.tensors]
        found.append([target.op, target.slot, files, target.sure, target.near if target.write else -1.0])
    return found


def _traces(result: Mapping[str, Any], names: Sequence[str]) -> list[OpTrace]:
    plain, forced = result["plain"], result.get("forced")
    if forced is None:
        return [_trace(entry, entry, order, names) for order, entry in enumerate(plain)]
    return [
        _trace(entry, before, order, names) for order, (entry, before) in enumerate(zip(forced, plain, strict=True))
    ]


_FIGURES = ("max_abs", "max_ref", "nan_mismatch", "inf_mismatch", "differing", "worst")  # of the child's


def _trace(entry: Mapping[str, Any], plain: Mapping[str, Any], order: int, names: Sequence[str]) -> OpTrace:
    number, nearest = entry.get("reference"), entry.get("nearest")
    stats = Stats(**{name: entry[name] for name in _FIGURES if name in entry})
    before = plain.get("errors", {}).get(str(number)) if number is not None else None
    return OpTrace(
        entry["op"], entry["type"], entry["slot"], order, tuple(entry["shape"]),
        tensor=None if number is None else names[number],
        nearest=None if nearest is None else names[nearest],
        accumulated=before, note=entry.get("note", ""), stats=stats, forced=entry.get("forced", False),
    )  # fmt: skip
