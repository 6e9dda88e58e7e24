"""Verdicts of compare: what passes, what fails, and that the reason says why."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphkit.compare import Comparison, Tolerance, compare


def one(expected: object, actual: object, tolerance: Tolerance | None = None, **options: object) -> object:
    """Compare a single pair of arrays under the name 'y'."""
    result = compare({"y": np.asarray(expected)}, {"y": np.asarray(actual)}, tolerance, **options)
    return result["y"]


def test_equal_arrays_pass_with_zero_error() -> None:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
    verdict = one(x, x)
    assert verdict.ok
    assert (verdict.max_error, verdict.rel_l2, verdict.cosine) == (0.0, 0.0, pytest.approx(1.0))


def test_error_is_relative_to_the_largest_reference_value() -> None:
    x = np.array([0.001, 100.0], np.float32)
    y = np.array([0.051, 100.0], np.float32)
    verdict = one(x, y)
    assert verdict.ok
    assert verdict.max_error == pytest.approx(5e-4, rel=1e-3)
    assert verdict.worst_index == (0,)
    tight = one(x, y, Tolerance(rtol=1e-4))
    assert not tight.ok
    assert tight.reason == "error 0.0005 is over 0.0001"


def test_noise_around_zero_passes_by_the_floor_and_is_noted() -> None:
    verdict = one(np.zeros(4, np.float32), np.full(4, 5e-7, np.float32))
    assert verdict.ok
    assert "only by atol" in verdict.note
    assert not one(np.zeros(4, np.float32), np.full(4, 5e-6, np.float32)).ok


def test_one_wrong_element_fails_although_the_cosine_is_high() -> None:
    x = np.ones(10_000, np.float32)
    y = x.copy()
    y[777] = 1.01
    verdict = one(x, y)
    assert verdict.cosine > 0.999999
    assert not verdict.ok
    assert verdict.worst_index == (777,)


def test_min_cosine_is_an_additional_gate() -> None:
    x, y = np.array([1.0, 0.0]), np.array([1.0, 0.4])
    assert one(x, y, Tolerance(rtol=1.0)).ok
    verdict = one(x, y, Tolerance(rtol=1.0, min_cosine=0.99))
    assert not verdict.ok
    assert verdict.reason.startswith("cosine 0.928")


def test_nan_must_stand_at_the_same_places() -> None:
    x = np.array([1.0, np.nan, 3.0])
    assert one(x, x).ok
    verdict = one(x, np.array([1.0, 2.0, 3.0]))
    assert not verdict.ok
    assert (verdict.nan_mismatch, verdict.worst_index) == (1, (1,))
    assert "NaN in one of the two at 1 positions" in verdict.reason


def test_infinities_must_agree_in_sign() -> None:
    x = np.array([np.inf, -np.inf, 1.0])
    assert one(x, x).ok
    verdict = one(x, np.array([np.inf, np.inf, 1.0]))
    assert not verdict.ok
    assert verdict.inf_mismatch == 1
    assert not one(x, np.array([1e30, -np.inf, 1.0])).ok


def test_reference_without_a_finite_value_is_noted() -> None:
    x = np.full(3, np.nan)
    verdict = one(x, x)
    assert verdict.ok
    assert "no finite value" in verdict.note


def test_shapes_are_exact_unless_squeezed() -> None:
    x = np.ones((2, 3), np.float32)
    verdict = one(x, x.reshape(2, 3, 1, 1))
    assert not verdict.ok
    assert verdict.reason == "shape [2, 3, 1, 1] where [2, 3] is expected"
    squeezed = one(x, x.reshape(2, 3, 1, 1), squeeze=True)
    assert squeezed.ok
    assert squeezed.note == "shape [2, 3, 1, 1] taken as [2, 3]"
    assert not one(x, x.T, squeeze=True).ok


def test_integers_are_exact_even_beyond_float64() -> None:
    x = np.array([2**60, 2**60 + 1], np.int64)
    assert one(x, x).ok
    verdict = one(x, np.array([2**60, 2**60], np.int64))
    assert not verdict.ok
    assert verdict.differing == 1
    assert verdict.reason == "1 of 2 integers differ"


def test_mnn_types_count_as_the_same_kind() -> None:
    assert one(np.array([1, 2], np.int64), np.array([1, 2], np.int32)).ok
    assert one(np.array([True, False]), np.array([1, 0], np.int32)).ok
    assert one(np.ones(2, np.float16), np.ones(2, np.float32)).ok
    assert one(np.ones(2, ml_dtypes.bfloat16), np.ones(2, np.float32)).ok
    verdict = one(np.array([1, 2], np.int64), np.array([1.0, 2.0], np.float32))
    assert not verdict.ok
    assert verdict.reason == "type float32 where int64 is expected"


def test_indices_of_equal_scores_are_accepted_only_when_told() -> None:
    scores = np.array([[1.0, 5.0, 5.0], [7.0, 2.0, 1.0]])
    expected, actual = np.array([1, 0]), np.array([2, 0])
    assert not one(expected, actual).ok
    verdict = one(expected, actual, ties={"y": (scores, 1)})
    assert verdict.ok
    assert verdict.note == "1 indices differ among equal scores"
    assert not one(expected, np.array([0, 0]), ties={"y": (scores, 1)}).ok
    assert not one(expected, np.array([9, 0]), ties={"y": (scores, 1)}).ok


def test_ties_of_topk_keep_the_axis() -> None:
    scores = np.array([[3.0, 3.0, 1.0]])
    assert one(np.array([[0, 1]]), np.array([[1, 0]]), ties={"y": (scores, 1)}).ok
    assert not one(np.array([[0, 1]]), np.array([[1, 2]]), ties={"y": (scores, 1)}).ok


def test_missing_output_fails_and_extra_is_named() -> None:
    result = compare({"a": np.ones(2)}, {"b": np.ones(2)})
    assert not result.ok
    assert result["a"].reason == "the output is missing"
    assert result.extra == ("b",)
    with pytest.raises(KeyError):
        result["b"]


def test_empty_arrays_and_scalars() -> None:
    assert one(np.zeros((0, 3)), np.zeros((0, 3))).ok
    assert one(np.float32(3), np.float32(3)).ok
    assert not one(np.zeros((0, 3)), np.zeros((0, 4))).ok


def test_text_is_compared_for_equality() -> None:
    assert one(np.array(["a", "b"], object), np.array(["a", "b"], object)).ok
    assert one(np.array(["a"], object), np.array(["c"], object)).reason == "values differ"


def test_nothing_compared_is_not_a_proof() -> None:
    assert not Comparison(()).ok
    assert Comparison(()).worst is None


def test_worst_is_the_failing_output() -> None:
    result = compare({"a": np.ones(2), "b": np.array([1, 2])}, {"a": np.ones(2) + 1e-4, "b": np.array([1, 3])})
    assert result.worst is not None
    assert result.worst.name == "b"


def test_to_dict_is_json_without_nan() -> None:
    result = compare({"a": np.ones(2), "b": np.ones(1)}, {"a": np.ones(3)})
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(text)["outputs"][0]["max_error"] == "nan"
    assert json.loads(text)["ok"] is False


def test_blocks_agree_with_one_pass() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1 << 20) + 7)
    y = x.copy()
    y[-1] += 100
    verdict = one(x, y)
    assert verdict.worst_index == (x.size - 1,)
    assert verdict.max_abs == pytest.approx(100)
    assert verdict.rel_l2 == pytest.approx(float(np.linalg.norm(y - x) / np.linalg.norm(x)))


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(width=32)))
def test_any_array_equals_itself(array: np.ndarray) -> None:
    assert one(array, array.copy()).ok


def test_positions_without_a_finite_reference_can_be_left_out() -> None:
    expected = {"y": np.array([np.inf, np.nan, 1], np.float32)}
    actual = {"y": np.array([3, 4, 1], np.float32)}
    assert not compare(expected, actual).ok
    assert compare(expected, actual, finite_only=True).ok
    assert not compare(expected, {"y": np.array([3, 4, np.nan], np.float32)}, finite_only=True).ok
