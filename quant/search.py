"""Mixed precision: bits for each layer by measured sensitivity, for a budget of bytes or a largest error.

The sum of what layers do alone is only a forecast. So what is chosen is measured as a whole, beside the best single
setting for all layers, which it must beat; and for a largest error the forecast's target is moved until the
measured error keeps it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.quant._judge import Choice, Judge
from graphkit.quant._planned import PlannedMethods
from graphkit.quant._sizes import Sizes, costs_of, sizes_of
from graphkit.quant.budget import Budget
from graphkit.quant.cache import Cache, digest
from graphkit.quant.calibration import Calibration
from graphkit.quant.codes import MAX_BITS, Codes
from graphkit.quant.engine import MEMORY, Chosen, with_data
from graphkit.quant.layers import Layer
from graphkit.quant.metric import Function, Metric
from graphkit.quant.plan import Plan
from graphkit.quant.sensitivity import Sensitivity, measure, settings_for
from graphkit.quant.setting import FLOAT, Setting
from graphkit.quant.together import Together

Sample = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[int, int, str], None]

BITS = (3, 4, 5, 6, 8)
_WIDE_BLOCK = 128
_SAMPLES = 32  # that errors are measured on, at most
_SETTLED = ("rule", "search")  # reasons of a plan that a search may overrule


@dataclass(frozen=True)
class Found:
    """What a search found.

    plan: with a setting for each layer. bytes: of all weights in a .mnn file, those that stay float included; sizes:
    what they are compared with. forecast: of the error from the layers' sensitivities; measured: the error of all
    layers together, on samples held out from the methods' data. uniform: the best setting that is the same for all
    layers and keeps the budget, with its measured error; None when there is none. codes: those that were measured,
    where an error is to be kept: codes of more data would be others. note: what was measured on what.
    """

    plan: Plan
    bytes: int
    sizes: Sizes
    forecast: float
    measured: float
    sensitivity: Sensitivity
    uniform: tuple[Setting, float] | None = None
    codes: Mapping[str, Codes] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "bytes": self.bytes,
            "float_bytes": self.sizes.float_bytes,
            "w8_bytes": self.sizes.w8_bytes,
            "fixed_bytes": self.sizes.fixed,
            "forecast": self.forecast,
            "measured": self.measured,
            "uniform": None if self.uniform is None else {"setting": str(self.uniform[0]), "measured": self.uniform[1]},
            "sensitivity": self.sensitivity.to_dict(),
        }


@dataclass(frozen=True)
class Search:
    """A search for bits per layer, ready to be given to `graphkit.quant.engine.quantize`.

    budget: bytes of all weights, or max_error: the largest value of the metric, or min_metric: 1 − max_error (the
    least cosine); one of them. bits, blocks: to choose from, with the plan's symmetry; or settings, which say all.
    Without blocks, the plan's, and where that is not 0 also 128 and 0: scales of small blocks cost as much as bits
    that help more (one float for 32 weights: one bit). Float is chosen from, too, where an error is to be kept.
    metric, executor, cache: as in `measure`. samples: how many errors are measured on at most. held_share: of the
    calibration data that errors are measured on, and codes not made from. memory: bytes for Hessians at a time.
    Layers that the user settled (`--layers`, `--skip`, a plan file) keep what they have, and count.
    Raises UsageError unless one of the three is given.
    """

    budget: Budget | None = None
    max_error: float | None = None
    min_metric: float | None = None
    bits: tuple[int, ...] = BITS
    blocks: tuple[int, ...] = ()
    settings: tuple[Setting, ...] = ()
    metric: Metric | str | Function = "relative-l2"
    executor: Executor | str | None = None
    cache: Cache | None = None
    samples: int = _SAMPLES
    held_share: float = 0.3
    progress: Progress | None = None
    memory: int = MEMORY

    def __post_init__(self) -> None:
        if sum(limit is not None for limit in (self.budget, self.max_error, self.min_metric)) != 1:
            raise UsageError("a search has one aim: a budget, a largest error, or a least metric")
        allowed = self.allowed
        if allowed is not None and not 0 <= allowed < math.inf:
            raise UsageError("an error is 0 or more, and a least metric 1 at most (1: nothing changes)")
        for bits, block in itertools.product(self.bits, self.blocks or (0,)):
            Setting(bits, block)
        if self.samples < 1 or not self.bits:
            raise UsageError("a search needs a sample at least, and bits to choose from")

    @property
    def allowed(self) -> float | None:
        """The largest error, when the aim is one."""
        return self.max_error if self.min_metric is None else 1 - self.min_metric

    def __call__(self, model: Model, plan: Plan, data: Calibration | None) -> Chosen:
        """What was found, for the engine."""
        found = self.find(model, plan, data)
        return Chosen(found.plan, found.codes, found.note)

    def find(self, model: Model, plan: Plan, data: Calibration | None) -> Found:
        """Search. Raises UsageError without calibration data, and when the aim cannot be reached, and what
        `measure` raises."""
        if not data or not data.samples:
            raise UsageError("a search measures errors on samples, and there are none", hint="give some with --calib")
        return _Run(self, model, plan, data).find()


class _Run:
    """One search on one model."""

    def __init__(self, search: Search, model: Model, plan: Plan, data: Calibration) -> None:
        self.search, self.model, self.plan = search, model, plan
        self.entries = [entry for entry in plan.layers if entry.why.startswith(_SETTLED) and not entry.setting.is_float]
        if not self.entries:
            raise UsageError("every layer is settled; there is nothing to search", hint="leave some to the search")
        self.layers = [entry.layer for entry in self.entries]
        self.settings = settings_for(self.layers, self._candidates())
        self.costs = costs_of(self.entries, self.settings)
        self.sizes = sizes_of(model, plan, self.entries)
        self.seen, held = data.split(search.held_share)
        self.held = bool(held.samples)
        self.samples: list[Sample] = list((held.samples or data.samples)[: search.samples])
        self.budget: int | None = None
        if search.budget is not None:
            self.budget = search.budget.resolve(self.sizes.float_bytes, self.sizes.w8_bytes)
            self._check_budget(self.budget)

    def find(self) -> Found:
        """Measure layers, choose, measure the choice."""
        plan, search = self.plan, self.search
        names = {entry.layer.name: entry.method for entry in plan.layers}
        halved = frozenset(entry.layer.name for entry in plan.layers if entry.scales == "float16")
        how: dict[str, Any] = {
            "method": PlannedMethods(names, plan.damping, plan.act_order, digest(self.seen.samples), halved),
            "hessians": self._fed,
            "metric": search.metric,
            "executor": search.executor,
            "progress": search.progress,
            "memory": search.memory // 2,
        }
        sensitivity = measure(self.model, self.layers, self.samples, self.settings, cache=search.cache, **how)
        everything = [entry.layer for entry in plan.layers]
        with Together(self.model, everything, self.samples, **how) as whole:
            judge = Judge(self.entries, self.costs, self.sizes.fixed, sensitivity, whole, self._settled())
            uniform: Setting | None = None
            if self.budget is not None:
                choice, uniform = judge.within_budget(self.budget)
            else:
                choice = judge.within_error(search.allowed or 0.0)
            alone = {name: sensitivity.errors[name][setting] for name, setting in choice.items()}
            measured = judge.measure(choice)
            return Found(
                plan=plan.with_settings(choice, "search", alone),
                bytes=judge.bytes(choice),
                sizes=self.sizes,
                forecast=judge.forecast(choice),
                measured=measured,
                sensitivity=sensitivity,
                uniform=None if uniform is None else (uniform, judge.measure(judge.uniform(uniform))),
                codes={} if search.allowed is None else whole.codes({**self._settled(), **choice}),
                note=self._note(sensitivity.metric, measured),
            )

    def _note(self, metric: str, measured: float) -> str:
        """What was measured on what."""
        count = f"{len(self.samples)} sample{'s' * (len(self.samples) > 1)}"
        where = f"{count} that the codes were {'not ' * self.held}made from"
        allowed = "" if self.search.allowed is None else f", {self.search.allowed:g} allowed,"
        remade = self.budget is not None and self.held and any(e.method == "gptq" for e in self.plan.layers)
        more = "; those written are made from these, too" if remade else ""
        return f"{metric} error {measured:.2g}{allowed} on {where}{more}"

    def _settled(self) -> Choice:
        """Settings that the search does not touch, of layers that are quantized."""
        settled = [e for e in self.plan.layers if e.layer.name not in self.costs and not e.setting.is_float]
        return {entry.layer.name: entry.setting for entry in settled}

    def _candidates(self) -> dict[str, list[Setting]]:
        """Settings to choose from, by layer."""
        found = {}
        for entry in self.entries:
            tried = list(self.search.settings) or self._grid(entry.setting)
            if self.search.allowed is not None:
                tried.append(FLOAT)
            found.update(settings_for([entry.layer], tried))
        return found

    def _grid(self, setting: Setting) -> list[Setting]:
        """All bits with all blocks; 8 bits, where scales matter least, with the largest alone, unless all have 8."""
        blocks = self.search.blocks or ((0, _WIDE_BLOCK, setting.block) if setting.block else (0,))
        largest = 0 if 0 in blocks else max(blocks)
        return [
            Setting(bits, block, setting.symmetric)
            for bits in sorted(set(self.search.bits))
            for block in dict.fromkeys(blocks)
            if bits < MAX_BITS or block == largest or min(self.search.bits) == MAX_BITS
        ]

    def _check_budget(self, budget: int) -> None:
        """Refuse an impossible budget before anything is measured."""
        zero = {name: dict.fromkeys(of, 0.0) for name, of in self.costs.items()}
        Sensitivity("", 1, 0, zero).solve(self.costs, budget=budget, fixed=self.sizes.fixed)

    def _fed(self, layers: Sequence[Layer]) -> Iterator[tuple[Layer, Any]]:
        """What layers are fed with, for those whose method asks for it."""
        names = {layer.name for layer in layers}
        needy = [entry for entry in self.plan.layers if entry.layer.name in names and entry.method == "gptq"]
        if needy:
            for entry, data in with_data(self.model, needy, self.seen, self.search.memory // 2):
                yield entry.layer, data
