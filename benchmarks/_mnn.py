"""What MNN makes of every tool's result: how many operators, and does the file compute the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _exports, _judge
from benchmarks._bench import Bench, say
from benchmarks._calls import PEERS
from benchmarks._exports import CAPTIONS, MODES, Case, Exports
from benchmarks._report import Bar, Section, Table
from graphkit.errors import GraphkitError, MnnError
from graphkit.mnn import worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.fileinfo import read_file_info

TOLERANCE = 1e-3  # of the largest value: what MNN's own kernels differ by
TIMEOUT = 120.0  # seconds for one conversion or one run
OURS = "graphkit mnn"
NAMES = ("original", *PEERS, OURS)
Key = tuple[str, str, str]  # tool, export, mode
References = list[tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class Arrival:
    """One file after MNN's converter: its operators, seconds of the conversion, and what is wrong with it."""

    ops: int = 0
    seconds: float = 0.0
    error: float | None = None
    fault: str = ""


Arrivals = dict[Key, Arrival]


def mnn(bench: Bench) -> Section:
    """Convert what every tool left, and run it on two samples."""
    found = _exports.run(bench)
    arrivals: Arrivals = {}
    for mode in MODES:
        for kind in found.files:
            references = _references(found.files[kind], mode)
            for name in NAMES:
                arrivals[name, kind, mode] = _arrive(bench, found, (name, kind, mode), references)
            say(f"  {kind}, {mode}: done")
    return _section(bench, found, arrivals)


def _references(file: Path, mode: str) -> References:
    """Inputs and outputs of the original on two samples."""
    session = _judge.session(file)
    samples = enumerate(_exports.samples(file, mode))
    feeds = [_judge.inputs(session, shapes, seed) for seed, shapes in samples]
    return [(feed, _judge.run(session, feed)) for feed in feeds]


def _arrive(bench: Bench, found: Exports, key: Key, references: References) -> Arrival:
    name, kind, mode = key
    source = found.files[kind]
    if name != "original":
        case: Case = found.cases[key]
        if case.fault:
            return Arrival(fault=f"no input: {case.fault}")
        source = Path(case.target)
    elif mode == "static":
        source = Path(bench.file(f"{kind}.fixed.onnx"))
        _exports.fix_dims(found.files[kind], source)
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


def _check(target: Path, references: References) -> tuple[str, float | None]:
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


def _section(bench: Bench, found: Exports, arrivals: Arrivals) -> Section:
    text = (
        "Operators in the .mnn file (Input and Const included, subgraphs too) after MNN's converter with its "
        "defaults and exact Gelu. Each file is run in MNN on two samples (of two shapes where dims are left "
        "open) and compared with the original in onnxruntime; *wrong* means off by more than "
        f"{TOLERANCE:g} of the largest value. A count in brackets is of a file that does not compute the "
        "original."
    )
    notes = [f"- {', '.join(key)}: {arrival.fault}" for key, arrival in arrivals.items() if arrival.fault]
    if notes:
        text += "\n\n" + "\n".join(notes)
    mine = [note.removeprefix("- ") for note in notes if note.startswith(f"- {OURS},")]
    faults = [note for note in mine if ": refused " not in note]
    data = {
        mode: {name: {kind: asdict(arrivals[name, kind, mode]) for kind in found.files} for name in NAMES}
        for mode in MODES
    }
    bars = [_bar(found, arrivals, mode) for mode in MODES] if bench.sizes.judged else []
    tables = [_table(found, arrivals, mode) for mode in MODES]
    return Section("mnn", "MNN operators", text, tables, bars, faults, data)


def _table(found: Exports, arrivals: Arrivals, mode: str) -> Table:
    rows = [[name, *(_cell(arrivals[name, kind, mode]) for kind in found.files)] for name in NAMES]
    rows.insert(1 + len(PEERS), ["best peer", *(_best_cell(arrivals, kind, mode) for kind in found.files)])
    return Table(["", *found.files], rows, CAPTIONS[mode])


def _cell(arrival: Arrival) -> str:
    if not arrival.fault:
        return str(arrival.ops)
    word = arrival.fault.split(":")[0]
    return f"{word} ({arrival.ops})" if arrival.ops else word


def _best(arrivals: Arrivals, kind: str, mode: str) -> tuple[str, int] | None:
    found = {name: arrivals[name, kind, mode] for name in ("original", *PEERS)}
    return _exports.best([(name, arrival.ops) for name, arrival in found.items() if not arrival.fault])


def _best_cell(arrivals: Arrivals, kind: str, mode: str) -> str:
    winner = _best(arrivals, kind, mode)
    return f"**{winner[1]}**" if winner else "–"


def _bar(found: Exports, arrivals: Arrivals, mode: str) -> Bar:
    behind, refused = [], []
    for kind in found.files:
        ours, peer = arrivals[OURS, kind, mode], _best(arrivals, kind, mode)
        if peer is None and ours.fault.startswith("refused"):
            refused.append(kind)  # MNN lacks an operator that no tool replaces: said by name, not a wrong answer
        elif ours.fault or (peer and ours.ops > peer[1]):
            behind.append(f"{kind} {_cell(ours)} against {peer[1] if peer else 'none'}")
    right = len(found.files) - len(behind) - len(refused)
    measured = f"{right} of {len(found.files)}" + (f"; behind on {', '.join(behind)}" if behind else "")
    measured += f"; MNN refuses {', '.join(refused)} from every tool" if refused else ""
    claim = f"right in MNN, with no more operators than the best peer that is right, {mode}"
    return Bar(claim, measured, not behind)
