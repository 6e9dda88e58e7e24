"""`graphkit convert`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _quant, _shared, _values
from graphkit.cli._command import Command, F, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.errors import MnnError, UsageError
from graphkit.mnn.options import FRAMEWORKS, OPTIONS, ConverterOptions
from graphkit.mnn.options import Option as ConverterOption
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.mnn.road import ConvertResult
    from graphkit.model import Model
    from graphkit.quant.overflow import HalfForecast
    from graphkit.quantizing import Quantized

EXAMPLES = (
    "graphkit convert minilm.onnx -o minilm.mnn",
    "graphkit convert minilm.onnx --bind batch=1 --bind seq=128 --fp16",
    "graphkit convert minilm.onnx --bits 4 --block 32 --calib texts.txt",
    "graphkit convert net.tflite -o net.mnn",
)
_SUFFIXES = {
    ".onnx": "ONNX",
    ".pb": "TF",
    ".tflite": "TFLITE",
    ".caffemodel": "CAFFE",
    ".mnn": "MNN",
    ".json": "JSON",
}
_PREFIX = "mnn_"
_NUMBERS = {"int": "N", "float": "X", "switch": "0|1", "text": "TEXT", "path": "FILE"}


def _converter_options(function: F) -> F:
    for item in reversed(list(OPTIONS.values())):
        function = _converter_option(item)(function)
    return function


def _converter_option(item: ConverterOption) -> Callable[[F], F]:
    section, name = "MNNConvert's options", f"{_PREFIX}{item.name}"
    if item.kind == "flag":
        return option(f"--{item.name}", name, is_flag=True, default=None, section=section, help=item.help)
    bounds = f" ({item.range})" if item.low is not None or item.high is not None else ""
    metavar = _NUMBERS[item.kind]
    return option(f"--{item.name}", name, metavar=metavar, section=section, help=item.help + bounds)


@click.command("convert", cls=Command, examples=EXAMPLES)
@_shared.model_argument
@option("-o", "--output", type=_shared.PATH, metavar="OUT.mnn", help="Default: MODEL.mnn beside MODEL.")
@option(
    "--framework",
    type=click.Choice(FRAMEWORKS, case_sensitive=False),
    help="What MODEL is. Default: by its suffix.",
)
@option("--passes", metavar="PIPELINE", section="Passes", help="What to run before. Default: mnn.")
@option("--no-optimize", is_flag=True, section="Passes", help="Hand the model over as it is.")
@_shared.bind_options
@_quant.quant_options
@_shared.verify_options
@option("--no-verify", is_flag=True, section="Verification", help="The same as --verify none.")
@_shared.sample_options
@_shared.tolerance_options
@option(
    "--keep",
    is_flag=True,
    section="Verification",
    help="Leave the .mnn file even when MNN computes it wrong.",
)
@_shared.run_options
@_shared.timeout_option
@_converter_options
@_shared.report_option
@output_flags
@click.pass_obj
def command(report: Report, /, model: Path, output: Path | None, report_file: Path | None, **given: Any) -> int:
    """Convert a model to MNN and prove that MNN computes the same.

    The model is optimized for MNN, converted, loaded back and compared with the original in onnxruntime.
    When MNN refuses it, crashes on it or computes it wrong, the nodes at fault are named, nothing is written
    and the exit code is 3. With --bits the weights are quantized first (see `graphkit quantize`); weights that are
    quantized already keep their codes.
    """
    options = _options(model, given)
    _check_usage(options, given)
    place = output or model.with_suffix(".mnn")
    if place.suffix.lower() in _SUFFIXES and place.suffix.lower() != ".mnn":
        raise UsageError(f"convert writes MNN, and '{place}' is not named so", hint="name the output OUT.mnn")
    source = _load(report, model, options)
    _check_places(place, report_file, model, source, options, given)
    done = _quantized(report, source, given)
    result = _run(report, (source if done is None else done.model) or model, place, options, given)
    report.written.append(place)
    halves = _halves(report, source, result, given) if options.get("fp16") else None
    return _finish(report, model, source, (done, result, halves), report_file)


def _halves(
    report: Report, source: Model | None, result: ConvertResult, given: dict[str, Any]
) -> tuple[HalfForecast, str] | None:
    """What half floats cannot hold at run time; on calibration data, else on what the proof ran on."""
    if source is None:
        return None
    from graphkit.quant.overflow import forecast

    with report.working("forecasting half floats"):
        model = source if result.optimized is None else result.optimized.model
        data = _quant.calibration(given, model)
        if data is not None:
            return forecast(model, data.samples), "calibration data"
        evidence = result.optimized.evidence if result.optimized is not None else None
        feeds = [sample.feeds for sample in evidence.samples if not sample.probe] if evidence is not None else []
        return (forecast(model, feeds), "samples of the proof") if feeds else None


def _quantized(report: Report, source: Model | None, given: dict[str, Any]) -> Quantized | None:
    """What the options of quantization ask for; passes and bindings of the user are then done."""
    if not _quant.wanted(given, fp16=bool(given[f"{_PREFIX}fp16"])) or source is None:
        return None
    if given["no_optimize"]:
        raise UsageError("quantization needs the passes; --no-optimize leaves them out")
    from graphkit.cli.quantize import quantized

    done = quantized(report, source, {**given, "verify": "none" if given["no_verify"] else given["verify"]}, "mnn")
    given.update(binds=(), shapes=(), passes=None, stop_after=None, print_after=())
    return done


def _options(model: Path, given: dict[str, Any]) -> ConverterOptions:
    framework = given["framework"] or _SUFFIXES.get(model.suffix.lower())
    if framework is None:
        raise UsageError(
            f"cannot tell the framework of '{model}' by its suffix",
            hint="say it with --framework ONNX, TF, …",
        )
    values = {
        name.removeprefix(_PREFIX): None if value is False else value  # a flag that is not there
        for name, value in given.items()
        if name.startswith(_PREFIX)
    }
    return ConverterOptions.of(framework, values)


def _check_usage(options: ConverterOptions, given: dict[str, Any]) -> None:
    _values.pipeline(given["passes"], ", or leave the model as it is with --no-optimize")
    if given["no_optimize"] and given["passes"] is not None:
        raise UsageError("--passes and --no-optimize exclude each other")
    if options.framework == "ONNX":
        return
    for name, flag in (
        ("passes", "--passes"),
        ("bits", "--bits"),
        ("plan", "--plan"),
        ("binds", "--bind"),
        ("shapes", "--input-shape"),
        ("inputs", "--inputs"),
    ):
        if given[name]:
            raise UsageError(f"{flag} works for ONNX models, and this one is {options.framework}")


def _check_places(
    place: Path,
    report_file: Path | None,
    model: Path,
    source: Model | None,
    options: ConverterOptions,
    given: dict[str, Any],
) -> None:
    places = Places()
    places.read(model, *(source.store.files() if source is not None else ()))
    places.read(*(Path(str(value)) for name, value in options.values if OPTIONS[name].kind == "path"))
    places.samples(given["inputs"])
    places.plugins(given["plugins"])
    places.write(place, "-o", [".weight"], written=bool(options.get("saveExternalData")))
    _quant.note_places(places, given)
    if report_file is not None:
        places.write(report_file, "--report")


def _load(report: Report, model: Path, options: ConverterOptions) -> Model | None:
    with report.working(f"loading {model}"):
        if options.framework != "ONNX":
            from graphkit.mnn.sources import check_source

            check_source(model, options.framework)
            return None
        from graphkit.model import Model

        return Model.load(model)


def _run(
    report: Report, source: Model | Path, place: Path, options: ConverterOptions, given: dict[str, Any]
) -> ConvertResult:
    from graphkit.mnn.road import convert
    from graphkit.report.watch import Watch, check_names

    with report.working(f"converting to {place}") as step:
        passes = None if given["no_optimize"] else given["passes"] if given["passes"] is not None else "mnn"
        if given["print_after"]:
            from graphkit.registry import Registry

            check_names(given["print_after"], Registry(given["plugins"]).stages(passes or ""))
        try:
            return convert(
                source,
                place,
                passes=passes,
                bind=_values.bindings(given["binds"], given["shapes"], lambda: _onnx(source)),
                options=options,
                verify="none" if given["no_verify"] else given["verify"],
                on_mismatch=given["on_mismatch"],
                stop_after=given["stop_after"],
                inputs=samples(given["inputs"]),
                seed=given["seed"],
                tolerance=_values.tolerance(lambda: _default(source, options), given["rtol"], given["atol"]),
                keep=given["keep"],
                timeout=given["timeout"],
                plugins=given["plugins"],
                watch=Watch(report, step, given["print_after"]),
                progress=step,
                crash_dir=Path.cwd(),
            )
        except MnnError as error:
            if given["no_optimize"] and error.faults:
                error.hint = "run without --no-optimize: the passes replace much that MNN refuses or gets wrong"
            raise


def _onnx(source: Model | Path) -> Model:
    from graphkit.model import Model

    return source if isinstance(source, Model) else Model.load(source)


def _default(source: Model | Path, options: ConverterOptions) -> Tolerance:
    from graphkit.compare import Tolerance
    from graphkit.graph import Graph
    from graphkit.tolerances import mnn_tolerance

    if options.framework != "ONNX":
        return Tolerance()
    return mnn_tolerance(Graph.of(_onnx(source)), halved=bool(options.get("fp16")))


def _finish(
    report: Report,
    model: Path,
    source: Model | None,
    results: tuple[Quantized | None, ConvertResult, tuple[HalfForecast, str] | None],
    report_file: Path | None,
) -> int:
    from graphkit.cli.quantize import show
    from graphkit.report.conversion import show_conversion, to_dict
    from graphkit.report.failure import complain
    from graphkit.report.run import failed_check

    done, result, halves = results
    right = (result.optimized is None or result.optimized.ok) and (done is None or done.ok)
    data = to_dict(model, result, 0 if right else 1)
    if done is not None and source is not None:
        data["quantization"] = done.to_dict()
        show(report, source, done)
    if halves is not None:
        from graphkit.report import halves as report_halves

        data["half_forecast"] = report_halves.to_dict(*halves)
    report.save(data, report_file)
    show_conversion(report, source if done is None else None, result)
    if halves is not None:
        report_halves.show_forecast(report, *halves)
    for run in (done.optimized if done is not None else None, result.optimized):
        if run is not None and not run.ok:
            complain(report, failed_check(run, written=True))
    report.emit(data)
    return 0 if right else 1
