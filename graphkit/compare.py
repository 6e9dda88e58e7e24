"""Judge computed outputs against a reference, output by output.

The gate is the largest absolute error over the reference's largest absolute value. Cosine and relative L2
are reported; they hide faults that touch few elements (uniform attention still gave a cosine of 1.000000),
so cosine decides only when asked to, in addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._measure import Stats, kind_of, measure
from graphkit.errors import UsageError

Array = npt.NDArray[Any]
Ties = Mapping[str, tuple[Array, int]]

_ALMOST_INFINITE = 1e30  # sums in another order overflow there
_BY_FLOOR = "right only by atol"
_EMPTY = "no elements"
_NOT_FINITE = "the reference has no finite value, and NaN"


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal for floating-point outputs.

    An output is right when its largest absolute error is at most `rtol` times the reference's largest
    absolute value, or at most `atol` (so that noise around zeros is no fault), and, when `min_cosine` is
    set, its cosine is no less. Integers and booleans must be equal.
    """

    rtol: float = 1e-3
    atol: float = 1e-6
    min_cosine: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.rtol < math.inf and 0 <= self.atol < math.inf):  # NaN is not either
            raise UsageError(f"tolerances are finite and not negative: rtol {self.rtol}, atol {self.atol}")
        if self.min_cosine is not None and not 0 <= self.min_cosine <= 1:
            raise UsageError(f"min_cosine is 0 to 1, not {self.min_cosine}")

    def to_dict(self) -> dict[str, float | None]:
        """The three numbers by name."""
        return {"rtol": self.rtol, "atol": self.atol, "min_cosine": self.min_cosine}


@dataclass(frozen=True)
class OutputComparison:
    """The verdict on one output.

    max_abs: largest absolute error; max_ref: largest absolute value of the reference; max_error: max_abs
    over max_ref (over atol when the reference is smaller than that); rel_l2: norm of the error over norm of
    the reference; cosine: 1 when both are zero. All over positions where both values are finite.
    nan_mismatch and inf_mismatch count positions where only one has NaN, or the infinities differ;
    differing counts unequal integers. worst_index is the position of max_abs, or of the first mismatch.
    `reason` says why it is not ok; `note` what was accepted or seen on the way.
    """

    name: str
    ok: bool
    reason: str
    note: str
    shape: tuple[int, ...] | None
    expected_shape: tuple[int, ...]
    dtype: str | None
    expected_dtype: str
    max_abs: float
    max_ref: float
    max_error: float
    rel_l2: float
    cosine: float
    nan_mismatch: int
    inf_mismatch: int
    differing: int
    worst_index: tuple[int, ...] | None
    tolerance: Tolerance

    @property
    def vacuous(self) -> bool:
        """True when there was nothing to compare: no elements, or NaN and no finite number in the reference."""
        return _EMPTY in self.note or _NOT_FINITE in self.note

    @property
    def by_floor(self) -> bool:
        """True when the values are so small that only the absolute tolerance let them pass."""
        return _BY_FLOOR in self.note

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; NaN and infinities become the strings 'nan', 'inf' and '-inf'."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class Comparison:
    """Verdicts on all outputs; `extra` are outputs that only the candidate has (no fault)."""

    outputs: tuple[OutputComparison, ...]
    extra: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when every output is right, and there is at least one."""
        return bool(self.outputs) and all(output.ok for output in self.outputs)

    @property
    def worst(self) -> OutputComparison | None:
        """The output that fails, or the one with the largest error; None when there are none."""
        return max(self.outputs, key=lambda o: (not o.ok, _sortable(o.max_error)), default=None)

    def __getitem__(self, name: str) -> OutputComparison:
        """The verdict on one output by name; raises KeyError."""
        for output in self.outputs:
            if output.name == name:
                return output
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary with the verdict, the outputs and the extra names."""
        return {
            "ok": self.ok,
            "outputs": [output.to_dict() for output in self.outputs],
            "extra": list(self.extra),
        }


def compare(
    expected: Mapping[str, Array],
    actual: Mapping[str, Array],
    tolerance: Tolerance | None = None,
    *,
    squeeze: bool = False,
    ties: Ties | None = None,
    finite_only: bool = False,
) -> Comparison:
    """Compare named outputs; every name of `expected` must be in `actual`.

    finite_only: positions where the reference is infinite, NaN, or about to be infinite are not compared.

    squeeze: shapes that differ only by dimensions of size 1 count as equal and are noted (MNN gives
    (n, c, 1, 1) for (n, c)). Types must be of one kind: any float, or any integer or bool (MNN returns
    int32 for int64 and bool).

    ties: for index outputs of ArgMax and TopK, the scores they index and the axis. A differing index is
    accepted when the scores at both indices are equal within the tolerance.
    """
    tolerance = tolerance or Tolerance()
    outputs = []
    for name, reference in expected.items():
        if name not in actual:
            outputs.append(_missing(name, np.asarray(reference), tolerance))
            continue
        pair = _Pair(name, np.asarray(reference), np.asarray(actual[name]), tolerance, finite_only)
        outputs.append(_compare_one(pair, squeeze, (ties or {}).get(name)))
    return Comparison(tuple(outputs), tuple(name for name in actual if name not in expected))


@dataclass(frozen=True)
class _Pair:
    name: str
    expected: Array
    actual: Array
    tolerance: Tolerance
    finite_only: bool = False


