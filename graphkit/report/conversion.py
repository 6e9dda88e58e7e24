"""What a conversion to MNN did: the passes, MNN's file, and what is proven about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.run import header, proof_line, show_run

if TYPE_CHECKING:
    from graphkit.mnn.road import ConvertResult
    from graphkit.model import Model

_WARNINGS = 5


def show_conversion(report: Report, model: Model | None, result: ConvertResult) -> None:
    """Print a finished conversion; `model` is the ONNX model it began with, None for other frameworks."""
    if model is not None:
        report.say(header(model))
    if result.optimized is not None:
        show_run(report, result.optimized.report)
    _show_warnings(report, result.warnings)
    if report.verbose:
        times = (f"{step} {text.seconds(value)}" for step, value in result.seconds.items())
        report.say(f"time: {', '.join(times)}")
    total = sum(result.seconds.values())
    if result.proof.note and result.proof.kind != "none":
        report.say(f"note: {text.clean(result.proof.note)}")
    name, ops = text.clean(str(result.output)), text.count(result.ops, "MNN op")
    line = f"wrote {name}  {ops}  {text.size(result.size)}  {text.seconds(total)}"
    report.say(line)
    report.say(Text.assemble("proof: " if result.proof.checks else "", proof_line(result.proof)))


def _show_warnings(report: Report, warnings: tuple[str, ...]) -> None:
    shown = warnings if report.verbose else warnings[:_WARNINGS]
    for line in shown:
        report.say(Text(f"MNN says: {text.clean(line)}", style="yellow"))
    if len(shown) < len(warnings):
        report.say(f"MNN says {len(warnings) - len(shown)} more (-v shows all)")


def to_dict(source: Path, result: ConvertResult, code: int) -> dict[str, object]:
    """The JSON object of a conversion."""
    return {
        "command": "convert",
        "model": str(source),
        "exit_code": code,
        "ok": code == 0,
        **result.to_dict(),
    }
