"""What MNN makes of every tool's result: how many operators, and does the file compute the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _exports, _judge
from benchmarks._bench import Bench, say
from benchmarks._calls import PEERS
from benchmarks._exports import Case, Exports
from benchmarks._report import Bar, Section, Table
from graphkit.errors import GraphkitError, MnnError
from graphkit.mnn import worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.fileinfo import read_file_info

TOLERANCE = 1e-3  # of the largest value: what MNN's own kernels differ by
TIMEOUT = 120.0  # seconds for one conversion or one run
OURS = "graphkit mnn"
NAMES = ("original", *PEERS, OURS)


@dataclass(frozen=True)
class Arrival:
    """One file after MNN's converter: its operators, seconds of the conversion, and what is wrong with it."""

    ops: int = 0
    seconds: float = 0.0
    error: float | None = None
    fault: str = ""


def mnn(bench: Bench) -> Section:
    """Convert what every tool left, dims open, and run it at two shapes."""
    found = _exports.run(bench)
    arrivals = {}
    for kind in found.files:
        references = _references(found.files[kind])
        for name in NAMES:
            arrivals[name, kind] = _arrive(bench, found, name, kind, references)
        say(f"  {kind}: done")
    return _section(bench, found, arrivals)


def _references(file: Path) -> list[tuple[Any, Any]]:
    """Inputs and outputs of the original on two samples."""
    session = _judge.session(file)
    feeds = [
        _judge.inputs(session, shapes, seed) for seed, shapes in enumerate(_exports.samples(file, "dynamic"))
    ]
    return [(feed, _judge.run(session, feed)) for feed in feeds]


def _arrive(bench: Bench, found: Exports, name: str, kind: str, references: list[tuple[Any, Any]]) -> Arrival:
    source = found.files[kind]
    if name != "original":
        case: Case = found.cases[name, kind, "dynamic"]
        if case.fault:
            return Arrival(fault=f"no input: {case.fault}")
        source = Path(case.target)
    target = Path(bench.file(f"{name}.{kind}.mnn"))
    try:
        run = run_converter(source, target, timeout=TIMEOUT)
    except ConverterError as error:
        return Arrival(fault=_refusal(error))
    except GraphkitError as error:
        return Arrival(fault=f"fails: {error.message}"[:120])
    ops = read_file_info(target).op_total
    fault, worst = _check(target, references)
    target.unlink()
    return Arrival(ops, run.seconds, worst, fault)


def _refusal(error: ConverterError) -> str:
    if error.unsupported_ops:
        return f"refused {', '.join(error.unsupported_ops)}"
    if error.timed_out:
        return f"timeout {TIMEOUT:g} s"
    return f"crash {error.signal}" if error.signal else f"fails: {error.message}"[:120]


def _check(target: Path, references: list[tuple[Any, Any]]) -> tuple[str, float | None]:
    """What is wrong with MNN's results (empty: nothing) and the largest relative error."""
    worst = 0.0
    for feeds, expected in references:
        try:
            outputs: Mapping[str, Any] = worker.run(target, feeds, timeout=TIMEOUT).outputs
        except MnnError as error:
            return f"does not run: {error.message}"[:120], None
        except GraphkitError as error:
            return f"cannot be run: {error.message}"[:120], None
        for name, right in expected.items():
            if name not in outputs or outputs[name].size != right.size:
                return f"wrong: output '{name}' is gone or has another size", None
            value = outputs[name].reshape(right.shape)
            worst = max(worst, _judge.relative_error(right, value))
    return ("" if worst <= TOLERANCE else f"wrong: error {worst:.1e}"), worst


def _section(bench: Bench, found: Exports, arrivals: dict[tuple[str, str], Arrival]) -> Section:
    rows = [[name, *(_cell(arrivals[name, kind]) for kind in found.files)] for name in NAMES]
    rows.insert(1 + len(PEERS), ["best peer", *(_best_cell(arrivals, kind) for kind in found.files)])
    notes = [f"- {name}, {kind}: {a.fault}" for (name, kind), a in arrivals.items() if a.fault]
    text = (
        "Operators in the .mnn file (Input and Const included, subgraphs too) after MNN's converter with its "
        "defaults and exact Gelu, dims left open. Each file is run in MNN at two input shapes and compared "
        f"with the original in onnxruntime; *wrong* means off by more than {TOLERANCE:g} of the largest "
        "value. A count in brackets belongs to a file that does not compute the original."
    )
    if notes:
        text += "\n\n" + "\n".join(notes)
    faults = [
        f"{OURS}, {kind}: {arrivals[OURS, kind].fault}" for kind in found.files if arrivals[OURS, kind].fault
    ]
    data = {name: {kind: asdict(arrivals[name, kind]) for kind in found.files} for name in NAMES}
    bars = [_bar(found, arrivals)] if bench.sizes.judged else []
    return Section("mnn", "MNN operators", text, [Table(["", *found.files], rows)], bars, faults, data)


def _cell(arrival: Arrival) -> str:
    if not arrival.fault:
        return str(arrival.ops)
    word = arrival.fault.split(":")[0]
    return f"{word} ({arrival.ops})" if arrival.ops else word


def _best(arrivals: dict[tuple[str, str], Arrival], kind: str) -> tuple[str, int] | None:
    found = {name: arrivals[name, kind] for name in ("original", *PEERS)}
    return _exports.best([(name, arrival.ops) for name, arrival in found.items() if not arrival.fault])


def _best_cell(arrivals: dict[tuple[str, str], Arrival], kind: str) -> str:
    winner = _best(arrivals, kind)
    return f"**{winner[1]}**" if winner else "–"


def _bar(found: Exports, arrivals: dict[tuple[str, str], Arrival]) -> Bar:
    behind = []
    for kind in found.files:
        ours, peer = arrivals[OURS, kind], _best(arrivals, kind)
        if ours.fault or (peer and ours.ops > peer[1]):
            behind.append(f"{kind} {_cell(ours)} against {peer[1] if peer else 'none'}")
    right = len(found.files) - len(behind)
    measured = f"{right} of {len(found.files)}" + (f"; behind on {', '.join(behind)}" if behind else "")
    return Bar("right in MNN, with no more operators than the best peer that is right", measured, not behind)
