"""Print how two models differ: totals, the models' own facts, then operators and weights, the most changed first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text

from graphkit.mnn.diff import (
    ABSENT,
    ArrayChange,
    Change,
    Difference,
    OpChange,
    WeightChange,
)
from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid

_ROWS = 40  # rows without -v
_FACTS = 12  # facts of the model without -v
_FIELDS = 4  # changes of one operator without -v
_TYPES = 6  # kinds of operators named in a line of totals, without -v
_LONG = 60  # characters of a value, without -v
_SIGNS = {"changed": "~", "added": "+", "removed": "−"}


def show_diffed(report: Report, result: Difference) -> None:
    """Print a difference."""
    report.say(Text(headline(result), style="bold"))
    for kind in ("added", "removed"):
        ops = [op for op in result.ops if op.kind == kind]
        if ops:
            report.say(f"{kind}: {_by_type(ops, report.verbose)}")
    facts = result.model if report.verbose else result.model[:_FACTS]
    for change in facts:
        report.say(f"model: {_change(change, report.verbose)}")
    if len(facts) < len(result.model):
        report.say(f"model: … {len(result.model) - len(facts)} more (-v shows all)")
    rows = [*_op_rows(result, report.verbose), *_weight_rows(result, report.verbose)]
    if rows:
        report.table(_grid(rows, report.verbose, "op" if result.format == "mnn" else "node"))
    if result.notes:
        report.say(f"not counted: {text.listing([text.clean(note) for note in result.notes])}")


def headline(result: Difference) -> str:
    """One line: whether the models are equal, and what differs."""
    names = f"{text.clean(str(result.old))} and {text.clean(str(result.new))}"
    noun = "op" if result.format == "mnn" else "node"
    if result.equal:
        return f"{names} are equal: {text.count(result.same, noun)}"
    kinds = Counter(op.kind for op in result.ops)
    parts = [f"{text.count(number, noun)} {kind}" for kind, number in kinds.items()]
    weights = Counter(weight.kind for weight in result.weights)
    parts += [f"{text.count(number, 'weight')} {kind}" for kind, number in weights.items()]
    parts += [f"{text.count(len(result.model), 'fact')} of the model"] if result.model else []
    return f"{names} differ: {', '.join(parts)}; {text.count(result.same, noun)} the same"


def _by_type(ops: Iterable[OpChange], verbose: bool) -> str:
    counts = Counter(op.type for op in ops).most_common()
    return text.listing([f"{number} {text.clean(kind)}" for kind, number in counts], None if verbose else _TYPES)


Row = tuple[str, str, str, str]


def _op_rows(result: Difference, verbose: bool) -> Iterator[Row]:
    for op in result.ops:
        yield _SIGNS[op.kind], _place(op.graph, op.name), op.type, "; ".join(_op(op, verbose))


def _op(op: OpChange, verbose: bool) -> list[str]:
    if op.kind != "changed":
        made = f"makes {text.listing(op.outputs, None if verbose else 2)}" if any(op.outputs) else ""
        return [made + (f", which {op.instead_of} made" if op.instead_of else "")]
    parts = [f"was called {op.old_name}"] if op.old_name else []
    parts += [_array(array) for array in op.arrays]
    parts += [_change(change, verbose) for change in op.fields]
    if not verbose and len(parts) > _FIELDS:
        parts = [*parts[: _FIELDS - 1], f"{len(parts) - _FIELDS + 1} more"]
    return parts


def _weight_rows(result: Difference, verbose: bool) -> Iterator[Row]:
    for weight in result.weights:
        yield _SIGNS[weight.kind], _place(weight.graph, weight.name), "weight", "; ".join(_weight(weight, verbose))


def _weight(weight: WeightChange, verbose: bool) -> Iterator[str]:
    if weight.old_name:
        yield f"was called {weight.old_name}"
    if weight.array is not None:
        yield _array(weight.array)
    elif weight.kind != "changed":
        facts = weight.facts
        yield f"{facts.dtype}{text.shape(facts.shape)}  {text.size(facts.nbytes)}  SHA-256 {facts.sha256[:8]}"
    if verbose and weight.used_by:
        yield f"read by {text.listing(weight.used_by)}"


def _place(graph: str, name: str) -> str:
    return f"{graph}/{name}" if graph else name


def _array(change: ArrayChange) -> str:
    """`main.weight: ‖Δ‖/‖a‖ 1.2e-03, max 0.04, 864 of 864 values, SHA-256 1a2b3c4d → 5e6f7a8b`."""
    facts = [*_stored(change), *_measures(change)]
    old, new = change.old, change.new
    if old.values is not None and new.values is not None and old.dtype == new.dtype:
        facts = [f"{_value(old.values, True)} → {_value(new.values, True)}", *facts]
    hashes = f"SHA-256 {old.sha256[:8]} → {new.sha256[:8]}" if old.sha256 != new.sha256 else ""
    name = f"{change.field}: " if change.field.startswith("main.") or change.field == "value" else ""
    return name + ", ".join(filter(None, [*facts, hashes]))


def _stored(change: ArrayChange) -> Iterator[str]:
    """What of type, shape and scheme differs."""
    old, new = change.old, change.new
    if old.dtype != new.dtype or old.quantization != new.quantization:
        yield f"{old.quantization or old.dtype} → {new.quantization or new.dtype}"
    if old.shape != new.shape:
        yield f"{text.shape(old.shape)} → {text.shape(new.shape)}"


def _measures(change: ArrayChange) -> Iterator[str]:
    if change.relative is not None:
        yield f"‖Δ‖/‖a‖ {text.error(change.relative)}"
        yield f"max {text.error(change.largest)}"
    if change.changed is not None and change.count is not None:
        yield f"{change.changed:,} of {change.count:,} values"
    if change.codes is not None:
        yield f"{change.codes:,} codes"
    if change.nans:
        yield f"{text.count(change.nans, 'NaN')} on one side"


def _change(change: Change, verbose: bool) -> str:
    return f"{text.clean(change.field)} {_value(change.old, verbose)} → {_value(change.new, verbose)}"


def _value(value: Any, verbose: bool) -> str:
    if value is ABSENT:
        return "–"
    if isinstance(value, tuple | list):
        shown = f"[{','.join(_value(item, True) for item in value)}]"
    else:
        shown = text.clean(str(value))
    return shown if verbose or len(shown) <= _LONG else f"{shown[: _LONG - 1]}…"


def _grid(rows: list[Row], verbose: bool, noun: str) -> Grid:
    table = Grid(Column(""), Column(noun), Column("type", spare=1), Column("what", wrap=True))
    shown = rows if verbose else rows[:_ROWS]
    for row in shown:
        table.add(*row)
    if len(shown) < len(rows):
        table.add("", f"… {len(rows) - len(shown)} more (-v shows all)", "", "")
    return table


def to_dict(result: Difference, code: int) -> dict[str, Any]:
    """The JSON object of a comparison."""
    return {"command": "diff", "exit_code": code, "ok": code == 0, **result.to_dict()}
