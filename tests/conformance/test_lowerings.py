"""The list of lowerings in the docs is that of the rules."""

from __future__ import annotations

from conformance import lowerings
from graphkit.passes.lowering import FAMILIES


def test_the_page_is_up_to_date() -> None:
    assert lowerings.PAGE.read_text("utf-8") == lowerings.page(), "run python -m conformance.lowerings"


def test_every_rule_says_why() -> None:
    silent = [rule.name for family in FAMILIES for rule in family.RULES if not (rule.match.__doc__ or "").strip()]
    assert not silent


def test_names_are_unique() -> None:
    names = [rule.name for family in FAMILIES for rule in family.RULES]
    assert len(names) == len(set(names))
