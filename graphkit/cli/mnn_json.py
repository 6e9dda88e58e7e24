"""`graphkit mnn to-json` and `graphkit mnn from-json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphkit.cli import _shared
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.errors import MnnError, UsageError
from graphkit.report.console import Report

_NO_JSON = (".mnn", ".safetensors", ".weight")
_NO_MNN = (".json", ".safetensors", ".weight")

_compat = option("--compat", is_flag=True, help="MNN's own JSON, as MNNConvert writes and reads it: one large file.")


@click.command(
    "to-json",
    cls=Command,
    examples=(
        "graphkit mnn to-json det.mnn",
        "graphkit mnn to-json det.mnn -o det.json --inline",
        "graphkit mnn to-json det.mnn -o for-mnn.json --compat",
    ),
)
@_shared.model_argument
@option("-o", "--output", type=_shared.PATH, metavar="OUT.json", help="Default: MODEL.json beside MODEL.")
@option("--inline", is_flag=True, help="Keep the arrays in the JSON, as base64.")
@_compat
@option("--drop-unknown", is_flag=True, help="Leave out fields of a newer MNN that this graphkit does not know.")
@_shared.report_option
@output_flags
@click.pass_obj
def to_json(report: Report, /, model: Path, output: Path | None, report_file: Path | None, **given: Any) -> int:
    """Write a .mnn file as JSON that can be read, edited, compared in git and turned back without loss.

    An operator is a line; tensors have index and name, "12:conv1_out"; floats are exact. Arrays of more than 64
    elements go to OUT.safetensors beside it, weights that MNN keeps outside to OUT.weight.
    """
    if given["inline"] and given["compat"]:
        raise UsageError("--inline and --compat exclude each other", hint="MNN's JSON holds its arrays anyway")
    target = output or model.with_suffix(".json")
    if target.suffix.lower() in _NO_JSON:
        raise UsageError(f"mnn to-json writes JSON, and '{target}' is not named so", hint="name the output OUT.json")
    with report.working(f"writing {target}"):
        from graphkit.mnn.document import read
        from graphkit.mnn.document.compat import to_compat
        from graphkit.mnn.document.json_form import to_json as write_json

        doc = read(model)
        places = Places()
        places.read(model)
        suffixes = [".weight"] if given["compat"] else []
        places.write(target, "-o", suffixes, written=doc.weights is not None)
        if report_file is not None:
            places.write(report_file, "--report")
        if given["compat"]:
            files = to_compat(doc, target, drop_unknown=given["drop_unknown"])
        else:
            files = write_json(doc, target, inline=given["inline"], drop_unknown=given["drop_unknown"])
    from graphkit.report.jsoned import show_written, written_to_dict

    report.written += [path for path, _ in files.written()]
    data = written_to_dict(model, files)
    report.save(data, report_file)
    show_written(report, files)
    report.emit(data)
    return 0


@click.command(
    "from-json",
    cls=Command,
    examples=(
        "graphkit mnn from-json det.json -o det2.mnn",
        "graphkit mnn from-json of-mnn.json --compat -o det2.mnn",
    ),
)
@click.argument("source", type=_shared.PATH, metavar="MODEL.json")
@option("-o", "--output", type=_shared.PATH, metavar="OUT.mnn", required=True, help="Where the model goes.")
@_compat
@option("--no-run", is_flag=True, help="Check the model, but do not let MNN load and run it.")
@option("--keep", is_flag=True, help="Leave the file even when MNN cannot load or run it.")
@_shared.report_option
@output_flags
@click.pass_obj
def from_json(report: Report, /, source: Path, output: Path, report_file: Path | None, **given: Any) -> int:
    """Make a .mnn file of its JSON form.

    All is checked: names, types and ranges of fields, names of tensors beside their indexes, the arrays beside the
    JSON by length and hash. Then MNN loads the result in a child and, when its shapes allow, runs it.
    """
    if output.suffix.lower() in _NO_MNN:
        raise UsageError(f"mnn from-json writes MNN, and '{output}' is not named so", hint="name the output OUT.mnn")
    with report.working(f"reading {source}") as step:
        from graphkit.mnn.document.compat import from_compat
        from graphkit.mnn.document.json_form import from_json as read_json

        doc = from_compat(source) if given["compat"] else read_json(source)
        places = Places()
        places.read(source, doc.weights, doc.origin.path if doc.origin else None)
        places.write(output, "-o", [".weight"], written=doc.weights is not None)
        if report_file is not None:
            places.write(report_file, "--report")
        step(f"trying {output}")
        try:
            saved = _save(doc, output, given)
        except MnnError:
            report.written += [output] if given["keep"] else []
            raise
    report.written.append(output)
    from graphkit.report.jsoned import made_to_dict, show_made

    data = made_to_dict(source, saved)
    report.save(data, report_file)
    show_made(report, saved)
    report.emit(data)
    return 0


def _save(doc: Any, output: Path, given: dict[str, Any]) -> Any:
    from graphkit.mnn.document import edits, validate, write
    from graphkit.mnn.document.trial import Trial

    if not given["no_run"]:
        return edits.save(doc, output, keep=given["keep"])
    validate.require_valid(doc)
    warnings = tuple(problem for problem in validate.validate(doc) if problem.severity == "warning")
    size = write(doc, output)
    return edits.Saved(output, size, Trial(False, None, None, "not run"), warnings)
