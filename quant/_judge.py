"""Choosing settings by forecasts, and measuring what was chosen."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence

from graphkit.errors import UsageError
from graphkit.quant.budget import together
from graphkit.quant.plan import LayerPlan
from graphkit.quant.sensitivity import Sensitivity
from graphkit.quant.setting import Setting
from graphkit.quant.together import Together

Choice = dict[str, Setting]

_ROUNDS = 6
_STEP = 0.98  # of a forecast that did not do, at most, is aimed at next
_CLOSE = 0.9  # of the error that is allowed: near enough

_LOG = logging.getLogger(__name__)


class Judge:
    """Chooses by forecasts, and measures what is chosen.

    entries: layers to choose for. costs: bytes of their settings; fixed: bytes beside them. sensitivity: their errors
    alone. whole: measures choices. settled: settings of other layers that are quantized, too.
    """

    def __init__(
        self,
        entries: Sequence[LayerPlan],
        costs: Mapping[str, Mapping[Setting, int]],
        fixed: int,
        sensitivity: Sensitivity,
        whole: Together,
        settled: Choice,
    ) -> None:
        self.entries, self.costs, self.fixed = entries, costs, fixed
        self.sensitivity, self.whole, self.settled = sensitivity, whole, settled
        self._measured: dict[tuple[Setting, ...], float] = {}

    def within_budget(self, budget: int) -> tuple[Choice, Setting | None]:
        """What the forecast chooses or, if that measures better, one setting for all; and that setting."""
        tried = [self.sensitivity.solve(self.costs, budget=budget, fixed=self.fixed).choice]
        uniform = self._uniform(budget)
        if uniform is not None:
            tried.append(uniform[1])
        return min(tried, key=self.measure), None if uniform is None else uniform[0]

    def within_error(self, allowed: float) -> Choice:
        """The smallest choice whose measured error is `allowed` at most, of those that forecasts lead to."""
        target, upper, best = allowed, math.inf, None
        for step in itertools.count():
            choice = self._cheapest(target)
            error, forecast = self.measure(choice), self.forecast(choice)
            _LOG.info(
                "target %.4g: forecast %.4g, measured %.4g, %d bytes", target, forecast, error, self.bytes(choice)
            )
            if error <= allowed:
                best = choice if best is None else min(best, choice, key=self.bytes)
                if step >= _ROUNDS or error >= allowed * _CLOSE or choice == self._smallest():
                    break
                target = min(target * (allowed / error if error else 2), (target + upper) / 2)
            elif step >= _ROUNDS and best is not None:
                break
            else:
                if forecast == 0 or choice == self._least():
                    raise _unreachable(allowed, error)
                upper = min(upper, forecast)
                target = upper * min(allowed / error, _STEP if step < _ROUNDS else 0.5)
        assert best is not None
        return best

    def measure(self, choice: Choice) -> float:
        """The error of a choice for the searched layers, the settled ones as they are."""
        key = tuple(choice[name] for name in self.costs)
        if key not in self._measured:
            self._measured[key] = self.whole.error({**self.settled, **choice})
        return self._measured[key]

    def bytes(self, choice: Choice) -> int:
        """Bytes of all weights with a choice."""
        return self.fixed + sum(self.costs[name][setting] for name, setting in choice.items())

    def _cheapest(self, target: float) -> Choice:
        """The fewest bytes for a forecast; the least error there is when the forecast cannot be kept."""
        try:
            return self.sensitivity.solve(self.costs, max_error=target, fixed=self.fixed).choice
        except UsageError:
            return self._least()

    def _least(self) -> Choice:
        return {name: min(of, key=of.__getitem__) for name, of in self.sensitivity.errors.items()}

    def _smallest(self) -> Choice:
        return {name: min(of, key=of.__getitem__) for name, of in self.costs.items()}

    def _uniform(self, budget: int) -> tuple[Setting, Choice] | None:
        """The one setting for all layers that the forecast likes best in the budget; tables have what they can."""
        settings = dict.fromkeys(s for of in self.costs.values() for s in of if not s.is_float)
        choices = {setting: self.uniform(setting) for setting in settings}
        fitting = {setting: choice for setting, choice in choices.items() if self.bytes(choice) <= budget}
        if not fitting:
            return None
        return min(fitting.items(), key=lambda item: self.forecast(item[1]))

    def uniform(self, setting: Setting) -> Choice:
        """One setting for all layers, or what is left of it where it does not fit."""
        choice = {}
        for entry in self.entries:
            options = list(self.costs[entry.layer.name])
            fitting = setting.for_channels(entry.layer.channels)
            choice[entry.layer.name] = fitting if fitting in options else options[0]
        return choice

    def forecast(self, choice: Choice) -> float:
        """The error of a choice by what its layers do alone."""
        alone = (self.sensitivity.errors[name][setting] for name, setting in choice.items())
        return together(alone, self.sensitivity.power)


def _unreachable(allowed: float, least: float) -> UsageError:
    return UsageError(
        f"no choice of bits keeps the error at {allowed:g}: the smallest possible is {least:.3g}",
        hint="allow a larger error, more bits, or settle fewer layers",
    )
