"""`graphkit quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _quant, _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.errors import UsageError
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.mnn.road import ConvertResult
    from graphkit.model import Model
    from graphkit.quantizing import Quantized

EXAMPLES = (
    "graphkit quantize minilm.onnx -o minilm.w8.mnn",
    "graphkit quantize minilm.onnx -o minilm.w4.mnn --bits 4 --block 32 --calib texts.txt",
    "graphkit quantize det.onnx -o det.q.onnx --bits 4 --layers 'head*=8' --skip stem",
    "graphkit quantize rec.onnx -o rec.mnn --budget 65%' of w8' --calib lines/ --images size=48x320",
)


@click.command("quantize", cls=Command, examples=EXAMPLES)
@_shared.model_argument
@option("-o", "--output", type=_shared.PATH, metavar="OUT", help="OUT.onnx or OUT.mnn. Default: MODEL.quant.onnx.")
@_quant.quant_options
@option("--passes", metavar="PIPELINE", section="Passes", help="What to run before. Default: mnn for OUT.mnn, default.")
@_shared.bind_options
@_shared.verify_options
@_shared.sample_options
@_shared.run_options
@_shared.timeout_option
@_shared.report_option
@output_flags
@click.pass_obj
def command(report: Report, /, model: Path, output: Path | None, report_file: Path | None, **given: Any) -> int:
    """Store the weights of a model with 2 to 8 bits.

    The result is an ONNX model with DequantizeLinear, which onnxruntime runs, or a .mnn file with the same codes and
    scales in it, which is then compared with that ONNX model. Activations stay float.
    """
    place = output or model.with_name(f"{model.stem}.quant.onnx")
    if place.suffix.lower() not in (".onnx", ".mnn"):
        raise UsageError(
            f"quantize writes ONNX or MNN, and '{place}' is neither", hint="name the output OUT.onnx or OUT.mnn"
        )
    _values.pipeline(given["passes"])
    with report.working(f"loading {model}"):
        from graphkit.model import Model

        source = Model.load(model)
    _check_places(place, report_file, source, given)
    done = quantized(report, source, given, "mnn" if place.suffix.lower() == ".mnn" else None)
    converted, size = _write(report, source, done, place, given)
    report.written.append(place)
    return _finish(report, source, done, converted, (place, size), report_file)


def quantized(report: Report, source: Model, given: dict[str, Any], preset: str | None) -> Quantized:
    """Run the job that the options ask for; writes the plan when asked. Raises UsageError."""
    from graphkit.quantizing import PASSES, quantize
    from graphkit.registry import Registry
    from graphkit.report.quantized import progress_line
    from graphkit.report.watch import Watch, check_names

    passes = given["passes"] if given["passes"] is not None else preset or PASSES
    with report.working(f"quantizing {source.path}") as step:
        progress, registry = progress_line(step), Registry(given["plugins"])
        check_names(given["print_after"], registry.stages(passes))
        done = quantize(
            source,
            _quant.job(given, progress),
            passes=passes,
            bind=_values.bindings(given["binds"], given["shapes"], lambda: source),
            verify=given["verify"],
            inputs=samples(given["inputs"]),
            on_mismatch=given["on_mismatch"],
            stop_after=given["stop_after"],
            seed=given["seed"],
            registry=registry,
            watch=Watch(report, step, given["print_after"]),
            step=step,
            progress=progress,
        )
    if given["save_plan"] is not None:
        done.result.plan.save(given["save_plan"])
        report.written.append(given["save_plan"])
    return done


def _check_places(place: Path, report_file: Path | None, source: Model, given: dict[str, Any]) -> None:
    places = Places()
    places.read(source.path, *source.store.files())
    places.samples(given["inputs"])
    places.plugins(given["plugins"])
    places.write(place, "-o", [".data", ".weight"])
    _quant.note_places(places, given)
    if report_file is not None:
        places.write(report_file, "--report")


def _write(
    report: Report, source: Model, done: Quantized, place: Path, given: dict[str, Any]
) -> tuple[ConvertResult | None, int]:
    if place.suffix.lower() == ".onnx":
        with report.working(f"writing {place}"):
            return None, done.model.save(place)
    from graphkit.mnn.road import convert

    with report.working(f"converting to {place}") as step:
        result = convert(
            done.model, place, verify=given["verify"], inputs=samples(given["inputs"]), seed=given["seed"],
            timeout=given["timeout"], progress=step, crash_dir=Path.cwd(),
        )  # fmt: skip
        return result, result.size


def _finish(
    report: Report,
    source: Model,
    done: Quantized,
    converted: ConvertResult | None,
    written: tuple[Path, int],
    report_file: Path | None,
) -> int:
    from graphkit.report import text
    from graphkit.report.failure import complain
    from graphkit.report.run import failed_check

    place, size = written
    code = 0 if done.ok and (converted is None or converted.optimized is None or converted.optimized.ok) else 1
    data = {
        "command": "quantize",
        "model": str(source.path),
        "output": str(place),
        "exit_code": code,
        "ok": code == 0,
        "size": size,
        **done.to_dict(),
        "conversion": None if converted is None else converted.to_dict(),
    }
    report.save(data, report_file)
    show(report, source, done)
    if converted is None:
        report.say(f"wrote {text.clean(str(place))}  {text.size(size)}")
    else:
        from graphkit.report.conversion import show_conversion

        show_conversion(report, None, converted)
    for run in (done.optimized, converted.optimized if converted is not None else None):
        if run is not None and not run.ok:
            complain(report, failed_check(run, written=True))
    report.emit(data)
    return code


def show(report: Report, source: Model, done: Quantized) -> None:
    """Print the model and what was done to it; with -v the passes too."""
    from graphkit.report.quantized import show_quantized
    from graphkit.report.run import header, show_run

    report.say(header(source))
    if report.verbose and done.optimized is not None:
        show_run(report, done.optimized.report)
    show_quantized(report, done)
