"""From a float model to a quantized one: passes first, then codes, then how far the outputs moved.

Passes come first because they fold BatchNormalization and scales into the weights: what is quantized and measured is
then what MNN stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from graphkit.errors import MismatchError
from graphkit.graph import Graph
from graphkit.inputs import usable_inputs
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, OnMismatch, OptimizeResult, Verify, optimize
from graphkit.pipeline import Pipeline
from graphkit.quant import engine
from graphkit.quant._calib_images import ImageSpec
from graphkit.quant.accuracy import Accuracy, accuracy
from graphkit.quant.calibration import Calibration, load_calibration
from graphkit.quant.engine import Progress, QuantizeResult, plan_of
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.plan import PlanFile
from graphkit.quant.search import Search
from graphkit.registry import Registry

Sample = Mapping[str, npt.NDArray[Any]]
Step = Callable[[str], None]

PASSES = "cleanup{freeze_defaults=true},default"  # before quantizing for ONNX: weights must not be inputs
_SHARE, _LEAST, _MOST = 0.15, 4, 32  # of calibration data held back to compare outputs on; of so many; at most


@dataclass(frozen=True)
class Data:
    """Where calibration data come from; see `graphkit.quant.calibration.load_calibration`."""

    path: Path
    tokenizer: Path | None = None
    images: ImageSpec | str | None = None
    limit: int | None = None
    seed: int = 0

    def load(self, model: Model) -> Calibration:
        """The samples. Raises UsageError for data that do not fit the model."""
        return load_calibration(
            self.path, model, tokenizer=self.tokenizer, images=self.images, limit=self.limit, seed=self.seed
        )


@dataclass(frozen=True)
class Job:
    """What to do: settings for all layers, a file of settings, a search for mixed precision, calibration data."""

    options: QuantizeOptions = field(default_factory=QuantizeOptions)
    plan: PlanFile | None = None
    search: Search | None = None
    data: Data | None = None


@dataclass(frozen=True)
class Quantized:
    """A finished job.

    optimized: the passes that came first, None without any. result: the quantized model and its layers. accuracy:
    its outputs against those of the float model. note: what was read as calibration data.
    """

    optimized: OptimizeResult | None
    result: QuantizeResult
    accuracy: Accuracy
    note: str = ""

    @property
    def ok(self) -> bool:
        """True when no pass was rolled back."""
        return self.optimized is None or self.optimized.ok

    @property
    def model(self) -> Model:
        """The quantized model."""
        return self.result.model

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        passes = {} if self.optimized is None else {"optimized": self.optimized.to_dict()}
        return {**passes, **self.result.to_dict(), "accuracy": self.accuracy.to_dict(), "calibration": self.note}


def quantize(
    model: Model | PathLike,
    job: Job | QuantizeOptions | None = None,
    *,
    passes: str | Pipeline | None = PASSES,
    bind: Bindings | None = None,
    verify: Verify = "end",
    inputs: Sequence[Sample] | None = None,
    on_mismatch: OnMismatch = "rollback",
    stop_after: int | None = None,
    registry: Registry | None = None,
    seed: int = 0,
    watch: Any = None,
    step: Step | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Optimize and quantize a model.

    job: what to do, or options for all layers; default 8 bits. passes: the pipeline that comes first, None for none;
    verify, inputs, on_mismatch, stop_after, seed: as in `graphkit.optimize`. step, progress: told what is going on.
    Raises MismatchError when the passes leave other outputs, and what `graphkit.optimize` and
    `graphkit.quant.engine.quantize` raise.
    """
    source = model if isinstance(model, Model) else Model.load(model)
    job = job if isinstance(job, Job) else Job(job or QuantizeOptions())
    optimized = None
    if passes is not None or bind:
        optimized = optimize(
            source, passes or "", bind=bind, verify=verify, inputs=inputs, on_mismatch=on_mismatch,
            stop_after=stop_after, registry=registry, seed=seed, watch=watch,
        )  # fmt: skip
        if not optimized.proof.ok:
            raise MismatchError(
                f"the outputs differ after the passes: {optimized.proof.reason}; nothing was quantized",
                file=source.path, hint="`graphkit bisect MODEL --passes …` names the pass and the rewrite",
            )  # fmt: skip
        source = optimized.model
    data = _loaded(job, source, step)
    plan = plan_of(Graph.of(source), job.options, job.plan)
    used, samples, where = _samples(source, data, inputs, seed)
    result = engine.quantize(source, plan, calibration=used, search=job.search, progress=progress)
    if step is not None:
        step("comparing outputs")
    return Quantized(optimized, result, accuracy(source, result.model, samples, where), data.note if data else "")


def _loaded(job: Job, model: Model, step: Step | None) -> Calibration | None:
    if job.data is None:
        return None
    if step is not None:
        step(f"reading {job.data.path}")
    return job.data.load(model)


def _samples(
    model: Model, data: Calibration | None, inputs: Sequence[Sample] | None, seed: int
) -> tuple[Calibration | None, list[Sample], str]:
    """The data to quantize with, and what outputs are compared on: what is given, or samples that nothing is made from
    or chosen by, where there are enough."""
    if inputs is not None:
        return data, list(inputs[:_MOST]), "given samples"
    if data is None:
        return None, list(usable_inputs(model, Graph.of(model), seed=seed).samples), "random inputs"
    if len(data) < _LEAST:
        return data, list(data.samples), "calibration samples"
    used, held = data.split(min(_SHARE, _MOST / len(data)))
    return used, list(held.samples), "held-back samples"
