"""The runner's judgement and its page, and that `check` says what conversion then does."""

from __future__ import annotations

import numpy as np
import pytest

from conformance import __main__ as runner
from conformance import cases, features, probes, roads, table
from conformance.roads import Result, Road, Verdict

# One test in about 150, and families in which MNN goes wrong in different ways.
SAMPLE = (
    "test_add",
    "test_affine_grid_2d",
    "test_argmax_default_axis_example_select_last_index",
    "test_averagepool_2d_default",
    "test_bitwise_and_i32_2d",
    "test_constantofshape_float_ones",
    "test_cumsum_1d_int32_exclusive",
    "test_gather_0",
    "test_isnan",
    "test_less",
    "test_maxpool_2d_dilations",
    "test_mod_uint32",
    "test_reduce_l1_negative_axes_keep_dims_random",
    "test_softmax_axis_1",
    "test_split_zero_size_splits_opset18",
)


def results(road: Road, **verdicts: Verdict) -> dict[str, Result]:
    """Results by test, all of one road."""
    return {name: Result(name, road, verdict, "said", ("Op",)) for name, verdict in verdicts.items()}


def test_cases_are_loaded_once_and_none_is_lost() -> None:
    everything = cases.load()
    assert len(everything) > 1900
    assert len({(case.name, case.kind) for case in everything}) == len(everything)
    assert len(cases.runnable()) > 1700


@pytest.mark.parametrize(
    ("got", "expected", "differs"),
    [
        (np.ones((2, 1)), np.ones(2), False),
        (np.ones((1, 2)), np.ones((2, 1)), False),
        (np.ones(3), np.ones(2), True),
        (np.ones((2, 3)), np.ones((3, 2)), True),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), False),
        (np.array([1.0, 2.0]), np.array([1.0, 2.1]), True),
    ],
)
def test_what_counts_as_equal(got: np.ndarray, expected: np.ndarray, differs: bool) -> None:
    assert bool(roads.differs(got, expected, 1e-3, 1e-4)) is differs


def test_problems_that_end_the_run_with_1() -> None:
    ours = results("graphkit", test_a="right", test_b="wrong", test_c="refused")
    check = results("check", test_a="refused", test_b="right", test_c="refused")
    found = runner.problems([*ours.values(), *check.values()])
    assert found == [
        "test_b: wrong: said",
        "33.3 % right, which is under 85 %",
        "test_b: check says that nothing is left, and conversion does not get it right",
        "test_a: check says that faults are left, and conversion gets it right",
    ]
    assert runner.problems(list(results("graphkit", test_a="right").values())) == []


def test_a_refusal_must_name_a_node() -> None:
    assert runner.problems([Result("test_a", "graphkit", "refused", "why")])[0] == "test_a: refused: why"


def test_the_page() -> None:
    chosen = ("test_relu", "test_isnan", "test_less", "test_elu_example_expanded_ver18", "test_elu_example")
    found = {
        "plain": {name: Result(name, "plain", "right") for name in chosen},
        "graphkit": {name: Result(name, "graphkit", "right") for name in chosen},
        "check": {name: Result(name, "check", "right") for name in chosen},
    }
    found["plain"]["test_isnan"] = Result("test_isnan", "plain", "refused", "MNN does not support: IsNaN")
    found["graphkit"]["test_less"] = Result("test_less", "graphkit", "refused", "error 1 is over 0.1", ("Less",))
    page = table.page(cases.load(), found, "3.6.1")
    assert "| plain | 5 | 4 | 1 | 0 | 0 | 0 | 80.0 % |" in page
    assert "| IsNaN | 1 | 1 refused | 1 right |" in page
    assert "| Less | refused | 1 | MNN computes other values | `test_less` |" in page
    assert "False all-clears: 1: `test_less`." in page
    assert "False alarms: 0." in page
    assert "Elu" in page.split("Right down both roads")[1]
    assert "| element types MNN does not have: string | 32 |" in page


def test_probes_have_names_of_their_own() -> None:
    names = [probe.name for probe in probes.probes()]
    assert len(set(names)) == len(names) > 50
    assert not set(names) & {case.name for case in cases.load()}


@pytest.mark.parametrize("name", SAMPLE)
def test_check_says_what_conversion_then_does(name: str) -> None:
    case = next(case for case in cases.runnable() if case.name == name)
    made, said = roads.travel((case, "graphkit")), roads.travel((case, "check"))
    assert made.verdict in ("right", "refused"), made
    assert said.verdict == made.verdict, (made, said)


def test_examples_of_a_case_hold_the_graphs_that_mnn_got() -> None:
    case = next(case for case in cases.runnable() if case.name == "test_maxpool_2d_default")
    told = [
        Result(case.name, "plain", "crashed", "MNN crashed"),
        Result(case.name, "graphkit", "refused", "MNN computes the model wrong: y", ("MaxPool",)),
    ]
    plain, ours = features.of_case((case, told))
    assert (plain.effect, ours.effect, ours.named) == ("crashes", "wrong", ("MaxPool",))
    assert "has.strides" not in plain.nodes[0].features
    assert ours.nodes[0].features["attr.strides"] == "1,1"
    assert plain.takers == {("y", "MaxPool"): "canonicalize"}
