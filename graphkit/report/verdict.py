"""How two models compare: a row for each output of each sample, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.run import proof_line
from graphkit.report.table import Column, Grid

if TYPE_CHECKING:
    from graphkit.compare import OutputComparison
    from graphkit.proof import Proof
    from graphkit.verification.outputs import VerifyResult

_ROWS = 30  # rows shown without -v; those that differ come first


@dataclass
class _Row:
    """An output at some input shapes: the worst of its samples, and how many there are."""

    shapes: str
    worst: OutputComparison
    samples: int = 1


def show_verdict(report: Report, result: VerifyResult) -> None:
    """Print the comparison of a candidate with a reference; a failure is summed up by `failed_check`.

    Samples of the same shapes share a row, the worst of them; with -v each has its own.
    """
    rows = _rows(result.proof, report.verbose)
    shown = rows
    if len(rows) > _ROWS and not report.verbose:
        shown = sorted(rows, key=lambda row: row.worst.ok)[:_ROWS]
    if shown:
        report.table(_table(shown))
    if len(shown) < len(rows):
        report.say(f"… {text.count(len(rows) - len(shown), 'more row')} (-v shows all)")
    for note in dict.fromkeys((row.worst.name, row.worst.note) for row in shown if row.worst.note):
        report.say("note: '{}': {}".format(*map(text.clean, note)))
    if result.proof.note and result.proof.kind != "none":
        report.say(f"note: {text.clean(result.proof.note)}")
    if result.ok:
        report.say(_last_line(result))


def _rows(proof: Proof, each: bool) -> list[_Row]:
    from graphkit.proof import shape_text

    rows: dict[object, _Row] = {}
    for number, check in enumerate(proof.checks):
        shapes = shape_text(check.shapes)
        for output in check.comparison.outputs:
            key = (number if each else shapes, output.name)
            row = rows.setdefault(key, _Row(shapes, output, 0))
            row.samples += 1
            row.worst = max(row.worst, output, key=_badness)
    return list(rows.values())


def _badness(output: OutputComparison) -> tuple[bool, float]:
    return not output.ok, math.inf if math.isnan(output.max_error) else output.max_error


def _last_line(result: VerifyResult) -> Text:
    tolerance = result.tolerance
    cosine = f", cosine {tolerance.min_cosine:g}" if tolerance.min_cosine is not None else ""
    rest = f"  tolerance {tolerance.rtol:g} of the largest value{cosine}"
    return Text.assemble(proof_line(result.proof), rest)


def failed_check(proof: Proof) -> str:
    """Why a verification failed, one line."""
    if proof.kind == "none":
        return f"nothing could be compared: {proof.note}"
    return f"the outputs differ: {proof.reason}"


def _table(rows: list[_Row]) -> Grid:
    several = any(row.samples > 1 for row in rows)
    table = Grid(
        Column("inputs", spare=1),
        *([Column("samples", right=True, spare=5)] if several else []),
        Column("output"),
        Column("shape", spare=3),
        Column("relative error"),
        Column("rel L2", spare=4),
        Column("cosine", spare=2),
        Column("verdict", wrap=True),
    )
    for row in rows:
        output = row.worst
        verdict = "equal" if output.ok else output.reason
        dims = output.shape if output.shape is not None else output.expected_shape
        number = [str(row.samples)] if several else []
        cells = [row.shapes, *number, output.name, text.shape(dims), *_numbers(output), verdict]
        table.add(*cells, style=None if output.ok else "red")
    return table


def _numbers(output: OutputComparison) -> list[str]:
    values = (output.max_error, output.rel_l2, output.cosine)
    if any(value != value for value in values[:1]):
        return ["–", "–", "–"]
    return [text.error(output.max_error), text.error(output.rel_l2), f"{output.cosine:.6f}"]
