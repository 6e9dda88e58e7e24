"""What a conversion to MNN did: the passes, MNN's file, and what is proven about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.run import header, proof_line, show_run

if TYPE_CHECKING:
    from graphkit.mnn.carry.results import Carriage
    from graphkit.mnn.road import ConvertResult
    from graphkit.model import Model

_WARNINGS = 5
_LOW = 0.1  # of the largest value: an error that memory=low should not make


def show_conversion(report: Report, model: Model | None, result: ConvertResult) -> None:
    """Print a finished conversion; `model` is the ONNX model it began with, None for other frameworks."""
    if model is not None:
        report.say(header(model))
    if result.optimized is not None:
        # Weights that keep their codes are float on the way only; those that do not are named further down.
        silent = ("dequantize-weights",) if result.carriage.layers and not report.verbose else ()
        show_run(report, result.optimized.report, silent=silent)
    _show_warnings(report, result.warnings)
    if report.verbose:
        times = (f"{step} {text.seconds(value)}" for step, value in result.seconds.items())
        report.say(f"time: {', '.join(times)}")
    _show_carriage(report, result.carriage)
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


def _show_carriage(report: Report, carriage: Carriage) -> None:
    """What became of quantized weights: one line for all that kept their codes, one for each that did not."""
    if carriage.layers:
        kinds = ", ".join(
            f"{kind} × {count}" if len(carriage.kinds) > 1 else kind for kind, count in carriage.kinds.items()
        )
        sizes = f"{text.size(carriage.before)} → {text.size(carriage.after)}"
        low = carriage.low_memory_error
        error = "" if low is None else f"; with memory=low the error is {low:.1e}"
        report.say(f"carried {text.count(len(carriage.layers), 'quantized layer')}: {kinds}, {sizes}{error}")
        if low is not None and not low <= _LOW:
            report.say(Text("warning: MNN's memory=low, which also rounds activations, moves this model far", "yellow"))
    shown = carriage.left if report.verbose else carriage.left[:_WARNINGS]
    for entry in shown:
        sizes = f"{text.size(entry.bytes)} instead of {text.size(entry.stored)}"
        report.say(Text(f"float: {text.clean(entry.name)}, {sizes}: {text.clean(entry.reason)}", style="yellow"))
    if len(shown) < len(carriage.left):
        report.say(f"{len(carriage.left) - len(shown)} more quantized weights are float (-v shows all)")


def to_dict(source: Path, result: ConvertResult, code: int) -> dict[str, object]:
    """The JSON object of a conversion."""
    return {
        "command": "convert",
        "model": str(source),
        "exit_code": code,
        "ok": code == 0,
        **result.to_dict(),
    }
