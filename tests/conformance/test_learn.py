"""The learner on made-up verdicts, and the way from verdicts to the table."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import operators, verdicts
from conformance.attribute import attribute
from conformance.features import Example, Seen
from conformance.learn import cover
from conformance.roads import Result
from conformance.words import reason
from graphkit.knowledge import Condition, Knowledge, Operator, holds


def forms(*values: Any, name: str = "attr.mode") -> list[dict[str, Any]]:
    """Forms with one feature that differs."""
    return [{name: value, "rank.in0": 2} for value in values]


def example(case: str, verdict: str, *nodes: Seen, road: str = "plain", named: tuple[str, ...] = ()) -> Example:
    """One test down one road."""
    effect = {"right": "", "refused": "refused", "wrong": "wrong", "failed": "fails"}[verdict]
    return Example(case, road, verdict, effect, "detail", named, nodes)


def node(op: str, **found: Any) -> Seen:
    """A node of an operator; `rank_in0=2` is the feature `rank.in0`."""
    return Seen(op, op.lower(), {name.replace("_", ".", 1): value for name, value in found.items()})


def empty() -> Knowledge:
    """A table without rows."""
    return Knowledge("1", frozenset(["Known"]), {})


def test_one_test_tells_bad_from_good() -> None:
    learned, rest = cover(forms("cubic", "cubic"), forms("linear", "nearest"))
    assert [dict(item.when) for item in learned] == [{"attr.mode": "cubic"}]
    assert (learned[0].covers, rest) == ((0, 1), [])


def test_what_is_always_bad_needs_no_test() -> None:
    assert [dict(item.when) for item in cover(forms("a", "b"), [])[0]] == [{}]
    assert cover([], forms("a")) == ([], [])


def test_bounds_on_numbers() -> None:
    learned, _ = cover(forms(5, 6, 7, name="rank.in1"), forms(3, 4, name="rank.in1"))
    assert [dict(item.when) for item in learned] == [{"rank.in1": ">4"}]


def test_everything_but_one_value() -> None:
    learned, _ = cover(forms("a", "b", "c"), forms("linear"))
    assert [dict(item.when) for item in learned] == [{"attr.mode": "!linear"}]


def test_a_conjunction_when_one_test_is_not_enough() -> None:
    good = [{"attr.a": 1, "attr.b": 2}, {"attr.a": 2, "attr.b": 1}]
    learned, rest = cover([{"attr.a": 1, "attr.b": 1}], good)
    assert [dict(item.when) for item in learned] == [{"attr.a": 1, "attr.b": 1}]
    assert rest == []


def test_what_is_not_written_at_all() -> None:
    learned, _ = cover([{"rank.in0": 2}], [{"rank.in0": 2, "has.strides": True}])
    assert [dict(item.when) for item in learned] == [{"has.strides": None}]


def test_several_causes_are_several_conditions() -> None:
    bad = [{"attr.mode": "cubic", "rank.in0": 3}, {"attr.mode": "linear", "rank.in0": 5}]
    learned, _ = cover(bad, [{"attr.mode": "linear", "rank.in0": 3}])
    assert sorted(str(dict(item.when)) for item in learned) == ["{'attr.mode': 'cubic'}", "{'rank.in0': '>3'}"]


def test_static_shapes_are_no_reason() -> None:
    _, rest = cover([{"dynamic.in0": False}], [{"dynamic.in0": True}])
    assert rest == [0]


def test_a_few_forms_that_may_be_right_by_luck_do_not_count() -> None:
    bad, lucky = forms(*["cubic"] * 4), forms("cubic")
    assert [dict(item.when) for item in cover(bad, forms("linear"), lucky)[0]] == [{"attr.mode": "cubic"}]
    assert cover(bad, forms("linear"), forms("cubic", "cubic"))[1] == [0, 1, 2, 3]


def test_equal_forms_cannot_be_told_apart() -> None:
    learned, rest = cover(forms("a"), forms("a"))
    assert (learned, rest) == ([], [0])


def test_conditions_hold_for_all_they_cover_and_no_good_form() -> None:
    bad = [{"attr.a": a, "attr.b": b, "rank.in0": a + b} for a in range(3) for b in range(3) if a * b != 1]
    good = [{"attr.a": 1, "attr.b": 1, "rank.in0": 2}]
    learned, rest = cover(bad, good)
    assert rest == []
    for form, expected in [*((form, True) for form in bad), *((form, False) for form in good)]:
        met = any(all(holds(test, form.get(name)) for name, test in item.when.items()) for item in learned)
        assert met is expected


# -- who is to blame -----------------------------------------------------------------------------------------------


def test_the_only_node_is_to_blame() -> None:
    evidence = attribute(
        [example("a", "wrong", node("Odd", rank_in0=2)), example("b", "right", node("Odd", rank_in0=3))]
    )
    assert [item.node.features for item in evidence.bad["Odd"]] == [{"rank.in0": 2}]
    assert evidence.counts["Odd"] == {"wrong": 1, "right": 1}


def test_the_operator_that_a_refusal_names_is_to_blame() -> None:
    nodes = (node("Fine", rank_in0=1), node("Odd", rank_in0=2))
    evidence = attribute([example("a", "refused", *nodes, named=("Odd",))])
    assert [op for op, bad in evidence.bad.items() if bad] == ["Odd"]


def test_a_verdict_on_a_graph_that_is_no_longer_made_is_left_out() -> None:
    evidence = attribute([example("a", "refused", node("New"), road="graphkit", named=("Old",))])
    assert [item.case for item in evidence.stale] == ["a"]
    assert not any(evidence.bad.values())


def test_several_suspects_on_the_plain_road_stay_open() -> None:
    right = example("b", "right", node("A", rank_in0=3), node("B", rank_in0=3))
    evidence = attribute([example("a", "wrong", node("A", rank_in0=2), node("B", rank_in0=2)), right])
    assert [item.case for item in evidence.unresolved] == ["a"]


def test_what_structure_explains_is_nobodys_fault() -> None:
    bad = Example("a", "graphkit", "refused", "refused", "", (), (node("A"),), ("an output without elements",))
    assert attribute([bad]).explained == [bad]


# -- the table -------------------------------------------------------------------------------------------------------


def test_a_table_from_verdicts() -> None:
    seen = [
        example("one", "wrong", node("Odd", attr_mode="cubic")),
        example("two", "right", node("Odd", attr_mode="linear")),
        example("three", "refused", node("Never")),
        example("four", "right", node("Fine")),
    ]
    made, report = operators.make(empty(), seen)
    rows = made.operators
    assert {op: row.verdict for op, row in rows.items()} == {
        "Fine": "right", "Known": "untested", "Never": "refused", "Odd": "conditional",
    }  # fmt: skip
    condition = rows["Odd"].bad[0]
    assert (dict(condition.when), condition.effect, condition.example) == ({"attr.mode": "cubic"}, "wrong", "one")
    assert rows["Never"].bad[0].why == "MNN has no such operator"
    assert report.lines() == []


def test_a_fix_is_named_when_the_case_goes_right_with_it() -> None:
    bad = Example("a", "plain", "wrong", "wrong", "", (), (node("Odd"),), (), {("odd", "Odd"): "some-pass"})
    assert operators.make(empty(), [bad])[0].operators["Odd"].bad[0].fix is None
    mended = example("a", "right", node("Fine"), road="graphkit")
    assert operators.make(empty(), [bad, mended])[0].operators["Odd"].bad[0].fix == "some-pass"


def test_forms_that_nothing_tells_apart_become_exact_conditions() -> None:
    seen = [example("a", "wrong", node("Odd", dims_in0="2")), example("b", "right", node("Odd", dims_in0="2"))]
    made, report = operators.make(empty(), seen)
    assert [item.origin for item in made.operators["Odd"].bad] == ["exact"]
    assert report.lines() == ["exact: Odd: plain a"]


def test_what_stands_by_hand_stays_until_a_test_contradicts_it() -> None:
    hand = Condition({"rank.in0": 2}, "wrong", "somebody saw it", None, "hand")
    old = Knowledge("1", frozenset(), {"Odd": Operator("conditional", (hand,))})
    assert operators.make(old, [])[0].operators["Odd"].bad == (hand,)
    seen = [example("a", "right", node("Odd", rank_in0=2))]
    assert operators.make(old, seen)[1].lines() == []  # it may be right by luck
    seen = [example("a", "right", node("Odd", rank_in0=2), road="graphkit")]
    made, report = operators.make(old, seen)
    assert made.operators["Odd"].bad == (hand,)
    assert report.lines() == ["contradicted: Odd {'rank.in0': 2}: right in 1 forms"]
    assert operators.make(old, seen, drop=True)[0].operators["Odd"].bad == ()


def test_a_sentence_by_hand_stays_with_its_condition() -> None:
    seen = [example("a", "wrong", node("Odd", rank_in0=2)), example("b", "right", node("Odd", rank_in0=3))]
    made, _ = operators.make(empty(), seen)
    condition = made.operators["Odd"].bad[0]
    told = Condition(**{**vars(condition), "why": "because"})
    again, _ = operators.make(Knowledge("1", frozenset(), {"Odd": Operator("conditional", (told,))}), seen)
    assert again.operators["Odd"].bad == (told,)


def test_what_graphkits_proof_refutes_is_no_good_form() -> None:
    seen = [
        example("a", "right", node("Odd", rank_in0=2)),
        example("b", "wrong", node("Odd", rank_in0=2), road="graphkit"),
    ]
    made, report = operators.make(empty(), seen)
    assert [dict(item.when) for item in made.operators["Odd"].bad] == [{}]
    assert report.lines() == []


def test_a_table_from_half_the_tests_is_tried_on_the_other_half() -> None:
    seen = [example(f"bad{i}", "wrong", node("Odd", attr_mode="cubic", value_in0=float(i))) for i in range(20)]
    seen += [example(f"good{i}", "right", node("Odd", attr_mode="linear", value_in0=float(i))) for i in range(20)]
    said = operators.held_out(empty(), seen)
    assert said.startswith("held out: 0 of ")
    assert ", 0 of " in said


def test_loops_and_fused_nodes_are_noted_as_they_were() -> None:
    good = example("b", "right", node("Loop", rank_in0=1, dims_in0="3"), node("Mul", rank_in0=1, dims_in0="3"))
    loop = example("a", "wrong", node("Loop", rank_in0=2, dims_in0="2,2"), road="graphkit", named=("Loop",))
    fused = Example(
        "c", "graphkit", "refused", "wrong", "Y: wrong only when MNN fuses it", ("Mul",),
        (node("Mul", rank_in0=2, dims_in0="2,2"),),
    )  # fmt: skip
    rows = operators.make(empty(), [good, loop, fused])[0].operators
    assert [(item.origin, dict(item.when)) for item in (*rows["Loop"].bad, *rows["Mul"].bad)] == [
        ("exact", {"dims.in0": "2,2", "rank.in0": 2}),
        ("exact", {"dims.in0": "2,2", "rank.in0": 2}),
    ]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, "MNN computes it wrong"),
        ({"attr.mode": "cubic"}, "MNN computes it wrong when mode is cubic"),
        ({"rank.in0": ">4", "given.in2": True},
         "MNN computes it wrong when input 0 has rank over 4 and input 2 is given"),
        ({"has.strides": None}, "MNN computes it wrong when strides is not written"),
        ({"since": 13, "attr.mode": "!a", "dtype.out0": "int64"},
         "MNN computes it wrong when it has the form of opset 13, mode is not a and output 0 is int64"),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "MNN computes it wrong in a form that was tested"),
    ],
)  # fmt: skip
def test_conditions_in_words(when: dict[str, Any], expected: str) -> None:
    assert reason("wrong", when) == expected


def test_verdicts_are_written_and_read_again(tmp_path: Any) -> None:
    results = [
        Result("test_a", "plain", "wrong", "off by 1"),
        Result("test_a", "graphkit", "refused", "no", ("Odd",)),
        Result("test_b", "plain", "right"),
    ]
    verdicts.write(results, tmp_path / "v.json")
    assert verdicts.read(tmp_path / "v.json") == results
    assert len((tmp_path / "v.json").read_text().splitlines()) == 4
