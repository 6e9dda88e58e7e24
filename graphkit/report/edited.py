"""Print what was changed in a .mnn file and what MNN makes of it, and values of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.report import text
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.mnn.document.edits import Edit, Saved

LONG = 64  # elements; longer arrays inside of a printed value are told by type and length
_LINE = 100  # characters of JSON on one line
_EDITS = 8  # lines without -v


def show_edited(report: Report, edits: Sequence[Edit], saved: Saved, *, details: bool) -> None:
    """Print the edits (`details`, or with -v) and one line on the result."""
    if details or report.verbose:
        shown = edits if report.verbose else edits[:_EDITS]
        for edit in shown:
            report.say(f"  {text.clean(edit.detail)}")
        if len(shown) < len(edits):
            report.say(f"  … {len(edits) - len(shown)} more (-v shows all)")
    report.say(f"{text.count(len(edits), 'edit')}, {outcome(saved)}")
    for problem in saved.warnings if report.verbose else ():
        report.say(f"warning: {text.clean(problem.where)}: {text.clean(problem.message)}")
    if report.verbose:
        report.say(f"wrote {text.clean(str(saved.path))}  {text.size(saved.size)}")


def outcome(saved: Saved) -> str:
    """What was found of a saved document: `valid, loads, runs at [1,3,640,640]`."""
    doubts = f" ({text.count(len(saved.warnings), 'warning')}: see -v)" if saved.warnings else ""
    return f"valid{doubts}, {text.clean(saved.trial.note)}"


def show_values(report: Report, values: Mapping[str, Any]) -> None:
    """Print values, each with its path when there are several."""
    for path, value in values.items():
        shown = value if isinstance(value, str) else _laid_out(value)
        report.say(text.clean(shown if len(values) == 1 else f"{path}: {shown}"))


def _laid_out(value: Any, indent: str = "") -> str:
    """JSON whose objects go over several lines where one would be long; lists of numbers stay on one."""
    line = json.dumps(value, ensure_ascii=False)
    inner = f"{indent}  "
    if len(line) <= _LINE or not value:
        return line
    if isinstance(value, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(item, inner)}" for key, item in value.items()]
    elif isinstance(value, list) and isinstance(value[0], dict | str):
        rows = [_laid_out(item, inner) for item in value]
    else:
        return line
    opened, closed = ("{", "}") if isinstance(value, dict) else ("[", "]")
    body = f",\n{inner}".join(rows)
    return f"{opened}\n{inner}{body}\n{indent}{closed}"


def to_dict(command: str, source: Path, edits: Sequence[Edit], saved: Saved) -> dict[str, object]:
    """The JSON object of an editing command."""
    trial = saved.trial
    return {
        "command": f"mnn {command}",
        "model": str(source),
        "output": str(saved.path),
        "exit_code": 0,
        "ok": True,
        "bytes": saved.size,
        "edits": [vars(edit) for edit in edits],
        "warnings": [vars(problem) for problem in saved.warnings],
        "loads": trial.loads,
        "runs": trial.outputs is not None,
        "shapes": trial.shapes and {name: list(shape) for name, shape in trial.shapes.items()},
        "note": trial.note,
    }
