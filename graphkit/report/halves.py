"""What half floats cannot hold, as a forecast before a model is stored or run in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphkit.report import text
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.quant.overflow import HalfForecast, Reach

_NAMES = 8


def show_forecast(report: Report, found: HalfForecast, source: str) -> None:
    """Print weights and values that float16 cannot hold, and those that are near."""
    report.say(headline(found, source))
    for what, reaches in (("beyond", found.overflowing), ("near", found.near)):
        shown = reaches if report.verbose else reaches[:_NAMES]
        for reach in shown:
            report.say(
                f"  {what} 65504: {reach.kind} '{text.clean(reach.tensor)}' of {_node(reach)}: {reach.largest:.3g}"
            )
        if len(shown) < len(reaches):
            report.say(f"  {len(reaches) - len(shown)} more {what} 65504 (-v shows all)")


def headline(found: HalfForecast, source: str) -> str:
    """One line."""
    on = f"on {text.count(found.samples, 'sample')} ({source})"
    if found.ok:
        largest = max((reach.largest for reach in found.values), default=0.0)
        return f"half floats hold all weights and values: the largest is {largest:.3g} {on}"
    return f"half floats cannot hold {text.count(len(found.overflowing), 'tensor')} {on}"


def _node(reach: Reach) -> str:
    return f"'{text.clean(reach.node)}' ({reach.op})" if reach.node else "the inputs"


def to_dict(found: HalfForecast, source: str) -> dict[str, Any]:
    """A JSON-able dictionary."""
    return {
        "samples": found.samples,
        "source": source,
        "ok": found.ok,
        "unseen": found.unseen,
        "beyond": [_reach(reach) for reach in found.overflowing],
        "near": [_reach(reach) for reach in found.near],
    }


def _reach(reach: Reach) -> dict[str, Any]:
    return {"kind": reach.kind, "tensor": reach.tensor, "node": reach.node, "op": reach.op, "largest": reach.largest}
