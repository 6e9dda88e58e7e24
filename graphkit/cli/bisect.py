"""`graphkit bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.errors import UsageError
from graphkit.report.console import Report, Step

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.model import Model
    from graphkit.proof import Evidence
    from graphkit.verification.bisect.answer import BisectResult
    from graphkit.verification.bisect.folder import Request, Written
    from graphkit.verification.bisect.passes import PassBisectResult

EXAMPLES = (
    "graphkit bisect minilm.onnx",
    "graphkit bisect minilm.onnx minilm.mnn --inputs samples/ -o minilm.fault",
    "graphkit bisect minilm.onnx --no-optimize",
    "graphkit bisect minilm.onnx --passes default --plugin mine.py",
    "graphkit bisect minilm.onnx --passes mnn --check 'python mycheck.py {}'",
)


@click.command("bisect", cls=Command, examples=EXAMPLES)
@click.argument("reference", type=_shared.PATH)
@click.argument("candidate", type=_shared.PATH, required=False)
@option("-o", "--output", type=_shared.PATH, metavar="DIR", help="The repro folder. Default: REFERENCE.bisect.")
@option("--no-repro", is_flag=True, help="Write no folder.")
@option("--anonymize", is_flag=True, help="Random weights and other names in the folder, if the fault still shows.")
@option("--no-optimize", is_flag=True, section="Layers", help="Without CANDIDATE: convert REFERENCE without passes.")
@option(
    "--memory",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    section="Layers",
    help="Bytes of reference tensors that are held at once.",
)
@option("--no-suggestions", is_flag=True, section="Layers", help="Do not look for what avoids a fault.")
@option("--passes", metavar="PIPELINE", section="Passes", help="Find the bad pass of this pipeline instead.")
@option(
    "--check",
    metavar="COMMAND",
    section="Passes",
    help="What is bad, a command says: it gets a model's path ({} or last), and ends with 0 good, 1 bad, 125 skip.",
)
@_shared.plugin_option
@_shared.bind_options
@_shared.sample_options
@_shared.tolerance_options
@_shared.timeout_option
@option(
    "--seconds",
    type=_shared.Finite(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds that all experiments may take.",
)
@_shared.report_option
@output_flags
@click.pass_obj
def command(
    report: Report,
    /,
    reference: Path,
    candidate: Path | None,
    output: Path | None,
    report_file: Path | None,
    **given: Any,
) -> int:
    """Name the layer that MNN computes wrong, or the pass that makes a model wrong, and leave a folder that shows it.

    CANDIDATE is a .mnn or .onnx file; without it REFERENCE is converted as `convert` does it. Every value is compared
    while each operator is fed the right ones, so that independent faults show one by one. With --passes the pipeline
    is run again and again up to a rewrite: which pass, and which single rewrite, is the first bad one. Exit code 0:
    nothing is wrong; 1: something is.
    """
    if given["check"] is not None and not given["passes"]:
        raise UsageError("--check works with --passes")
    if given["passes"] == "":
        raise UsageError("--passes is empty", hint="name a pipeline, for example --passes default")
    if given["passes"] and candidate is not None:
        raise UsageError("--passes looks at passes, and a candidate has none", hint="leave one of them out")
    folder = output or reference.with_name(f"{reference.stem}.bisect")
    with report.working(f"loading {reference}"):
        from graphkit.model import Model

        source = Model.load(reference)
    _check_places(report_file, source, candidate, given)
    search = _passes if given["passes"] else _layers
    with report.working(f"bisecting {reference}") as step:
        result, written = search(source, candidate, None if given["no_repro"] else folder, given, step)
    if written.repro is not None:
        report.written.append(written.repro.folder)
    return _finish(report, reference, result, written, report_file)


def _check_places(report_file: Path | None, source: Model, candidate: Path | None, given: dict[str, Any]) -> None:
    if report_file is None:
        return
    places = Places()
    places.read(source.path, candidate, *source.store.files())
    places.samples(given["inputs"])
    places.plugins(given["plugins"])
    places.write(report_file, "--report")


def _tolerance(given: dict[str, Any], default: Any) -> Tolerance | None:
    return (
        None
        if given["rtol"] is None and given["atol"] is None
        else _values.tolerance(default, given["rtol"], given["atol"])
    )


def _request(folder: Path, given: dict[str, Any], step: Step) -> Request:
    from graphkit.verification.bisect.folder import Request

    return Request(folder, given["anonymize"], given["seconds"], progress=lambda text: step(f"reducing: {text}"))


def _passes(
    source: Model, candidate: Path | None, folder: Path | None, given: dict[str, Any], step: Step
) -> tuple[PassBisectResult, Written]:
    from graphkit.compare import Tolerance
    from graphkit.registry import Registry
    from graphkit.verification.bisect.folder import Written, pass_repro
    from graphkit.verification.bisect.passes import Command as Check
    from graphkit.verification.bisect.passes import bisect_passes
    from graphkit.verification.bisect.reduction import Budget

    registry = Registry(given["plugins"])
    tolerance = _tolerance(given, Tolerance)
    result = bisect_passes(
        source,
        given["passes"],
        check=Check.parse(given["check"], timeout=given["timeout"]) if given["check"] is not None else None,
        inputs=samples(given["inputs"]),
        seed=given["seed"],
        bind=_values.bindings(given["binds"], given["shapes"], lambda: source),
        tolerance=tolerance,
        plugins=given["plugins"],
        registry=registry,
        budget=Budget(seconds=given["seconds"]),
        progress=step,
    )
    if folder is None:
        return result, Written(None)
    return result, pass_repro(result, _request(folder, given, step), registry=registry, tolerance=tolerance)


def _layers(
    source: Model, candidate: Path | None, folder: Path | None, given: dict[str, Any], step: Step
) -> tuple[BisectResult, Written]:
    from graphkit.compare import Tolerance
    from graphkit.verification.bisect.folder import Written, layer_repro
    from graphkit.verification.bisect.locate_faults import bisect_layers

    bind = _values.bindings(given["binds"], given["shapes"], lambda: source)
    inputs = samples(given["inputs"])
    model = source
    if candidate is None and not given["no_optimize"]:
        from graphkit.optimizer import optimize
        from graphkit.registry import Registry

        step("optimizing")
        model = optimize(
            source, "mnn", bind=bind, inputs=inputs, seed=given["seed"], registry=Registry(given["plugins"])
        ).model
        bind = {}
    result = bisect_layers(
        model,
        candidate,
        inputs=inputs,
        seed=given["seed"],
        bind=bind,
        tolerance=_tolerance(given, Tolerance),
        memory=_bytes(given["memory"]),
        timeout=given["timeout"],
        seconds=given["seconds"],
        suggestions=not given["no_suggestions"],
        progress=step,
    )
    if folder is None or result.ok:
        return result, Written(None)

    def whole() -> tuple[Model, Evidence]:
        from graphkit.optimizer import bound_model
        from graphkit.proof import Evidence

        bound = bound_model(model, bind)
        return bound, Evidence.gather(bound, inputs=inputs, seed=given["seed"])

    return result, layer_repro(result, _request(folder, given, step), whole=whole)


def _bytes(text: str) -> int:
    from graphkit.quant.budget import parse_budget

    found = parse_budget(text)
    if found.of != "bytes":
        raise UsageError(f"--memory takes a size, such as 1GB, not '{text}'")
    return int(found.amount)


def _finish(
    report: Report,
    reference: Path,
    result: BisectResult | PassBisectResult,
    written: Written,
    report_file: Path | None,
) -> int:
    from graphkit.report.bisected import show_bisected, to_dict

    code = 0 if result.ok else 1
    data = to_dict(reference, result, written, code)
    report.save(data, report_file)
    show_bisected(report, result, written)
    report.emit(data)
    return code
