"""How many nodes every tool leaves of every export."""

from __future__ import annotations

from benchmarks import _exports
from benchmarks._bench import Bench
from benchmarks._calls import PEERS
from benchmarks._exports import CAPTIONS, MODES, NAMES, OURS, Case, Exports
from benchmarks._report import Bar, Section, Table, seconds


def nodes(bench: Bench) -> Section:
    """Node counts with dims left open and with dims fixed."""
    found = _exports.run(bench)
    cases = list(found.cases.values())
    faults = [f"{case.tool}, {case.export} {case.mode}: {case.fault}" for case in cases if _our_fault(case)]
    notes = [f"- {case.tool}, {case.export}, {case.mode}: {case.fault}" for case in cases if case.fault]
    text = (
        "Nodes left of the exports of `fixtures/exports.py` (`ts` TorchScript, else dynamo), CPU s of one "
        "call in brackets. A count stands only for an equal result: at two input shapes (fixed dims: on two "
        "inputs) every output has the original's name, type and shape and is within "
        f"{_exports.TOLERANCE:g} of its largest value, in onnxruntime without optimizations."
    )
    if notes:
        text += "\n\n" + "\n".join(notes)
    data = {mode: _data(found, mode) for mode in MODES}
    bars = [_bar(found, mode) for mode in MODES] if bench.sizes.judged else []
    return Section("nodes", "Nodes left", text, [_table(found, mode) for mode in MODES], bars, faults, data)


def _our_fault(case: Case) -> bool:
    return bool(case.fault) and case.tool in OURS


def _table(found: Exports, mode: str) -> Table:
    rows = [["original", *(str(found.raw[kind]) for kind in found.files)]]
    rows += [[name, *(_cell(found.cases[name, kind, mode]) for kind in found.files)] for name in NAMES]
    rows.insert(1 + len(PEERS), ["best peer", *(_best_cell(found, kind, mode) for kind in found.files)])
    return Table(["", *found.files], rows, CAPTIONS[mode])


def _cell(case: Case) -> str:
    return case.fault.split(":")[0] if case.fault else f"{case.nodes} ({seconds(case.cpu)})"


def _best(found: Exports, kind: str, mode: str) -> tuple[str, int] | None:
    cases = [found.cases[name, kind, mode] for name in PEERS]
    return _exports.best([(case.tool, case.nodes) for case in cases if not case.fault])


def _best_cell(found: Exports, kind: str, mode: str) -> str:
    winner = _best(found, kind, mode)
    return f"**{winner[1]}**" if winner else "–"


def _bar(found: Exports, mode: str) -> Bar:
    beaten, behind = 0, []
    for kind in found.files:
        ours, peer = found.cases["graphkit default", kind, mode], _best(found, kind, mode)
        if ours.fault or (peer and ours.nodes > peer[1]):
            behind.append(f"{kind} {_cell(ours).split()[0]} against {peer[1] if peer else 'none'}")
        else:
            beaten += 1
    measured = f"{beaten} of {len(found.files)}" + (f"; behind on {', '.join(behind)}" if behind else "")
    return Bar(f"no more nodes than the best peer on every export, {mode}", measured, not behind)


def _data(found: Exports, mode: str) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {"original": dict(found.raw)}
    for name in NAMES:
        table[name] = {kind: found.cases[name, kind, mode].to_dict() for kind in found.files}
    return table
