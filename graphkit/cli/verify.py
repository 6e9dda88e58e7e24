"""`graphkit verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.errors import UsageError
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.verification.bisect.types import LayersResult

EXAMPLES = (
    "graphkit verify minilm.onnx minilm.mnn",
    "graphkit verify minilm.onnx minilm.mnn --inputs samples/ --rtol 0.01 --min-cosine 0.999",
    "graphkit verify old.mnn new.mnn --inputs x.npz --memory low",
    "graphkit verify minilm.onnx minilm.mnn --layers --sort ratio --csv layers.csv",
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
@option(
    "--layers", is_flag=True, section="Layers", help="Also compare every value inside, each operator on right inputs."
)
@option(
    "--sort", metavar="COLUMN", section="Layers", help="Order of the table: ratio, local, accumulated, bits, node, …"
)
@option("--csv", "csv_file", type=_shared.PATH, metavar="F.csv", section="Layers", help="Write the whole table as CSV.")
@_shared.report_option
@output_flags
@click.pass_obj
def command(
    report: Report, /, reference: Path, candidate: Path, report_file: Path | None, memory: str, **given: Any
) -> int:
    """Compare CANDIDATE with REFERENCE on the same inputs, output by output.

    Each is an .onnx or a .mnn file. Exit code 0: every output is within the tolerance; 1: one is not, or
    nothing could be compared; 3: MNN cannot run a model.

    With --layers, REFERENCE is an .onnx file, and each value that CANDIDATE computes inside is compared twice: as it is
    (accumulated), and with the reference's values written into everything before it (error).
    """
    _check_layers(reference, given)
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
        if given["csv_file"] is not None:
            places = Places()
            places.read(reference, candidate)
            places.write(given["csv_file"], "--csv")
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
    table = _layers(report, reference, candidate, memory, given)
    if table is not None:
        data["layers"] = table.to_dict()
    report.save(data, report_file)
    if table is not None:
        from graphkit.report.bisected import show_layers

        show_layers(report, table, table.sorted_by(given["sort"]) if given["sort"] else table.rows)
    show_verdict(report, result)
    if code:
        complain(report, failed_check(result.proof))
    report.emit(data)
    return code


def _check_layers(reference: Path, given: dict[str, Any]) -> None:
    """Raise UsageError for options of --layers that cannot work."""
    if not given["layers"]:
        lonely = next((flag for flag, name in (("--sort", "sort"), ("--csv", "csv_file")) if given[name]), None)
        if lonely is not None:
            raise UsageError(f"{lonely} works with --layers")
        return
    if reference.suffix.lower() == ".mnn":
        raise UsageError("--layers needs an .onnx file as the reference, whose values have names")
    if given["sort"]:
        from graphkit.options import suggest
        from graphkit.verification.bisect.types import COLUMNS

        if given["sort"] not in COLUMNS:
            near = suggest(given["sort"], COLUMNS)
            raise UsageError(f"the table has no column '{given['sort']}'{near}", hint=f"columns: {', '.join(COLUMNS)}")


def _layers(
    report: Report, reference: Path, candidate: Path, memory: str, given: dict[str, Any]
) -> LayersResult | None:
    if not given["layers"]:
        return None
    from graphkit._write import write_bytes
    from graphkit.model import Model
    from graphkit.verification.bisect.layers import layers

    with report.working("comparing layers"):
        table = layers(
            reference,
            candidate,
            inputs=samples(given["inputs"]),
            seed=given["seed"],
            bind=_values.bindings(given["binds"], given["shapes"], lambda: Model.load(reference)),
            mnn_memory=_MEMORY[memory],
        )
    if given["csv_file"] is not None:
        write_bytes(given["csv_file"], table.csv().encode())
        report.written.append(given["csv_file"])
    return table
