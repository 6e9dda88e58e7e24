"""`graphkit verify`."""

from __future__ import annotations

from collections.abc import Sequence
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
    from graphkit.model import Model
    from graphkit.verification.bisect.types import LayerRow, LayersResult

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
    "--sort",
    metavar="COLUMN",
    section="Layers",
    help="Order of the table, and of --csv: ratio, local, accumulated, bits, node, …",
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
        from graphkit.verification.outputs import verify

        pair = _opened(reference), _opened(candidate)
        _check_places(pair, given["inputs"], {"--report": report_file, "--csv": given["csv_file"]})
        shared = {
            "inputs": samples(given["inputs"]),
            "seed": given["seed"],
            "bind": _values.bindings(given["binds"], given["shapes"], lambda: _model(pair[0])),
        }
        tolerance = _values.tolerance(Tolerance, given["rtol"], given["atol"], given["min_cosine"])
        result = verify(*pair, tolerance=tolerance, memory=_MEMORY[memory], **shared)
    from graphkit.report.failure import complain
    from graphkit.report.verdict import failed_check, show_verdict

    code = 0 if result.ok else 1
    data = {"command": "verify", "exit_code": code, **result.to_dict()}
    table = _layers(report, pair, memory, given, shared)
    if table is not None:
        data["layers"] = table.to_dict()
    report.save(data, report_file)
    if table is not None:
        from graphkit.report.bisected import show_layers

        show_layers(report, table, _sorted(table, given["sort"]))
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


def _opened(path: Path) -> Model | Path:
    """An ONNX model, loaded once for all that follows; of an MNN file, its path."""
    from graphkit.model import Model

    return path if path.suffix.lower() == ".mnn" else Model.load(path)


def _model(source: Model | Path) -> Model:
    from graphkit.model import Model

    return source if isinstance(source, Model) else Model.load(source)


def _check_places(pair: tuple[Model | Path, ...], inputs: Path | None, outputs: dict[str, Path | None]) -> None:
    """Raise OutputError when an output would overwrite what is read, or the other one."""
    places = Places()
    for source in pair:
        places.read(*((source,) if isinstance(source, Path) else (source.path, *source.store.files())))
    places.samples(inputs)
    for flag, path in outputs.items():
        if path is not None:
            places.write(path, flag)


def _sorted(table: LayersResult, column: str | None) -> Sequence[LayerRow]:
    return table.sorted_by(column) if column else table.rows


def _layers(
    report: Report, pair: tuple[Model | Path, Model | Path], memory: str, given: dict[str, Any], shared: dict[str, Any]
) -> LayersResult | None:
    if not given["layers"]:
        return None
    from graphkit._write import write_bytes
    from graphkit.verification.bisect.layers import layers

    with report.working("comparing layers"):
        table = layers(*pair, mnn_memory=_MEMORY[memory], **shared)
    if given["csv_file"] is not None:
        write_bytes(given["csv_file"], table.csv(_sorted(table, given["sort"])).encode())
        report.written.append(given["csv_file"])
    return table
