"""What bisection found: the answer first, then what was checked, what avoids it, and the folder that shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid

if TYPE_CHECKING:
    from graphkit.verification.bisect.answer import BisectResult
    from graphkit.verification.bisect.folder import Written
    from graphkit.verification.bisect.passes import PassBisectResult
    from graphkit.verification.bisect.types import LayerRow, LayersResult

_ROWS = 30  # rows without -v


def show_bisected(report: Report, result: BisectResult | PassBisectResult, written: Written) -> None:
    """Print a finished bisection."""
    for number, line in enumerate(_lines(result)):
        report.say(text.clean(line) if number == 0 else f" {text.clean(line)}")
    if report.verbose:
        _show_details(report, result)
    repro = written.repro
    if repro is not None:
        size = f"({text.count(repro.nodes, 'node')}, {text.size(repro.nbytes)})"
        doubt = "" if repro.reproduced is not False else "  (it does not show the fault by itself)"
        command = text.clean(" ".join(repro.command))
        report.say(f" repro: {text.clean(str(repro.folder))}/  {size}  run there: {command}{doubt}")
    if written.note:
        report.say(f" note: {text.clean(written.note)}")


def _lines(result: BisectResult | PassBisectResult) -> list[str]:
    from graphkit.verification.bisect.answer import BisectResult

    if isinstance(result, BisectResult):
        return result.lines()
    judged = text.count(len(result.tried), "state")
    lines = [result.answer, f"{judged} of {result.total + 1} judged in {text.seconds(result.seconds)}"]
    if result.avoid is not None:
        lines.append(f"avoided by: --passes '{result.avoid}'  (tried: good)")
    return lines if result.complete else [*lines, "the budget ended the search"]


def _show_details(report: Report, result: BisectResult | PassBisectResult) -> None:
    from graphkit.verification.bisect.answer import BisectResult

    if isinstance(result, BisectResult):
        if result.layers is not None:
            show_layers(report, result.layers, result.layers.rows)
        small, whole = text.count(result.small_conversions, "small conversion"), result.whole_conversions
        report.say(f"{text.count(whole, 'conversion')} of the whole model, {small}")
        return
    grid = Grid(
        Column("rewrite", right=True), Column("pass"), Column("node"), Column("says"), Column("error", right=True)
    )
    for trial in result.tried:
        says = {True: "bad", False: "good", None: "skip"}[trial.answer]
        grid.add(str(trial.number), trial.pass_name, trial.node, says, _number(trial.error))
    report.table(grid)


def show_layers(report: Report, result: LayersResult, rows: Sequence[LayerRow]) -> None:
    """Print the table of layers, in the order of the rows; without -v the first ones."""
    several = len(result.shapes) > 1
    grid = Grid(
        Column("layer"),
        Column("op", spare=2),
        Column("shape", spare=4),
        *([Column("sample", right=True, spare=5)] if several else []),
        Column("error", right=True),
        Column("accumulated", right=True, spare=3),
        Column("of noise", right=True),
        Column("bits", right=True, spare=1),
        Column("verdict"),
    )
    shown = rows if report.verbose else rows[:_ROWS]
    for row in shown:
        grid.add(
            f"{row.place}/{row.node}" if row.place else row.node,
            row.op,
            "×".join(map(str, row.shape)),
            *([str(row.sample)] if several else []),
            _number(row.local),
            _number(row.accumulated),
            f"{row.ratio:.2g}×" if math.isfinite(row.ratio) else "–",
            str(row.bits) if row.bits else "",
            row.verdict,
            style="red" if row.verdict == "suspect" else None,
        )
    report.table(grid)
    if len(shown) < len(rows):
        report.say(f"… {len(rows) - len(shown)} more rows (-v shows all)")
    if result.note:
        report.say(f"note: {text.clean(result.note)}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def to_dict(reference: Path, result: BisectResult | PassBisectResult, written: Written, code: int) -> dict[str, Any]:
    """The JSON object of a bisection."""
    repro = written.repro
    folder = None
    if repro is not None:
        folder = {
            "folder": str(repro.folder),
            "command": list(repro.command),
            "nodes": repro.nodes,
            "bytes": repro.nbytes,
            "reproduced": repro.reproduced,
        }
    return {
        "command": "bisect",
        "model": str(reference),
        "exit_code": code,
        **result.to_dict(),
        "ok": code == 0,
        "repro": folder,
        "repro_note": written.note,
    }
