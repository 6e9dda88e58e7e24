"""A budget in bytes, or a largest error, solved into one choice per layer.

`parse_budget` reads what users write (`12MB`, `60%`); `solve` is a pure function over a table of costs and errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from graphkit.errors import UsageError
from graphkit.quant import _knapsack

C = TypeVar("C", bound=Hashable)

_UNITS = {
    "B": 1,
    **{f"{p}B": 1000**n for n, p in enumerate("KMG", 1)},
    **{f"{p}iB": 1024**n for n, p in enumerate("KMG", 1)},
}
_UNIT_NAMES = {unit.lower(): size for unit, size in _UNITS.items()}
_TEXT = re.compile(r"\s*(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>[A-Za-z]+|%)?\s*(?:of\s+(?P<base>\w+))?\s*")
_MOST = 1e18  # of any unit
_EXAMPLES = "examples: 12MB, 12.5MiB, 60% (of the float weights' bytes), '60% of w8'"


@dataclass(frozen=True)
class Budget:
    """Bytes that all weights may take, those that stay float included: a number, or a share of what they take
    as float32 (`float`) or with 8 bits and one scale per row (`w8`)."""

    amount: float
    of: Literal["bytes", "float", "w8"] = "bytes"

    def resolve(self, float_bytes: int, w8_bytes: int) -> int:
        """The budget in bytes for a model whose weights take these bytes as float and with 8 bits."""
        if self.of == "bytes":
            return int(self.amount)
        return int(self.amount * (float_bytes if self.of == "float" else w8_bytes))

    def __str__(self) -> str:
        if self.of == "bytes":
            return size_text(self.amount)
        return f"{self.amount * 100:g}%{' of w8' if self.of == 'w8' else ''}"


def parse_budget(text: str) -> Budget:
    """A budget from text: `12MB` (10^6), `12.5MiB` (2^20), `60%` of the float weights' bytes, `60% of w8`.

    Raises UsageError for anything else, 0 included.
    """
    found = _TEXT.fullmatch(text)
    unit = (found["unit"] or "").lower() if found else ""
    if found is None or (unit != "%" and unit not in _UNIT_NAMES):
        missing = ": give a unit" if found is not None and not unit else ""
        raise UsageError(f"'{text}' is not a budget{missing}", hint=_EXAMPLES)
    number, base = float(found["number"]), (found["base"] or "").lower()
    if number <= 0:
        raise UsageError(f"a budget is more than 0, not '{text}'", hint=_EXAMPLES)
    if number > _MOST:
        raise UsageError(f"'{text[:20]}…' is no budget that any memory has", hint=_EXAMPLES)
    if unit != "%" and not base:
        return Budget(number * _UNIT_NAMES[unit])
    if unit != "%" or base not in ("", "float", "w8"):
        raise UsageError(f"'{text}' is not a budget: percent are of 'float' or of 'w8'", hint=_EXAMPLES)
    return Budget(number / 100, "w8" if base == "w8" else "float")


@dataclass(frozen=True)
class Solution(Generic[C]):
    """One choice per layer; `bytes` is what all weights take then, `error` the layers' errors together.

    `bound` is a value that no choice can go below: of `error` under a budget, of `bytes` under a largest error.
    `exact` says that the choice reaches the smallest possible value.
    """

    choice: dict[str, C]
    bytes: int
    error: float
    bound: float
    exact: bool


def solve(
    costs: Mapping[str, Mapping[C, int]],
    errors: Mapping[str, Mapping[C, float]],
    *,
    budget: int | None = None,
    max_error: float | None = None,
    fixed: int = 0,
    power: int = 1,
) -> Solution[C]:
    """The choice per layer with the least total error in `budget` bytes, or with the fewest bytes for `max_error`.

    `costs` and `errors` hold bytes and error of every choice a layer has; choices whose error is not finite are never
    taken. Errors add up over layers in their `power`: (Σ errorᵖ)^(1/p) is the error of all. `fixed` is bytes that no
    choice changes: they count. Raises
    UsageError when no choice is good enough, saying the smallest possible, and when not exactly one of `budget`
    and `max_error` is given.
    """
    if (budget is None) == (max_error is None):
        raise UsageError("either a budget or a largest error decides the bits, not both")
    table = {layer: [c for c in of_layer if c in errors.get(layer, {})] for layer, of_layer in costs.items()}
    for layer, options in table.items():
        if not any(math.isfinite(errors[layer][c]) for c in options):
            raise UsageError(
                f"no setting of layer '{layer}' has a finite error", hint=f"--skip '{layer}' keeps it float"
            )
    sizes = [np.array([float(costs[layer][c]) for c in options]) for layer, options in table.items()]
    faults = [np.array([_raised(errors[layer][c], power) for c in options]) for layer, options in table.items()]
    try:
        if budget is not None:
            answer = _knapsack.choose(faults, sizes, float(budget - fixed))
        else:
            assert max_error is not None
            answer = _knapsack.choose(sizes, faults, _raised(max_error, power))
    except _knapsack.Impossible as impossible:
        least = impossible.least if max_error is None else root(impossible.least, power)
        raise _impossible(least, budget, max_error, fixed) from impossible
    choice = {layer: options[pick] for (layer, options), pick in zip(table.items(), answer.options, strict=True)}
    total = fixed + sum(costs[layer][c] for layer, c in choice.items())
    error = together((errors[layer][c] for layer, c in choice.items()), power)
    # Sums in another order differ in the last digit.
    bound = min(root(answer.bound, power), error) if max_error is None else min(answer.bound + fixed, total)
    return Solution(choice, total, error, bound, answer.exact)


def together(errors: Iterable[float], power: int) -> float:
    """The error of all layers together, foreseen from the errors of each: (Σ errorᵖ)^(1/p)."""
    return root(math.fsum(_raised(error, power) for error in errors), power)


def root(error: float, power: int) -> float:
    """The p-th root of a sum of powers; below 0, where only a bound can be, 0."""
    return max(error, 0.0) ** (1 / power) if power > 1 else error


def _raised(error: float, power: int) -> float:
    return math.prod([float(error)] * power)  # ** raises where this is infinite


def size_text(count: float) -> str:
    """Bytes for people: `12.3 MB`."""
    for unit, power in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= power:
            return f"{count / power:.4g} {unit}"
    return f"{count:.0f} B"


def _impossible(least: float, budget: int | None, max_error: float | None, fixed: int) -> UsageError:
    if budget is None:
        return UsageError(
            f"no choice of bits keeps the error at {max_error:g}: the smallest possible is {least:.3g}",
            hint="allow a larger error, more bits, or layers that stay float",
        )
    smallest = math.ceil(least) + fixed
    kept = f", of which {size_text(fixed)} stay float" if fixed else ""
    return UsageError(
        f"a budget of {size_text(budget)} is impossible: the smallest possible is {size_text(smallest)} "
        f"({smallest} bytes{kept})",
        hint="raise the budget, allow fewer bits or larger blocks, or quantize the embeddings too",
    )
