"""Optimize a model: resolve the pipeline, run it, prove that the outputs are still the original's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from graphkit._baseline import Baseline
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, ModelError, OutputError, PassError, UsageError
from graphkit.graph import Graph
from graphkit.manager import FixpointStage, Manager, PassRecord, PassStage, RunReport, Stage
from graphkit.model import Model, PathLike
from graphkit.passes._bindings import resolve
from graphkit.pipeline import Pipeline
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.registry import Registry
from graphkit.structure import invalid_node
from graphkit.tolerances import default_tolerance

Verify = Literal["none", "end", "each"]
OnMismatch = Literal["rollback", "stop"]
Bindings = Mapping[str, int | str | Sequence[int]]


@dataclass(frozen=True)
class OptimizeResult:
    """The optimized model, what each pass did, and the proof; `pipeline` is the text that was run."""

    model: Model
    pipeline: str
    report: RunReport
    proof: Proof
    evidence: Evidence | None = None

    @property
    def ok(self) -> bool:
        """True when nothing was rolled back and no output differs."""
        return self.proof.ok and not self.report.rolled_back

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        report = self.report
        return {
            "pipeline": self.pipeline,
            "nodes": {"before": report.nodes_before, "after": report.nodes_after},
            "rewrites": report.rewrites,
            "passes": [_record_dict(record) for record in report.records],
            "proof": self.proof.to_dict(),
        }


def _record_dict(record: PassRecord) -> dict[str, Any]:
    return {
        "pass": record.name,
        "text": record.text,
        "status": record.status,
        "rewrites": record.rewrites,
        "numbers": [list(pair) for pair in record.numbers],
        "nodes": {"before": record.nodes_before, "after": record.nodes_after},
        "rounds": [list(pair) for pair in record.rounds],
        "seconds": round(record.seconds, 6),
        "max_error": record.max_error,
        "reason": record.reason,
        "counters": dict(record.counters),
        "refusals": [vars(refusal) for refusal in record.refusals],
        "notes": list(record.notes),
    }


def optimize(
    model: Model | PathLike,
    passes: str | Pipeline = "default",
    *,
    bind: Bindings | None = None,
    verify: Verify = "end",
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    on_mismatch: OnMismatch = "rollback",
    stop_after: int | None = None,
    plugins: Iterable[str] = (),
    registry: Registry | None = None,
    watch: Callable[[PassRecord, Graph], None] | None = None,
    crash_dir: Path | None = None,
) -> OptimizeResult:
    """Run passes over a model and verify that its outputs stay equal.

    passes: pipeline text or a preset. bind: sizes for named dims (`batch`), single dims (`x[0]`) or whole
    inputs (`x` with a list of sizes). verify: "end" compares the outputs once, "each" after every pass and
    undoes one that breaks them, "none" only checks the structure. When "end" finds a difference, the run is
    repeated with "each", so that the pass at fault is named and undone. inputs: samples by input name;
    random ones otherwise, of two shapes where dims are dynamic. A result that is not `ok` was rolled back in
    part. The given model is not changed.

    Raises UsageError for unknown names, options or bindings, ModelError for a bad model, PassError for a pass
    that raises or breaks the graph (ModelError when onnxruntime does not run the model either).
    """
    _check_arguments(verify, on_mismatch, stop_after, inputs)
    model = model if isinstance(model, Model) else Model.load(model)
    registry = registry or Registry(plugins)
    stages = [*_bind_stage(bind, registry), *registry.stages(passes)]
    graph = Graph.of(model)
    tolerance = tolerance or default_tolerance(graph)
    evidence, excuse = (None, "not asked for")
    if verify != "none":
        evidence, excuse = gather(model, _bindings(stages), inputs, seed)
    manager = Manager(
        graph,
        on_mismatch=on_mismatch,
        stop_after=stop_after,
        watch=watch,
        crash_dir=crash_dir,
        plugins=registry.plugins,
    )
    baseline = Baseline(evidence, excuse, tolerance, lambda moved: gather(moved, None, inputs, seed))
    try:
        report = _run(manager, stages, baseline, each=verify == "each")
    except PassError as error:
        why = excuse if verify != "none" else gather(model, _bindings(stages), inputs, seed)[1]
        if not why or any(part in why for part in _LACKS):
            raise
        hint = f"what the pass saw is in {error.reproducer}" if error.reproducer else None
        raise ModelError(f"{error.message}; and {why}", file=model.path, hint=hint) from error
    result = graph.to_model()
    proof = baseline.prove(result)
    if not proof.ok and verify == "end":
        graph = Graph.of(model)
        baseline = replace(baseline, evidence=evidence, broken=[])
        report = _run(replace(manager, graph=graph, watch=None), stages, baseline, each=True)
        result = graph.to_model()
        proof = baseline.prove(result)
    return OptimizeResult(result, ",".join(map(str, stages)), report, proof, baseline.evidence)


# What onnxruntime says of operators that it lacks: that says nothing about the model.
_LACKS = ("is not a registered function/op", "No Op registered", "Could not find an implementation", "No opset import")


def _run(manager: Manager, stages: list[Stage], baseline: Baseline, *, each: bool) -> RunReport:
    """Run the stages; what can be judged is: after each pass if asked, and where values change on purpose."""
    useful = baseline.evidence is not None and not baseline.evidence.worthless
    manager.verify = baseline.judge if each and useful else None
    manager.rebase = baseline.rebase if useful else None
    return manager.run(stages)


def _check_arguments(verify: str, on_mismatch: str, stop_after: int | None, inputs: Sequence[Feeds] | None) -> None:
    for name, value, choices in (("verify", verify, Verify), ("on_mismatch", on_mismatch, OnMismatch)):
        if value not in get_args(choices):
            raise UsageError(f"{name} is one of {', '.join(get_args(choices))}, not {value!r}")
    if stop_after is not None and stop_after < 0:
        raise UsageError(f"stop_after counts rewrites from 0, not {stop_after}")
    if inputs is not None and (isinstance(inputs, Mapping) or not inputs):
        raise UsageError("inputs is a list of samples, each a mapping from input name to array, and not empty")


def _bind_stage(bind: Bindings | None, registry: Registry) -> list[Stage]:
    if not bind:
        return []
    dims = tuple((name, _size_text(size)) for name, size in bind.items())
    cls = registry.get("static-shapes").load()
    text = ",".join(f'"{name}"="{size}"' for name, size in dims)
    return [PassStage(cls(dims=dims), f"static-shapes{{{text}}}")]


def _bindings(stages: Iterable[Stage]) -> dict[str, int | str | Sequence[int]]:
    """All sizes that static-shapes will bind: the original is compared at these."""
    found: dict[str, int | str | Sequence[int]] = {}
    for stage in stages:
        if isinstance(stage, FixpointStage):
            found.update(_bindings(stage.stages))
        elif stage.pass_.name == "static-shapes":
            found.update(getattr(stage.pass_, "dims", ()))
    return found


def _size_text(size: int | str | Sequence[int]) -> str:
    return str(size) if isinstance(size, int | str) else "x".join(map(str, size))


def gather(
    model: Model, bind: Bindings | None, inputs: Sequence[Feeds] | None, seed: int
) -> tuple[Evidence | None, str]:
    """Reference outputs of a model with its dims bound, or None and why there are none.

    Raises UsageError when given inputs do not fit, a binding does not exist or leaves a model that does not run;
    ModelError when the model is not valid ONNX; OutputError when there is no room for temporary files.
    """
    reference = bound_model(model, bind)
    try:
        return Evidence.gather(reference, inputs=inputs, seed=seed), ""
    except (UsageError, OutputError):
        raise
    except GraphkitError as error:
        if fault := invalid_node(Graph.of(model)):
            raise ModelError(f"is not valid ONNX: {fault}", file=model.path or "model") from error
        if bind and inputs is None and gather(model, None, None, seed)[0] is not None:
            sizes = ", ".join(f"{name}={_size_text(size)}" for name, size in bind.items())
            raise UsageError(f"the model does not run with {sizes}: {error.message}", node=error.node) from error
        where = f" (node '{error.node}')" if error.node and f"'{error.node}'" not in error.message else ""
        return None, f"the original does not run in onnxruntime: {error.message}{where}"


def bound_model(model: Model, bind: Bindings | None) -> Model:
    """The model with other input shapes and nothing else changed; declared shapes inside it are dropped."""
    if not bind:
        return model
    graph = Graph.of(model)
    bindings = resolve(graph, tuple((name, _size_text(size)) for name, size in bind.items()))
    for value, type_ in bindings.types.items():
        graph.set_input_type(value, type_)
    for inner in graph.walk():
        inner.declared.clear()
    bound = graph.to_model()
    for info in bound.proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    return bound
