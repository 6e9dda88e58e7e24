"""What the editing commands of `graphkit mnn` share: options, the order of checks, the saving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared
from graphkit.cli._command import option, output_flags
from graphkit.cli._places import Places
from graphkit.errors import MnnError, UsageError
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.mnn.document import Document
    from graphkit.mnn.document.edits import Edit

_OTHERS = (".json", ".onnx", ".npy", ".npz", ".weight")

graph_option = option(
    "--graph", metavar="NAME", help="Look in this subgraph. Default: the main graph, then all others."
)

edit_options = _shared.combined(
    option("-o", "--output", type=_shared.PATH, metavar="OUT.mnn", required=True, help="Where the edited model goes."),
    option("--keep", is_flag=True, help="Leave the file even when MNN cannot load or run it."),
    option(
        "--drop-unknown",
        is_flag=True,
        help="Write a file of a newer MNN without the fields that this graphkit does not know.",
    ),
    _shared.report_option,
    output_flags,
    click.pass_obj,
)


def edited(
    report: Report,
    command: str,
    model: Path,
    change: Callable[[Document], Sequence[Edit]],
    given: dict[str, Any],
    *inputs: Path | None,
) -> int:
    """Read a model, change it, save it with proof and report: the exit code.

    `inputs` are further files that the change reads, `given` holds the options of `edit_options`.
    """
    output: Path = given["output"]
    if output.suffix.lower() in _OTHERS:
        raise UsageError(f"mnn {command} writes MNN, and '{output}' is not named so", hint="name the output OUT.mnn")
    with report.working(f"editing {model}") as step:
        from graphkit.mnn.document import edits, read

        doc = read(model)
        places = Places()
        places.read(model, *inputs)
        places.write(output, "-o", [".weight"], written=doc.weights is not None)
        if given["report_file"] is not None:
            places.write(given["report_file"], "--report")
        done = change(doc)
        step(f"trying {output}")
        try:
            saved = edits.save(doc, output, drop_unknown=given["drop_unknown"], keep=given["keep"])
        except MnnError as error:
            report.written += [output] if given["keep"] else []
            error.hint = error.hint or "nothing was written; --keep leaves the file"
            raise
    report.written.append(output)
    from graphkit.report.edited import show_edited, to_dict

    data = to_dict(command, model, done, saved)
    report.save(data, given["report_file"])
    show_edited(report, done, saved, details=command != "set")
    report.emit(data)
    return 0
