"""`graphkit diff`."""

from __future__ import annotations

from pathlib import Path

import click

from graphkit.cli import _shared
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.report.console import Report

EXAMPLES = (
    "graphkit diff old.mnn new.mnn",
    "graphkit diff minilm.onnx minilm.opt.onnx -v",
    "graphkit diff float.mnn w8.mnn --json",
)


@click.command("diff", cls=Command, examples=EXAMPLES)
@click.argument("a", type=_shared.PATH)
@click.argument("b", type=_shared.PATH)
@option("--uuid", is_flag=True, help="Let mnn_uuid count; MNN's converter draws a new one for each .mnn file.")
@_shared.report_option
@output_flags
@click.pass_obj
def command(report: Report, /, a: Path, b: Path, uuid: bool, report_file: Path | None) -> int:
    """Say how model B differs from model A.

    A and B are two .mnn files or two .onnx files. Operators are matched by name, by what they make and by where
    they stand; their fields, inputs and weights are compared, quantized weights also by what they stand for.
    The order of operators, mnn_uuid and where weights are kept do not count. The exit code is 0 when the models
    are equal, 1 when they differ. Models of two formats are compared by `graphkit verify`.
    """
    with report.working(f"comparing {b} with {a}"):
        from graphkit.mnn.diff import diff
        from graphkit.model import Model

        if report_file is not None:
            places = Places()
            for path in (a, b):
                places.read(path, *(Model.load(path).store.files() if path.suffix.lower() != ".mnn" else ()))
            places.write(report_file, "--report")
        result = diff(a, b, uuid=uuid)
    from graphkit.report.diffed import show_diffed, to_dict

    code = 0 if result.equal else 1
    data = to_dict(result, code)
    report.save(data, report_file)
    show_diffed(report, result)
    report.emit(data)
    return code
