"""`graphkit check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.report.console import Report

EXAMPLES = (
    "graphkit check minilm.onnx",
    "graphkit check minilm.onnx -v",
    "graphkit check det.onnx --input-shape 1,3,640,640 --json",
    "graphkit check flash.onnx --plugin mine.py --passes my-pass,mnn",
)


@click.command("check", cls=Command, examples=EXAMPLES)
@_shared.model_argument
@option(
    "--passes",
    metavar="PIPELINE",
    default="mnn",
    show_default=True,
    section="Passes",
    help="What conversion would run first: names, presets, name{option=value}, -name takes one out.",
)
@_shared.bind_options
@_shared.plugin_option
@_shared.report_option
@output_flags
@click.pass_obj
def command(report: Report, /, model: Path, report_file: Path | None, **given: Any) -> int:
    """Say what MNN would refuse, crash on or compute wrong, without converting.

    MODEL is an .onnx file. Each node that MNN would fail on is listed with the reason and the pass that fixes it;
    then what the passes leave. The exit code is 0 when they leave nothing, else 1. MNN itself does not run.
    """
    _values.pipeline(given["passes"])
    with report.working(f"checking {model}"):
        from graphkit.mnn.preflight import check
        from graphkit.model import Model
        from graphkit.registry import Registry

        source = Model.load(model)
        _check_places(report_file, source, given)
        bind = _values.bindings(given["binds"], given["shapes"], lambda: source)
        result = check(source, given["passes"], bind=bind, registry=Registry(given["plugins"]))
    from graphkit.report.checked import show_checked, to_dict

    code = 0 if result.ok else 1
    data = to_dict(model, result, code)
    report.save(data, report_file)
    show_checked(report, given["passes"], result)
    report.emit(data)
    return code


def _check_places(report_file: Path | None, source: Any, given: dict[str, Any]) -> None:
    if report_file is None:
        return
    places = Places()
    places.read(source.path, *source.store.files())
    places.plugins(given["plugins"])
    places.write(report_file, "--report")