def _compare_one(pair: _Pair, squeeze: bool, tie: tuple[Array, int] | None) -> OutputComparison:
    notes = []
    actual, expected = pair.actual, pair.expected
    if actual.shape != expected.shape:
        if not (squeeze and _squeezed(actual.shape) == _squeezed(expected.shape)):
            reason = f"shape {list(actual.shape)} where {list(expected.shape)} is expected"
            return _verdict(pair, None, reason, "")
        notes.append(f"shape {list(actual.shape)} taken as {list(expected.shape)}")
        actual = actual.reshape(expected.shape)
    if "other" in (kind_of(actual), kind_of(expected)):
        same = bool(np.array_equal(actual, expected))
        return _verdict(pair, None, "" if same else "values differ", "", same=same)
    if pair.finite_only and kind_of(expected) == kind_of(actual) == "float":
        actual = np.where(np.abs(expected.astype(np.float64)) < _ALMOST_INFINITE, actual, expected)
    stats = measure(expected, actual)
    reason = _type_reason(pair)
    if not reason and kind_of(expected) == "integer":
        reason, note = _integer_reason(stats, expected, actual, tie, pair.tolerance)
        notes += [note] if note else []
    elif not reason:
        reason = _float_reason(stats, pair.tolerance)
        if not reason and stats.max_abs > pair.tolerance.rtol * stats.max_ref:
            notes.append(f"{_BY_FLOOR}: the reference is at most {stats.max_ref:.3g}")
    if expected.size == 0:
        notes.append(_EMPTY)
    elif stats.finite == 0 and not reason:
        # Infinities that agree are values like others; NaN says that something went wrong before.
        notes.append(_NOT_FINITE if np.isnan(expected).any() else "nothing but infinities, which agree")
    return _verdict(pair, stats, reason, "; ".join(notes))


def _type_reason(pair: _Pair) -> str:
    if kind_of(pair.actual) == kind_of(pair.expected):
        return ""
    return f"type {pair.actual.dtype} where {pair.expected.dtype} is expected"


def _float_reason(stats: Stats, tolerance: Tolerance) -> str:
    """Why a floating-point output is wrong; empty when it is right."""
    if stats.nan_mismatch:
        return f"NaN in one of the two at {stats.nan_mismatch} positions"
    if stats.inf_mismatch:
        return f"different infinities at {stats.inf_mismatch} positions"
    if stats.max_abs > max(tolerance.rtol * stats.max_ref, tolerance.atol):
        return f"error {stats.max_error(tolerance.atol):.3g} is over {tolerance.rtol:g}"
    if tolerance.min_cosine is not None and stats.finite and stats.cosine < tolerance.min_cosine:
        return f"cosine {stats.cosine:.6f} is under {tolerance.min_cosine:g}"
    return ""


def _integer_reason(
    stats: Stats, expected: Array, actual: Array, tie: tuple[Array, int] | None, tolerance: Tolerance
) -> tuple[str, str]:
    """Why an integer output is wrong (empty when right), and a note on accepted ties."""
    if stats.differing == 0:
        return "", ""
    if tie is not None and _all_tied(expected, actual, *tie, tolerance):
        return "", f"{stats.differing} indices differ among equal scores"
    kind = "indices" if tie is not None else "integers"
    return f"{stats.differing} of {expected.size} {kind} differ", ""


def _all_tied(expected: Array, actual: Array, scores: Array, axis: int, tolerance: Tolerance) -> bool:
    """True when scores at the expected and at the actual indices are equal within the tolerance."""
    values = np.asarray(scores, np.float64)
    if expected.ndim == values.ndim - 1:
        expected, actual = np.expand_dims(expected, axis), np.expand_dims(actual, axis)
    if expected.ndim != values.ndim:
        return False
    size = values.shape[axis]
    if size == 0 or actual.min() < -size or actual.max() >= size:
        return False
    one = np.take_along_axis(values, expected.astype(np.int64), axis)
    two = np.take_along_axis(values, actual.astype(np.int64), axis)
    finite = np.abs(values[np.isfinite(values)])
    bound = max(tolerance.rtol * float(finite.max(initial=0.0)), tolerance.atol)
    with np.errstate(invalid="ignore"):
        return bool(np.all((one == two) | (np.abs(one - two) <= bound)))


def _verdict(pair: _Pair, stats: Stats | None, reason: str, note: str, *, same: bool = False) -> OutputComparison:
    """Put a verdict together; without stats the errors are unknown (NaN), or 0 when `same`."""
    unknown = 0.0 if same else math.nan
    worst = None
    if stats is not None:
        flat = stats.mismatch if stats.mismatch is not None else stats.worst
        if flat is not None:
            worst = tuple(int(k) for k in np.unravel_index(flat, pair.expected.shape))
    return OutputComparison(
        name=pair.name,
        ok=not reason,
        reason=reason,
        note=note,
        shape=pair.actual.shape,
        expected_shape=pair.expected.shape,
        dtype=str(pair.actual.dtype),
        expected_dtype=str(pair.expected.dtype),
        max_abs=stats.max_abs if stats else unknown,
        max_ref=stats.max_ref if stats else math.nan,
        max_error=stats.max_error(pair.tolerance.atol) if stats else unknown,
        rel_l2=stats.rel_l2 if stats else unknown,
        cosine=stats.cosine if stats else (1.0 if same else math.nan),
        nan_mismatch=stats.nan_mismatch if stats else 0,
        inf_mismatch=stats.inf_mismatch if stats else 0,
        differing=stats.differing if stats else 0,
        worst_index=worst,
        tolerance=pair.tolerance,
    )


def _missing(name: str, expected: Array, tolerance: Tolerance) -> OutputComparison:
    nan = math.nan
    return OutputComparison(
        name, False, "the output is missing", "", None, expected.shape, None, str(expected.dtype),
        nan, nan, nan, nan, nan, 0, 0, 0, None, tolerance,
    )  # fmt: skip


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _sortable(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Tolerance):
        return value.to_dict()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
