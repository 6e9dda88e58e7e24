"""What is concluded of a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphkit.compare import Tolerance
from graphkit.model import Model

Array = npt.NDArray[Any]
Kind = Literal[
    "operator",  # wrong by itself, on right inputs
    "fusion",  # each operator is right, what MNN fuses them into is not
    "layout",  # right values in other places
    "quantization",  # further off than its codes say, or codes worse than rounding
    "nondeterminism",  # MNN or onnxruntime differs from itself
    "reference",  # onnxruntime is wrong
    "file",  # a fresh conversion is right there
    "refused",  # MNN does not take it
    "crash",  # MNN dies of it, or does not end
    "model",  # the candidate is an ONNX model that computes something else
    "unexplained",  # no piece shows it
]
Alone = Literal["right", "wrong", "fails", "not tried"]

_FURTHER = 10.0  # times the error of sorted values


@dataclass(frozen=True)
class Witness:
    """A small model that shows a fault by itself: with these inputs MNN does not compute these outputs."""

    model: Model
    feeds: dict[str, Array]
    expected: dict[str, Array]
    tolerance: Tolerance


@dataclass(frozen=True)
class Conclusion:
    """What is at fault and why that is known.

    node, op, tensor: the ONNX node, its operator, and its value that is wrong. kind: see `Kind`. nodes: all
    that it takes to show the fault, in order. error: largest error over max_ref, the reference's largest value, NaN
    when it has no size. alone: how `node` fares by itself on reference inputs. into: the MNN operator that it was
    fused into, where that is known. place: the graph it is in, "" for the main one. reason: one line.
    """

    node: str
    op: str
    tensor: str
    kind: Kind
    nodes: tuple[str, ...]
    alone: Alone
    error: float = float("nan")
    max_abs: float = float("nan")
    max_ref: float = float("nan")
    into: str = ""
    place: str = ""
    reason: str = ""
    note: str = ""
    witness: Witness | None = None


def rearranged(expected: Array, actual: Array, tolerance: Tolerance) -> bool:
    """True when `actual` holds the values of `expected`, all of them, in other places or another shape.

    Noise is no other place: the values where they stand must be far further off than the sorted ones.
    """
    if expected.size != actual.size or expected.size < 2 or expected.dtype.kind not in "fiub":
        return False
    one, two = (np.sort(np.asarray(array, np.float64), axis=None) for array in (expected, actual))
    if one[0] == one[-1] or not np.isfinite(one).all() or not np.isfinite(two).all():
        return False
    allowed = max(tolerance.rtol * float(np.abs(one).max()), tolerance.atol)
    moved = np.abs(expected.astype(np.float64).reshape(-1) - actual.astype(np.float64).reshape(-1)).max()
    return bool(np.abs(one - two).max() <= min(allowed, moved / _FURTHER))
