"""A second opinion on the reference: the same piece in float64, and in ONNX's own evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._evaluator import Evaluator
from graphkit.errors import GraphkitError
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.verification.bisect.cutting import doubled, doubled_feeds

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

_CLOSER = 0.25  # MNN counts as right when it is so much closer to the second opinion than the reference is


def opinion(model: Model, feeds: Values, name: str, expected: Array, actual: Array) -> str:
    """Why the reference is wrong and MNN right, one line; empty when no second opinion says so.

    model, feeds: a piece of the model and its inputs; name: the value in question, of which onnxruntime says
    `expected` and MNN `actual`.
    """
    for who, ask in (("float64", _in_double), ("ONNX's own evaluator", _in_evaluator)):
        second = _asked(ask, model, feeds, name)
        if second is None or second.size != expected.size or second.size != actual.size:
            continue
        theirs, ours = _distance(second, expected), _distance(second, actual)
        if theirs > 0 and ours <= _CLOSER * theirs:
            return f"{who} agrees with MNN ({ours:.1e}) and not with onnxruntime ({theirs:.1e})"
    return ""


def _asked(ask: Callable[[Model, Values, str], Array], model: Model, feeds: Values, name: str) -> Array | None:
    try:
        return ask(model, feeds, name)
    except (GraphkitError, ValueError, TypeError):  # no kernel, no such type: no opinion
        return None


def _in_double(model: Model, feeds: Values, name: str) -> Array:
    with Session(doubled(model), outputs=[name]) as session:
        return session.run(doubled_feeds(feeds))[name]


def _in_evaluator(model: Model, feeds: Values, name: str) -> Array:
    with Evaluator(model, outputs=[name]) as evaluator:
        return evaluator.run(feeds)[name]


def _distance(one: Array, two: Array) -> float:
    """Largest difference over the first's largest value; infinite where NaN or infinities do not agree."""
    a, b = np.asarray(one, np.float64).reshape(-1), np.asarray(two, np.float64).reshape(-1)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    scale = float(np.abs(a[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale
