"""Every tool on every export, dims left open and dims fixed: what is left, and is it still the original."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from benchmarks._bench import Bench, count_nodes, say
from benchmarks._calls import FIXES_DIMS, PEERS
from benchmarks._runner import Job, Outcome
from fixtures import exports

CAPTIONS = {"dynamic": "Dims left open:", "static": "All dims fixed:"}
MODES = tuple(CAPTIONS)
TOLERANCE = 1e-4
IMAGES = ([2, 3, 224, 224], [1, 3, 224, 224])
TOKENS = ([2, 7], [1, 12])
FIXED = {4: [1, 3, 224, 224], 2: [1, 16]}  # by rank
OURS = {"graphkit default": "default", "graphkit mnn": "mnn"}
NAMES = (*PEERS, *OURS)


@dataclass(frozen=True)
class Case:
    """One tool on one export in one mode, and what came of it.

    `fault` is empty, or says in a few words why the result is no use; `error` is the largest relative error
    of an output (None when it was not measured).
    """

    tool: str
    export: str
    mode: str
    target: str
    nodes: int = 0
    cpu: float = float("nan")
    error: float | None = None
    fault: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        cpu = None if self.cpu != self.cpu else round(self.cpu, 4)
        return {"nodes": self.nodes, "cpu": cpu, "error": self.error, "fault": self.fault}


@dataclass(frozen=True)
class Exports:
    """All cases by (tool, export, mode), and the exports themselves: files and node counts."""

    files: Mapping[str, Path]
    raw: Mapping[str, int]
    cases: Mapping[tuple[str, str, str], Case] = field(default_factory=dict)


@functools.cache
def run(bench: Bench) -> Exports:
    """Run every tool on every export; made once in a run, for several sections use it."""
    files = {kind: exports.export(kind) for kind in bench.sizes.exports or exports.PEER_KINDS}
    cases: dict[tuple[str, str, str], Case] = {}
    for name in NAMES:
        for case in _run_tool(bench, name, files):
            cases[case.tool, case.export, case.mode] = case
        say(f"  {name}: done")
    return Exports(files, {kind: count_nodes(file)[0] for kind, file in files.items()}, cases)


def _run_tool(bench: Bench, name: str, files: Mapping[str, Path]) -> list[Case]:
    keys = [(kind, mode) for mode in MODES for kind in files]
    jobs = [_job(bench, name, kind, mode, files[kind]) for kind, mode in keys]
    outcomes = bench.runner().run(jobs)
    checks = [
        Job(
            "judge",
            str(files[kind]),
            job.target,
            {"samples": samples(files[kind], mode), "tolerance": TOLERANCE},
        )
        for (kind, mode), job in zip(keys, jobs, strict=True)
    ]
    made = [number for number, outcome in enumerate(outcomes) if not outcome.failure]
    found = bench.runner(warm=False).run([checks[number] for number in made])
    verdicts = dict(zip(made, found, strict=True))
    return [
        _case(name, *keys[number], jobs[number].target, outcome, verdicts.get(number))
        for number, outcome in enumerate(outcomes)
    ]


def _case(name: str, kind: str, mode: str, target: str, outcome: Outcome, verdict: Outcome | None) -> Case:
    if verdict is None:
        return Case(name, kind, mode, target, fault=outcome.failure)
    fault = verdict.failure and f"invalid: {verdict.failure}"
    fault = fault or verdict.result.get("fault", "")
    nodes = count_nodes(target)[0]
    return Case(name, kind, mode, target, nodes, outcome.cpu, verdict.result.get("error"), fault)


def _job(bench: Bench, name: str, kind: str, mode: str, file: Path) -> Job:
    tool = "graphkit" if name in OURS else name
    options: dict[str, Any] = {"pipeline": OURS[name]} if name in OURS else {}
    source = str(file)
    if mode == "static":
        if tool in FIXES_DIMS:
            options["shapes"] = fixed(file)
        else:
            source = bench.file(f"{kind}.fixed.onnx")
            fix_dims(file, Path(source))
    return Job(tool, source, bench.file(f"{name}.{kind}.{mode}.onnx"), options)


def samples(file: Path, mode: str) -> list[dict[str, list[int]]]:
    """Input shapes of two samples: two shapes, or the fixed one twice."""
    if mode == "static":
        return [fixed(file)] * 2
    ranks = _ranks(file)
    return [{name: (IMAGES if rank == 4 else TOKENS)[number] for name, rank in ranks.items()} for number in range(2)]


def fixed(file: Path) -> dict[str, list[int]]:
    """The size of every input when all dims are fixed."""
    return {name: FIXED[rank] for name, rank in _ranks(file).items()}


def _ranks(file: Path) -> dict[str, int]:
    model = onnx.load(file, load_external_data=False)
    return {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}


def fix_dims(source: Path, target: Path) -> None:
    """Write a copy with all input dims fixed, for tools that have no option for it.

    What the file declares for inner values and outputs is dropped: it speaks of other dims.
    """
    model, shapes = onnx.load(source), fixed(source)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            dim.dim_value = size
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    del model.graph.value_info[:]
    onnx.save(model, target)


def best(cases: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    """The tool with the smallest count, the first of equals; None without any."""
    return min(cases, key=lambda case: case[1], default=None)
