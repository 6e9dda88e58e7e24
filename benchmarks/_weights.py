"""Load and save many megabytes of weights: CPU seconds, anonymous memory, and every byte still there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._bench import Bench, say
from benchmarks._chain import Entry
from benchmarks._report import Bar, Section, Table, seconds, times
from benchmarks._runner import Job
from fixtures import chains

FASTER = 5.0
MEMORY = 150e6  # bytes
NO_WORSE = 1.05  # what two runs of the same work differ by on a shared machine
MORE_ROUNDS = 3  # where the tools are nearly equal, and fast
SPARE = 2.2  # the workload, one copy of it, and room for small files

TOOLS = {
    "embedded": ("graphkit copy", "onnx copy"),
    "external": ("graphkit copy", "onnx_ir copy", "onnx copy"),
}


def weights(bench: Bench) -> Section:
    """Embedded and external weights; the files of one are removed before the other is made."""
    needed = int(bench.sizes.megabytes * 1e6 * SPARE)
    free = shutil.disk_usage(bench.folder).free
    if free < needed:
        fault = f"needs {needed / 1e9:.1f} GB of disk in the temporary folder, {free / 1e9:.1f} GB are free"
        return Section("weights", "Weights", "", [], [], [fault])
    tables, faults, bars = [], [], []
    data: dict[str, Any] = {"megabytes": bench.sizes.megabytes}
    for kind in TOOLS:
        entries, memory, found = _measure(bench, kind)
        faults += [f"{kind}, {entry.name}: {fault}" for entry in entries if (fault := entry.verdict["fault"])]
        tables.append(_table(kind, entries, memory))
        bars += _bars(kind, entries, memory)
        data[kind] = found
    text = (
        f"A model with {bench.sizes.megabytes} MB of weights (10⁶ bytes), load and save. Memory is RssAnon "
        "of the process, sampled from outside every millisecond in a run of its own: all of it with the "
        "interpreter and its libraries, and what the call added. Names, types, shapes and bytes of all "
        "tensors written are hashed and equal the original's."
    )
    return Section("weights", "Weights", text, tables, bars if bench.sizes.judged else [], faults, data)


def _measure(bench: Bench, kind: str) -> tuple[list[Entry], dict[str, tuple[int, int]], dict[str, Any]]:
    source = Path(bench.file(f"{kind}.onnx"))
    external = kind == "external"
    say(f"  {kind}: writing the workload")
    chains.weights(bench.sizes.megabytes, source, external)
    entries = [Entry(name, name, str(source), {"external": external}) for name in TOOLS[kind]]
    expected = _digest(bench, source)
    memory = {}
    rounds = bench.sizes.rounds * (MORE_ROUNDS if external else 1)
    for number in range(rounds + 1):  # the last round is watched, and checked
        for entry in entries:
            watch = number == rounds
            folder = bench.folder / "copy"
            folder.mkdir()
            job = Job(entry.tool, entry.source, str(folder / "model.onnx"), entry.options)
            outcome = bench.runner(600).one(job, watch=watch)
            if watch:
                memory[entry.name] = (outcome.anon_peak or 0, outcome.anon_before or 0)
                entry.verdict = {"fault": outcome.failure or _differs(bench, Path(job.target), expected)}
            else:
                entry.outcomes.append(outcome)
            say(f"  {kind}, {entry.name}: {outcome.failure or f'{outcome.cpu:.2f} CPU s'}")
            shutil.rmtree(folder)
    for file in source.parent.glob(f"{source.name}*"):
        file.unlink()
    found = {e.name: {**e.to_dict(), "anon_peak": memory[e.name][0], "anon_before": memory[e.name][1]} for e in entries}
    return entries, memory, found


def _digest(bench: Bench, path: Path) -> str:
    outcome = bench.runner(600, warm=False).one(Job("digest", str(path)))
    return str(outcome.result.get("digest", outcome.failure))


def _differs(bench: Bench, path: Path, expected: str) -> str:
    return "" if _digest(bench, path) == expected else "the tensors written are not the original's"


def _table(kind: str, entries: Sequence[Entry], memory: dict[str, tuple[int, int]]) -> Table:
    ours = entries[0]
    rows = []
    for entry in entries:
        peak, before = memory[entry.name]
        result = entry.failure or entry.verdict["fault"] or "equal"
        cells = [seconds(entry.cpu), seconds(entry.wall), times(entry.cpu / ours.cpu)]
        rows.append([entry.name.removesuffix(" copy"), *cells, _mega(peak), _mega(peak - before), result])
    header = ["", "CPU s", "wall s", "CPU ÷ ours", "peak MB", "added MB", "tensors"]
    return Table(header, rows, f"Weights {kind if kind == 'embedded' else 'in an external file'}:")


def _mega(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def _bars(kind: str, entries: Sequence[Entry], memory: dict[str, tuple[int, int]]) -> list[Bar]:
    ours, peer = entries[0], entries[1]
    ratio = peer.cpu / ours.cpu
    right = not ours.verdict["fault"]
    peak = memory[ours.name][0]
    small = Bar(f"at most 150 MB anonymous, {kind}", f"{_mega(peak)} MB", right and 0 < peak <= MEMORY)
    if kind == "embedded":
        fast = Bar(f"at least {FASTER:g} times faster than onnx, {kind}", times(ratio), right and ratio >= FASTER)
    else:
        claim = f"no worse than onnx_ir, {kind} (within {NO_WORSE - 1:.0%})"
        fast = Bar(claim, f"{ratio:.2f}×", right and ratio * NO_WORSE >= 1)
    return [fast, small]
