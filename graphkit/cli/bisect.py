"""`graphkit bisect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared, _values
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._places import Places
from graphkit.cli._samples import samples
from graphkit.errors import GraphkitError, OutputError, UsageError
from graphkit.report.console import Report, Step

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.model import Model
    from graphkit.proof import Evidence
    from graphkit.verification.bisect._effort import Effort
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
_TRIES = 200  # models that a reduction may try


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
    help="Bytes of reference tensors that are held at once: 500MB, 1.5GiB.",
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
    help="Seconds for all of it: then no experiment begins or goes on, and the answer is what is known by then.",
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
    with report.working(f"loading {reference}"):
        from graphkit.model import Model
        from graphkit.verification.bisect._effort import Effort

        effort = Effort(given["seconds"])
        source = Model.load(reference)
        other = None if candidate is None or candidate.suffix.lower() == ".mnn" else Model.load(candidate)
    read = (source.path, candidate, *source.store.files(), *(other.store.files() if other else ()))
    folder, problem = _checked_places(report_file, output, reference, read, given)
    search = _passes if given["passes"] else _layers
    with report.working(f"bisecting {reference}") as step:
        result, write = search(source, other or candidate, effort, given, step)
        written = _written(result, write, folder, problem, step, effort, given)
    if written.repro is not None:
        report.written.append(written.repro.folder)
    return _finish(report, reference, result, written, report_file)


def _checked_places(
    report_file: Path | None, output: Path | None, reference: Path, read: Sequence[Path | None], given: dict[str, Any]
) -> tuple[Path | None, str]:
    """The repro folder; or None, and why the default place will not do: the answer matters more.

    Raises OutputError when an output would destroy an input, and when the place that was asked for will not do.
    """
    from graphkit.verification.bisect.repro import check_place

    places, folder, problem = Places(), None, ""
    places.read(*read)
    places.samples(given["inputs"])
    places.plugins(given["plugins"])
    if not given["no_repro"]:
        folder = output or reference.with_name(f"{reference.stem}.bisect")
        places.folder(folder, "-o")
        try:
            check_place(folder)
        except OutputError as error:
            if output is not None:
                raise
            folder, problem = None, str(error)
    if report_file is not None:
        places.write(report_file, "--report")
    return folder, problem


def _written(
    result: BisectResult | PassBisectResult,
    write: Callable[[Request], Written],
    folder: Path | None,
    problem: str,
    step: Step,
    effort: Effort,
    given: dict[str, Any],
) -> Written:
    """The folder; whatever goes wrong with it is a note, for the answer is known."""
    from graphkit.verification.bisect.folder import Request, Written

    if result.ok or (folder is None and not problem):
        return Written(None)
    if folder is None:
        return Written(None, f"there is no folder, for {problem}; choose another place with -o")
    tries = effort.with_tries(_TRIES)
    try:
        return write(Request(folder, given["anonymize"], tries, lambda text: step(f"reducing: {text}")))
    except GraphkitError as error:
        return Written(None, f"there is no folder, for {error}")


def _tolerance(given: dict[str, Any], default: Any) -> Tolerance | None:
    return (
        None
        if given["rtol"] is None and given["atol"] is None
        else _values.tolerance(default, given["rtol"], given["atol"])
    )


def _passes(
    source: Model, candidate: Model | Path | None, effort: Effort, given: dict[str, Any], step: Step
) -> tuple[PassBisectResult, Callable[[Request], Written]]:
    from graphkit.compare import Tolerance
    from graphkit.registry import Registry
    from graphkit.verification.bisect.folder import pass_repro
    from graphkit.verification.bisect.passes import Command as Check
    from graphkit.verification.bisect.passes import bisect_passes

    registry = Registry(given["plugins"])
    tolerance = _tolerance(given, Tolerance)
    result = bisect_passes(
        source,
        given["passes"],
        check=None if given["check"] is None else Check.parse(given["check"], timeout=given["timeout"], effort=effort),
        inputs=samples(given["inputs"]),
        seed=given["seed"],
        bind=_values.bindings(given["binds"], given["shapes"], lambda: source),
        tolerance=tolerance,
        plugins=given["plugins"],
        registry=registry,
        effort=effort,
        progress=step,
    )
    return result, lambda request: pass_repro(result, request, registry=registry, tolerance=tolerance)


def _layers(
    source: Model, candidate: Model | Path | None, effort: Effort, given: dict[str, Any], step: Step
) -> tuple[BisectResult, Callable[[Request], Written]]:
    from graphkit.compare import Tolerance
    from graphkit.report.text import parse_size
    from graphkit.verification.bisect.folder import layer_repro
    from graphkit.verification.bisect.locate_faults import bisect_layers

    try:
        memory = parse_size(given["memory"])
    except UsageError as error:
        raise UsageError(f"--memory: {error.message}", hint=error.hint) from error
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
        memory=memory,
        timeout=given["timeout"],
        seconds=effort.left,
        suggestions=not given["no_suggestions"],
        progress=step,
    )

    def whole() -> tuple[Model, Evidence]:
        from graphkit.optimizer import bound_model
        from graphkit.proof import Evidence

        bound = bound_model(model, bind)
        return bound, Evidence.gather(bound, inputs=inputs, seed=given["seed"])

    return result, lambda request: layer_repro(result, request, whole=whole)


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
