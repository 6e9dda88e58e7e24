"""How two models compare: a row for each output of each sample, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.run import proof_line

if TYPE_CHECKING:
    from graphkit.compare import OutputComparison
    from graphkit.proof import Proof
    from graphkit.verification.outputs import VerifyResult

_ROWS = 30  # rows shown without -v; those that differ come first


def show_verdict(report: Report, result: VerifyResult) -> None:
    """Print the comparison of a candidate with a reference; a failure is summed up by `failed_check`."""
    from graphkit.proof import shape_text

    rows = [(shape_text(check.shapes), output) for check in result.proof.checks for output in check.comparison.outputs]
    if rows and len(rows) > _ROWS and not report.verbose:
        rows.sort(key=lambda row: row[1].ok)
    shown = rows if report.verbose else rows[:_ROWS]
    if shown:
        report.table(_table(shown))
    if len(shown) < len(rows):
        report.say(f"… {text.count(len(rows) - len(shown), 'more row')} (-v shows all)")
    for _, output in shown:
        if output.note:
            report.say(f"note: '{text.clean(output.name)}': {text.clean(output.note)}")
    if result.proof.note and result.proof.kind != "none":
        report.say(f"note: {text.clean(result.proof.note)}")
    if result.ok:
        report.say(_last_line(result))


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


def _table(rows: list[tuple[str, OutputComparison]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("inputs", "output", "shape"):
        table.add_column(title, overflow="fold")
    for title in ("max error", "rel L2", "cosine"):
        table.add_column(title, no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for shapes, output in rows:
        verdict = "equal" if output.ok else text.clean(output.reason)
        dims = output.shape if output.shape is not None else output.expected_shape
        cells = [text.clean(shapes), text.clean(output.name), text.shape(dims), *_numbers(output), verdict]
        table.add_row(*map(Text, cells), style=None if output.ok else "red")
    return table


def _numbers(output: OutputComparison) -> list[str]:
    values = (output.max_error, output.rel_l2, output.cosine)
    if any(value != value for value in values[:1]):
        return ["–", "–", "–"]
    return [text.error(output.max_error), text.error(output.rel_l2), f"{output.cosine:.6f}"]
