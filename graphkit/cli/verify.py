"""`graphkit verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.report.console import Report

EXAMPLES = (
    "graphkit verify minilm.onnx minilm.mnn",
    "graphkit verify minilm.onnx minilm.mnn --inputs samples/ --rtol 0.01 --min-cosine 0.999",
    "graphkit verify old.mnn new.mnn --inputs x.npz --memory low",
)
_MEMORY = {"normal": 0, "high": 1, "low": 2}


@click.command("verify", cls=Command, examples=EXAMPLES)
@click.argument("reference", type=_shared.PATH)
@click.argument("candidate", type=_shared.PATH)
@_shared.bind_options
@_shared.sample_options
@_shared.tolerance_options
@option(
    "--min-cosine",
    type=_shared.Finite(0, 1),
    metavar="X",
    section="Verification",
    help="Also ask for this cosine.",
)
@option(
    "--memory",
    type=click.Choice(list(_MEMORY)),
    default="normal",
    show_default=True,
    help="MNN's memory mode; low keeps weights quantized and computes with them.",
)
@_shared.report_option
@output_flags
@click.pass_obj
def command(
    report: Report, /, reference: Path, candidate: Path, report_file: Path | None, memory: str, **given: Any
) -> int:
    """Compare CANDIDATE with REFERENCE on the same inputs, output by output.

    Each is an .onnx or a .mnn file. Exit code 0: every output is within the tolerance; 1: one is not, or
    nothing could be compared; 3: MNN cannot run a model.
    """
    with report.working(f"comparing {candidate} with {reference}"):
        from graphkit.compare import Tolerance
        from graphkit.model import Model
        from graphkit.verification.outputs import verify

        if report_file is not None:
            places = Places()
            places.read(reference, candidate)
            places.samples(given["inputs"])
            for path in (reference, candidate):
                places.read(*(Model.load(path).store.files() if path.suffix.lower() != ".mnn" else ()))
            places.write(report_file, "--report")
        result = verify(
            reference,
            candidate,
            inputs=samples(given["inputs"]),
            seed=given["seed"],
            bind=_values.bindings(given["binds"], given["shapes"], lambda: Model.load(reference)),
            tolerance=_values.tolerance(Tolerance, given["rtol"], given["atol"], given["min_cosine"]),
            memory=_MEMORY[memory],
        )
    from graphkit.report.failure import complain
    from graphkit.report.verdict import failed_check, show_verdict

    code = 0 if result.ok else 1
    data = {"command": "verify", "exit_code": code, **result.to_dict()}
    report.save(data, report_file)
    show_verdict(report, result)
    if code:
        complain(report, failed_check(result.proof))
    report.emit(data)
    return code
