"""`graphkit optimize`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places, same
from graphkit.cli._samples import samples
from graphkit.errors import ModelError, UsageError
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.optimizer import OptimizeResult

EXAMPLES = (
    "graphkit optimize minilm.onnx",
    "graphkit optimize minilm.onnx --for mnn --bind batch=1 --verify each",
    "graphkit optimize minilm.onnx --passes 'default,-fuse-gelu' -o out.onnx",
    "graphkit optimize det.onnx --input-shape 1,3,640,640 --inputs samples/",
    "graphkit optimize m.onnx --plugin mine.py --passes my-pass,cleanup",
)


@click.command("optimize", cls=Command, examples=EXAMPLES)
@_shared.model_argument
@option("-o", "--output", type=_shared.PATH, metavar="OUT.onnx", help="Default: MODEL.opt.onnx beside MODEL.")
@option(
    "--passes",
    metavar="PIPELINE",
    section="Passes",
    help="What to run: names, presets, name{option=value}, -name takes one out. Default: default.",
)
@option(
    "--for",
    "target",
    type=click.Choice(["mnn", "onnxruntime"]),
    section="Passes",
    help="The preset for a runtime.",
)
@_shared.bind_options
@_shared.verify_options
@_shared.sample_options
@_shared.tolerance_options
@_shared.run_options
@option(
    "--external-data",
    "outside",
    is_flag=True,
    help="Weights beside the model, in OUT.onnx.data. Default: as in MODEL.",
)
@option("--no-external-data", "inside", is_flag=True, help="Weights inside the model.")
@_shared.report_option
@output_flags
@click.pass_obj
def command(report: Report, /, model: Path, output: Path | None, report_file: Path | None, **given: Any) -> int:
    """Run passes over an ONNX model and prove that its outputs stay equal.

    MODEL is not changed. A pass that breaks the outputs is undone and named; then the exit code is 1. When
    the outputs differ all the same, nothing is written.
    """
    if given["passes"] is not None and given["target"] is not None:
        raise UsageError("--passes and --for exclude each other", hint="--for mnn is short for --passes mnn")
    if given["outside"] and given["inside"]:
        raise UsageError("--external-data and --no-external-data exclude each other")
    _values.pipeline(given["passes"])
    external = given["outside"] or (False if given["inside"] else None)
    with report.working(f"optimizing {model}"):
        from graphkit.model import Model

        source = Model.load(model)
        place = output or model.with_name(f"{model.stem}.opt.onnx")
        _check_places(place, report_file, source, given, external)
    result = _run(report, source, given)
    saved = _save(report, result, place, external)
    return _finish(report, source, result, saved, report_file)


def _check_places(
    place: Path, report_file: Path | None, source: Model, given: dict[str, Any], external: bool | None
) -> None:
    if place.suffix.lower() == ".mnn":
        raise UsageError("optimize writes ONNX", hint="use `graphkit convert` for a .mnn file")
    places = Places()
    places.read(source.path, *source.store.files())
    places.samples(given["inputs"])
    places.plugins(given["plugins"])
    beside = source.external if external is None else external
    places.write(place, "-o", [".data", ".weight"], written=beside)
    if report_file is not None:
        places.write(report_file, "--report")


def _run(report: Report, source: Model, given: dict[str, Any]) -> OptimizeResult:
    from graphkit.graph import Graph
    from graphkit.optimizer import optimize
    from graphkit.registry import Registry
    from graphkit.report.watch import Watch, check_names
    from graphkit.tolerances import default_tolerance

    verify: Literal["none", "end", "each"] = given["verify"]
    passes = given["passes"] if given["passes"] is not None else given["target"] or "default"
    with report.working(f"optimizing {source.path}") as step:
        registry = Registry(given["plugins"])
        bind = _values.bindings(given["binds"], given["shapes"], lambda: source)
        check_names(given["print_after"], registry.stages(passes))
        return optimize(
            source,
            passes,
            bind=bind,
            verify=verify,
            inputs=samples(given["inputs"]),
            seed=given["seed"],
            tolerance=_values.tolerance(lambda: default_tolerance(Graph.of(source)), given["rtol"], given["atol"]),
            on_mismatch=given["on_mismatch"],
            stop_after=given["stop_after"],
            registry=registry,
            watch=Watch(report, step, given["print_after"]),
            crash_dir=Path.cwd(),
        )


def _save(report: Report, result: OptimizeResult, place: Path, external: bool | None) -> tuple[str, int] | None:
    if not result.proof.ok:
        return None
    with report.working(f"writing {place}"):
        stale = _old_data(place, result.model)
        before = stale.stat() if stale is not None else None
        size = result.model.save(place, external=external)
        report.written.append(place)
        _remove_stale(stale, before)
    return str(place), size


def _old_data(place: Path, model: Model) -> Path | None:
    """The data file of the model that stands where the output goes, None when it has none or the output needs it."""
    from graphkit.model import Model

    data = place.absolute().with_name(f"{place.name}.data")
    if not (place.is_file() and data.is_file()) or any(same(data, file) for file in model.store.files()):
        return None
    try:
        old = Model.load(place)
    except ModelError:  # whose data they are cannot be known
        return None
    return data if data in old.store.files() else None


def _remove_stale(data: Path | None, before: os.stat_result | None) -> None:
    """Remove the old model's data, unless the new model's have taken their place."""
    if data is not None and before is not None and data.exists() and os.path.samestat(before, data.stat()):
        data.unlink(missing_ok=True)


def _finish(
    report: Report,
    source: Model,
    result: OptimizeResult,
    saved: tuple[str, int] | None,
    report_file: Path | None,
) -> int:
    from graphkit.report.failure import complain
    from graphkit.report.run import failed_check, show_optimized, to_dict

    code = 0 if result.ok else 1
    data = to_dict(source, result, saved, code)
    report.save(data, report_file)
    show_optimized(report, source, result, saved)
    if code:
        complain(report, failed_check(result, saved is not None))
    report.emit(data)
    return code
