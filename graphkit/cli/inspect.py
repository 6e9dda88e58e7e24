"""`graphkit inspect`."""

from __future__ import annotations

from pathlib import Path

import click

from graphkit.cli import _shared
from graphkit.cli._command import Command, output_flags
from graphkit.report.console import Report

EXAMPLES = (
    "graphkit inspect minilm.onnx",
    "graphkit inspect minilm.mnn --json",
)


@click.command("inspect", cls=Command, examples=EXAMPLES)
@_shared.model_argument
@output_flags
@click.pass_obj
def command(report: Report, /, model: Path) -> int:
    """Show what is in a model: format, inputs, outputs, operators, bytes of weights.

    MODEL is an .onnx or a .mnn file; it is read, never run.
    """
    with report.working(f"reading {model}"):
        from graphkit.report.inspection import inspect

        data = inspect(model)
    from graphkit.report.inspected import show_inspected

    show_inspected(report, data)
    report.emit({"command": "inspect", "exit_code": 0, "ok": True, **data})
    return 0
