"""How far a model's outputs moved: one number, 0 where they are the same.

Errors of layers that are quantized one at a time are added up to foresee the error of all together. Independent
small changes add up in their squares, so `relative-l2` is added squared; 1 − cosine is a square already.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import UsageError

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Function = Callable[[Outputs, Outputs], float]

_EXAMPLES = "examples: relative-l2, cosine, cosine:logits (one output), my_metric.py:function, package.module:function"
_ALL_WRONG = 1.0  # the error of outputs that are zero where they should not be, or of another shape


def relative_l2(expected: Array, actual: Array) -> float:
    """‖actual − expected‖ / ‖expected‖ over the positions where `expected` is finite.

    Infinite when `actual` is not finite at one of them; 1 for another shape, and where all should be 0 and is not.
    """
    pair = _comparable(expected, actual)
    if isinstance(pair, float):
        return pair
    with np.errstate(over="ignore"):
        size, error = np.linalg.norm(pair[0]), np.linalg.norm(pair[1] - pair[0])
    if size == 0:
        return _ALL_WRONG if error else 0.0
    return float(error / size)


def cosine_distance(expected: Array, actual: Array) -> float:
    """1 − cosine of the angle between the two as vectors, with the exceptions of `relative_l2`."""
    pair = _comparable(expected, actual)
    if isinstance(pair, float):
        return pair
    one, two = np.linalg.norm(pair[0]), np.linalg.norm(pair[1])
    if one == 0 or two == 0:
        return 0.0 if one == two else _ALL_WRONG
    # Of unit vectors ‖a − b‖² = 2 − 2·cos, which keeps digits that 1 − cos loses.
    return float(np.sum((pair[0] / one - pair[1] / two) ** 2) / 2)


_BUILTIN: Mapping[str, tuple[Callable[[Array, Array], float], int]] = {
    "relative-l2": (relative_l2, 2),
    "cosine": (cosine_distance, 1),
}


@dataclass(frozen=True)
class Metric:
    """A distance between the outputs of two models on the same samples.

    name: `relative-l2` or `cosine`, or the name of a function of the user. outputs: names of the outputs that count,
    all when empty. The value is the mean over samples (of squares for relative-l2, whose root is then taken), of the
    output that is worst. A function takes the expected and the actual outputs of one sample by name and returns a
    distance, 0 for equal; its values are averaged over samples.
    """

    name: str = "relative-l2"
    outputs: tuple[str, ...] = ()
    function: Function | None = None
    source: str | None = None

    @classmethod
    def parse(cls, text: str) -> Metric:
        """A metric from text: `cosine`, `cosine:output,other`, `file.py:function` or `module:function`.

        Raises UsageError for other text, and for functions that are not there.
        """
        name, _, rest = text.partition(":")
        if name in _BUILTIN:
            return cls(name, tuple(output.strip() for output in rest.split(",")) if rest else ())
        place, _, attribute = text.rpartition(":")
        if not place or not attribute.isidentifier():
            raise UsageError(f"'{text}' is no metric", hint=_EXAMPLES)
        metric = cls(attribute, source=_read(Path(place))) if place.endswith(".py") else cls(text)
        metric._resolved()
        return metric

    @classmethod
    def of(cls, metric: Metric | str | Function) -> Metric:
        """A metric from what a caller may give: itself, its text, or a function."""
        if isinstance(metric, Metric):
            return metric
        if isinstance(metric, str):
            return cls.parse(metric)
        return cls(getattr(metric, "__qualname__", type(metric).__name__), function=metric)

    @property
    def power(self) -> int:
        """The power in which errors of layers add up: 2 for relative-l2, 1 else."""
        return _BUILTIN[self.name][1] if self.is_builtin else 1

    @property
    def is_builtin(self) -> bool:
        """True for the metrics that graphkit brings."""
        return self.function is None and self.source is None and self.name in _BUILTIN

    def identity(self) -> str:
        """What the values depend on, for a cache; of a function its code. New each time when that cannot be read."""
        if self.is_builtin:
            return f"{self.name}:{','.join(self.outputs)}"
        code = self.source
        if code is None:
            try:
                code = inspect.getsource(inspect.getmodule(self._resolved()) or self._resolved())
            except (OSError, TypeError):
                code = uuid.uuid4().hex
        return f"{self.name} {hashlib.sha256(code.encode()).hexdigest()}"

    def distance(self, expected: Sequence[Outputs], actual: Sequence[Outputs]) -> float:
        """The distance over all samples; infinite when an output is NaN or infinite where it should not be.

        Raises UsageError for outputs that the model does not have, and when a user's function fails.
        """
        if not self.is_builtin:
            return self._call(expected, actual)
        measure, power = _BUILTIN[self.name]
        worst = 0.0
        for name in self._counted(expected[0]):
            distances = [measure(one[name], two[name]) for one, two in zip(expected, actual, strict=True)]
            values = [math.prod([distance] * power) for distance in distances]  # ** raises where this is infinite
            worst = max(worst, math.fsum(values) / len(values))
        return float(worst ** (1 / power))

    def check(self, outputs: Outputs) -> None:
        """Raise UsageError when the outputs of a model are not what this metric needs."""
        if self.is_builtin:
            self._counted(outputs)

    def _counted(self, outputs: Outputs) -> list[str]:
        """The outputs that count: those named, else the floating-point ones, else all."""
        for name in self.outputs:
            if name not in outputs:
                raise UsageError(f"the model has no output '{name}'", hint=f"outputs: {', '.join(outputs)}")
        if self.outputs:
            return list(self.outputs)
        return [name for name, array in outputs.items() if array.dtype.kind == "f"] or list(outputs)

    def _call(self, expected: Sequence[Outputs], actual: Sequence[Outputs]) -> float:
        function = self._resolved()
        try:
            values = [float(function(one, two)) for one, two in zip(expected, actual, strict=True)]
        except Exception as error:
            raise UsageError(f"the metric '{self.name}' failed: {type(error).__name__}: {error}") from error
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf

    def _resolved(self) -> Function:
        if self.function is not None:
            return self.function
        attribute = self.name.rpartition(":")[2]
        found = _imported(self.name) if self.source is None else _executed(self.source).get(attribute)
        if not callable(found):
            raise UsageError(f"there is no function '{attribute}' where the metric should be", hint=_EXAMPLES)
        function: Function = found
        return function

    def __str__(self) -> str:
        return f"{self.name}:{','.join(self.outputs)}" if self.outputs else self.name


def _comparable(expected: Array, actual: Array) -> tuple[Array, Array] | float:
    """Both as float64 vectors of what can be compared, or the verdict when they cannot be."""
    if expected.shape != actual.shape:
        return _ALL_WRONG
    if expected.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(expected, actual) else _ALL_WRONG
    one, two = expected.reshape(-1).astype(np.float64), actual.reshape(-1).astype(np.float64)
    finite = np.isfinite(one)
    if not finite.all():
        one, two = one[finite], two[finite]
    return (one, two) if np.isfinite(two).all() else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the metric cannot be read: {error}", file=path) from error


def _executed(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "graphkit_metric"}
    try:
        exec(compile(source, "metric", "exec"), names)
    except Exception as error:
        raise UsageError(f"the metric's file does not run: {type(error).__name__}: {error}") from error
    return names


def _imported(text: str) -> Any:
    module, _, attribute = text.rpartition(":")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UsageError(f"the metric's module cannot be imported: {error}", hint=_EXAMPLES) from error
