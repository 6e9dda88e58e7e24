"""Conditions in words: what a learned condition says to people."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphkit.knowledge import Test

_EFFECTS = {
    "crashes": "MNN crashes",
    "refused": "MNN's converter refuses it",
    "fails": "MNN cannot run it",
    "wrong": "MNN computes it wrong",
}
_PLACE = re.compile(r"^(\w+)\.(in|out)(\d+)$")
_MOST = 4  # tests that are spelled out
_YES = {
    "const": "{at} is constant",
    "given": "{at} is given",
    "used": "{at} is used",
    "dynamic": "{at} has unknown sizes",
    "empty": "{at} has no elements",
    "huge": "{at} has integers beyond ±2^30",
    "negative": "{at} has negative numbers",
    "nonneg": "{at} is never negative",
}
_NO = {
    "const": "{at} is not constant",
    "given": "{at} is omitted",
    "used": "{at} is not used",
    "dynamic": "{at} has known sizes",
    "empty": "{at} has elements",
    "huge": "{at} has no integers beyond ±2^30",
    "negative": "{at} has no negative numbers",
    "nonneg": "{at} may be negative",
}
_SAYS = {
    "dtype": "{at} is {test}",
    "kind": "{at} is {test}",
    "rank": "{at} has rank {test}",
    "dims": "{at} has shape [{test}]",
    "front": "{at} has first dimension {test}",
    "last": "{at} ends in {test}",
    "length": "{at} has {test} elements",
    "value": "{at} is {test}",
    "values": "{at} is [{test}]",
    "all": "{at} is all {test}",
}


def reason(effect: str, when: Mapping[str, Test]) -> str:
    """Why an operator of this form is no good: `MNN computes it wrong: mode is cubic and input 0 has rank 3`."""
    words = [phrase(name, test) for name, test in when.items()]
    if not words:
        return _EFFECTS[effect]
    if len(words) > _MOST:
        return f"{_EFFECTS[effect]} in a form that was tested"
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"{_EFFECTS[effect]} when {listed}"


def phrase(name: str, test: Test) -> str:
    """One test in words."""
    place = _PLACE.match(name)
    if place is None:
        return _attribute(name, test)
    kind, at = place.group(1), f"{'input' if place.group(2) == 'in' else 'output'} {place.group(3)}"
    if isinstance(test, bool) and kind in _YES:
        return (_YES if test else _NO)[kind].format(at=at)
    return _SAYS.get(kind, "{at}: " + kind + " is {test}").format(at=at, test=_text(test))


def _attribute(name: str, test: Test) -> str:
    kind, _, attribute = name.partition(".")
    if kind == "has":
        return f"{attribute} is {'not ' if test is None else ''}written"
    if kind == "all":
        return f"{attribute} is all {_text(test)}"
    if kind == "since":
        return f"it has the form of opset {_text(test)}"
    if name == "mixed":
        return f"its inputs are of {'different kinds' if test else 'one kind'}"
    if name == "written":
        return f"{_text(test)} is the first attribute that is written"
    if name == "subgraph":
        return "it stands inside a loop or branch" if test else "it stands in the main graph"
    return f"{attribute if kind == 'attr' else name} is {_text(test)}"


def _text(test: Test) -> str:
    if isinstance(test, list):
        return " or ".join(_text(item) for item in test)
    if test is None:
        return "unknown"
    text = str(test)
    signs = {">": "over ", "<": "under ", "!": "not "}
    return (
        signs[text[0]] + text[1:]
        if text[:1] in signs and len(text) > 1
        else text.lower()
        if test in (True, False)
        else text
    )
