"""Print what `check` found: faults with the pass that fixes each, what is left, advice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid

if TYPE_CHECKING:
    from graphkit.mnn.findings import Finding
    from graphkit.mnn.preflight import CheckResult

_ROWS = 20  # rows without -v
_SAME = 3  # nodes with the same fault that get a row each, without -v
_NAMES = 8


def show_checked(report: Report, passes: str, result: CheckResult) -> None:
    """Print the result of a check; `passes` is the pipeline as it was given."""
    report.say(headline(passes, result))
    if result.found:
        report.table(_grid(report, result.found, fixes=True))
    if result.left and not _same(result):
        report.say(f"{text.count(len(result.left), 'fault')} in the graph that {_whose(passes)} leaves:")
        report.table(_grid(report, result.left, fixes=False))
    if result.advice:
        report.say("advice:")
        report.table(_grid(report, result.advice, fixes=False))
    if result.unjudged:
        names = text.listing([f"'{text.clean(name)}'" for name in result.unjudged], None if report.verbose else _NAMES)
        report.say(f"note: shapes or types are not known well enough to judge {names}; bind dims with --bind")
    if report.verbose:
        before, after = result.nodes
        report.say(f"time: {text.seconds(result.seconds)}  nodes: {before:,} → {after:,}  table: MNN {result.mnn}")


def headline(passes: str, result: CheckResult) -> str:
    """One line: how many faults, and whether the passes fix them."""
    number = len({(finding.node, finding.op) for finding in result.found})
    if not result.found and result.ok:
        return f"MNN {result.mnn} takes every node as it is, as far as its table of operators tells"
    what = f"{text.count(number, 'node')} MNN {result.mnn} would refuse or get wrong"
    if not result.found:
        return f"every node is one that MNN runs; {_whose(passes)} leaves {text.count(len(result.left), 'fault')}"
    if result.ok:
        return f"{what}; {'all are' if number > 1 else 'it is'} fixed by {_whose(passes)}"
    still = len({(finding.node, finding.op) for finding in result.left})
    return f"{what}; {text.count(still, 'node')} left after {_whose(passes)}"


def _whose(passes: str) -> str:
    return f"the {passes} preset" if passes in ("mnn", "default", "minimal", "onnxruntime") else "the pipeline"


def _same(result: CheckResult) -> bool:
    """True when what is left is what was found and not fixed, so that one table says all."""
    unfixed = {(f.node, f.op, f.why) for f in result.found if f.fixed_by is None}
    return unfixed == {(f.node, f.op, f.why) for f in result.left}


def _grid(report: Report, findings: Sequence[Finding], fixes: bool) -> Grid:
    columns = [Column("node"), Column("op", spare=2), Column("why", wrap=True)]
    table = Grid(*columns, *([Column("fixed by", spare=1)] if fixes else []))
    rows = list(_rows(findings, report.verbose))
    shown = rows if report.verbose else rows[:_ROWS]
    for cells in shown:
        table.add(*cells[: len(table.columns)])
    if len(shown) < len(rows):
        more = f"… {len(rows) - len(shown)} more (-v shows all)"
        table.add(more, *[""] * (len(table.columns) - 1))
    return table


def _rows(findings: Iterable[Finding], verbose: bool) -> Iterable[tuple[str, str, str, str]]:
    """A row for each finding; without -v the many with the same fault are one row after the first few."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        fix = finding.fixed_by or "–"
        groups.setdefault((finding.op, finding.why, fix), []).append(finding)
    for (op, why, fix), group in groups.items():
        few = group if verbose or len(group) <= _SAME + 1 else group[:_SAME]
        for finding in few:
            yield finding.node, op, why, fix
        if len(few) < len(group):
            yield f"… and {len(group) - len(few)} more", op, why, fix


def to_dict(source: Path, result: CheckResult, code: int) -> dict[str, object]:
    """The JSON object of a check."""
    return {"command": "check", "model": str(source), "exit_code": code, "ok": code == 0, **result.to_dict()}
