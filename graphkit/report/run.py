"""What a run of passes did: the model, a row for each pass, near misses, and what is proven."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from graphkit.compare import Tolerance
from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid

if TYPE_CHECKING:
    from graphkit.compare import OutputComparison
    from graphkit.manager import PassRecord, RunReport
    from graphkit.model import Model
    from graphkit.optimizer import OptimizeResult
    from graphkit.proof import Proof
    from graphkit.rewrite import Refusal

_INPUTS = 6  # inputs named in the header
_MISSES = 3  # kinds of near misses shown without -v
_ROUNDS = 2
_NOTES = 8
_SHAPES = 3  # sample shapes named on the last line
_QUOTED = re.compile(r"'[^']*'")


def header(model: Model) -> Text:
    """One line on a model: file, opset, nodes, bytes, inputs."""
    from graphkit.model import walk_nodes
    from graphkit.node import type_of_info

    graph = model.proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = []
    for info in graph.input:
        if info.name not in weights:
            kind = type_of_info(info)
            inputs.append(text.clean(info.name) + text.shape(kind.shape if kind else None))
    shown = inputs[:_INPUTS] + ([f"… {len(inputs) - _INPUTS} more"] if len(inputs) > _INPUTS else [])
    opset = next((item.version for item in model.proto.opset_import if item.domain in ("", "ai.onnx")), 0)
    nodes = sum(1 for _ in walk_nodes(graph.node))
    facts = f"opset {opset}  {text.count(nodes, 'node')}  {text.size(model.nbytes)}"
    rest = f"inputs {' '.join(shown)}" if shown else "no inputs"
    return Text.assemble((text.clean(str(model.path or "model")), "bold"), f"  {facts}  {rest}")


def show_run(report: Report, run: RunReport, *, silent: Collection[str] = ()) -> None:
    """Print the table of passes and what they had to say; why one was undone is the caller's to say.

    silent: passes whose notes are left out, because what they say does not hold of the result.
    """
    records = run.records
    idle = [record for record in records if record.status == "unchanged"]
    hidden = idle if len(idle) > 1 and not report.verbose else []
    report.table(_table([record for record in records if record not in hidden]))
    if hidden:
        busy = {record.name for record in records if record not in hidden}
        names = dict.fromkeys(text.clean(record.name) for record in hidden if record.name not in busy)
        if names:
            report.say(Text(f"nothing to do: {', '.join(names)}", style="dim"))
    if run.stopped:
        report.say(f"stopped after {text.count(run.rewrites, 'rewrite')}, as asked for")
    _show_notes(report, [record for record in records if record.name not in silent])
    _show_misses(report, records)


def _table(records: Iterable[PassRecord]) -> Grid:
    records = list(records)
    judged = any(record.max_error is not None for record in records)
    numbers = (Column("rewrites", right=True), Column("nodes", right=True), Column("time", right=True, spare=1))
    table = Grid(Column("pass"), *numbers, *([Column("relative error")] if judged else []))
    for record in records:
        table.add(*_row(record, judged), style="red" if record.status == "rolled back" else None)
    return table


def _row(record: PassRecord, judged: bool) -> list[str]:
    name = record.name
    time = text.seconds(record.seconds)
    last = [text.error(record.max_error)] if judged else []
    if record.status == "unchanged":
        return [name, "–", "nothing to do", time, *last]
    if record.status == "rolled back":
        return [name, str(record.rewrites), "rolled back", time, *last]
    return [name, str(record.rewrites), _nodes(record), time, *last]


def _nodes(record: PassRecord) -> str:
    """Nodes before and after each round that changed something, the first few of them."""
    shown = [f"{before} → {after}" for before, after in record.rounds[:_ROUNDS]]
    return ", ".join([*shown, "…"] if len(record.rounds) > _ROUNDS else shown)


def rollback(record: PassRecord) -> str:
    """Why a pass was undone."""
    return f"rolled back '{record.name}': {text.clean(record.reason)}"


def _show_notes(report: Report, records: Iterable[PassRecord]) -> None:
    notes = [f"{record.name}: {text.clean(note)}" for record in records for note in record.notes]
    for note in notes if report.verbose else notes[:_NOTES]:
        report.say(f"note: {note}")
    if len(notes) > _NOTES and not report.verbose:
        report.say(f"note: {len(notes) - _NOTES} more notes (-v shows all)")


def _show_misses(report: Report, records: Iterable[PassRecord]) -> None:
    """Near misses, those of one kind (equal but for names) on one line unless all are asked for."""
    found = dict.fromkeys((record.name, refusal) for record in records for refusal in record.refusals)
    if not found:
        return
    kinds: dict[object, list[tuple[str, Refusal]]] = {}
    for name, refusal in found:
        kind = (name, refusal.rule, _QUOTED.sub("", refusal.reason), refusal.node if report.verbose else "")
        kinds.setdefault(kind, []).append((name, refusal))
    shown = list(kinds.values()) if report.verbose else list(kinds.values())[:_MISSES]
    more = "" if len(shown) == len(found) else " (-v shows all)"
    report.say(f"{text.count(len(found), 'near miss', 'near misses')}{more}:")
    for (name, refusal), *others in shown:
        like = f" and {len(others)} like it" if others else ""
        where = f"node '{text.clean(refusal.node)}'{like}"
        report.say(f"  {name} refused {where}: {text.clean(refusal.reason)}  (graphkit passes {name})")


def proof_line(proof: Proof) -> Text:
    """What is proven about the outputs, on one line."""
    if proof.kind == "none":
        return Text(f"not verified: {text.clean(proof.note or 'nothing could be compared')}", style="yellow")
    if proof.kind == "different":
        return Text(f"outputs differ: {text.clean(proof.reason)}", style="red")
    from graphkit.proof import shape_text

    shapes = list(dict.fromkeys(text.clean(shape_text(check.shapes)) for check in proof.checks))
    worst = _worst(proof)
    line = f"outputs equal at {text.listing(shapes, _SHAPES)}"
    if worst is not None:
        scale = f" of {worst.max_ref:.2g}" if math.isfinite(worst.max_ref) else ""
        line += f" (max error {text.error(worst.max_abs)}{scale}{_allowed(worst)})"
    return Text(line, style="green")


def _allowed(worst: OutputComparison) -> str:
    """What was allowed, where the error counts by a wider tolerance than usual."""
    if worst.max_error <= Tolerance().rtol:
        return ""
    return f"; {worst.tolerance.rtol:g} of the largest is allowed"


def _worst(proof: Proof) -> OutputComparison | None:
    """The output and sample with the largest relative error, the one that tables and JSON give."""
    outputs = (output for check in proof.checks for output in check.comparison.outputs)
    known = [output for output in outputs if not math.isnan(output.max_error)]
    return max(known, key=lambda output: output.max_error, default=None)


def show_optimized(report: Report, model: Model, result: OptimizeResult, saved: tuple[str, int] | None) -> None:
    """Print an `optimize` run; `saved` is the output's name and bytes, None when it was not written.

    What failed is not told here: that is `failed_check`.
    """
    report.say(header(model))
    show_run(report, result.report)
    if result.proof.note and result.proof.kind != "none":
        report.say(f"note: {text.clean(result.proof.note)}")
    if saved is not None:
        name, size = saved
        nodes = text.count(result.report.nodes_after, "node")
        line = f"wrote {text.clean(name)}  {nodes}  {text.size(size)}  "
        report.say(Text.assemble(line, proof_line(result.proof)))


def failed_check(result: OptimizeResult, written: bool) -> str:
    """Why a run that ended without an exception is not right, one line."""
    if not result.proof.ok:
        left = "" if written else "; nothing was written"
        return f"the outputs differ: {result.proof.reason}{left}"
    return "; ".join(rollback(record) for record in result.report.rolled_back)


def to_dict(model: Model, result: OptimizeResult, saved: tuple[str, int] | None, code: int) -> dict[str, object]:
    """The JSON object of an `optimize` run."""
    return {
        "command": "optimize",
        "model": str(model.path),
        "output": saved[0] if saved else None,
        "bytes": saved[1] if saved else None,
        "exit_code": code,
        "ok": result.ok,
        **result.to_dict(),
    }
