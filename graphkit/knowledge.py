"""What MNN does with each ONNX operator: a table of data, and the judgement of one node by it.

The table, `mnn/operators.json`, is made and re-checked by `conformance/learn.py` from what the installed MNN did with
ONNX's backend tests and our probes. It has for each operator (`Op` or `domain::Op`) a verdict, the evidence, and the
conditions under which MNN goes wrong: `{"when": {feature: test}, "effect": …, "why": …, "fix": pass or null}`.
A condition holds when all its tests do; without tests it always does. A test is

    a value         the feature is known and has it            "attr.mode": "cubic"
    a list          one of the tests in it holds               "rank.in0": [1, 2]
    ">4", "<4"      the feature is a number beyond it          "rank.in0": ">4"
    "!x"            the feature is known and has another value "attr.mode": "!nearest"
    null            the feature is not known or not there      "attr.axis": null

What the graph leaves unknown (a rank, a shape) satisfies only null: `graphkit check` says which nodes it could not
judge. `features` tells what can be tested.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from graphkit._features import Feature, features, since_version
from graphkit.errors import ModelError
from graphkit.graph import Graph
from graphkit.node import Node

Test = str | int | float | bool | None | list["Test"]
When = Mapping[str, Test]
Effect = Literal["crashes", "refused", "fails", "wrong"]
EFFECTS: tuple[str, ...] = get_args(Effect)
VERDICTS = ("right", "conditional", *EFFECTS, "untested")


@dataclass(frozen=True)
class Condition:
    """Under which features an operator goes wrong in MNN, how, why, and which pass helps (None: none does).

    origin: "learned" from verdicts, "exact" for a form that nothing general explains, "hand" for a fact that somebody
    wrote down. cases: how many tests showed it, example: one of them.
    """

    when: When
    effect: Effect
    why: str
    fix: str | None = None
    origin: str = "learned"
    cases: int = 0
    example: str = ""

    def holds(self, found: Mapping[str, Feature]) -> bool:
        """True when a node with these features meets it."""
        return all(holds(test, found.get(name)) for name, test in self.when.items())

    def open(self, found: Mapping[str, Feature]) -> bool:
        """True when it might hold: all tests on known features do, and a type or size that it asks for is unknown."""
        missing = [name for name in self.when if name not in found and name.startswith(_INFERRED)]
        known = {name: test for name, test in self.when.items() if name not in missing}
        return bool(missing) and all(holds(test, found.get(name)) for name, test in known.items())

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the table."""
        return {key: value for key, value in vars(self).items() if value != "" or key == "why"}


_INFERRED = (
    "dtype.", "kind.", "rank.", "dims.", "front.", "last.", "empty.", "length.in", "length.out", "broadcast", "mixed",
    "scale",
)  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """One row of the table: what the tests showed of an operator, as verdicts of nodes, and when it goes wrong."""

    verdict: str
    bad: tuple[Condition, ...] = ()
    evidence: Mapping[str, int] = field(default_factory=dict)

    def first(self, found: Mapping[str, Feature]) -> Condition | None:
        """The first condition that a node with these features meets."""
        return next((condition for condition in self.bad if condition.holds(found)), None)


@dataclass(frozen=True)
class Knowledge:
    """The table: MNN's version, the operator types that its converter knows by name, and the rows."""

    mnn: str
    known: frozenset[str]
    operators: Mapping[str, Operator]

    def judge(self, graph: Graph, node: Node) -> Condition | None:
        """How MNN goes wrong on a node of this graph, None when nothing speaks against it."""
        row = self.operators.get(node.op)
        if row is not None:
            return row.first(features(graph, node)) if row.bad else None
        return self._stranger(graph, node)

    def open(self, graph: Graph, node: Node) -> bool:
        """True when a condition might hold for a node, and types that inference did not find would tell."""
        row = self.operators.get(node.op)
        if row is None or not row.bad or all(graph.type(value) for value in (*node.inputs, *node.outputs) if value):
            return False
        found = features(graph, node)
        return any(condition.open(found) for condition in row.bad)

    def _stranger(self, graph: Graph, node: Node) -> Condition | None:
        """An operator without a row."""
        if any(key[:2] == (node.domain, node.op_type) for key in graph.root.functions):
            return Condition({}, "refused", "a function of the model, which MNN does not look into", "inline-functions")
        if node.op_type not in self.known:
            return Condition({}, "refused", f"no such operator in MNN {self.mnn}")
        if node.domain:
            why = f"MNN ignores the domain '{node.domain}' and takes it for ONNX's {node.op_type}"
            return Condition({}, "wrong", why)
        return None


def holds(test: Test, value: Feature | None) -> bool:
    """True when a feature (None: unknown) passes a test; see the module's text."""
    if isinstance(test, list):
        return any(holds(item, value) for item in test)
    if test is None or value is None:
        return test is None and value is None
    if isinstance(test, str) and test[:1] in ("<", ">", "!") and len(test) > 1:
        return _compares(test, value)
    if isinstance(test, bool) or isinstance(value, bool):
        return test is value
    return test == value


def _compares(test: str, value: Feature) -> bool:
    sign, limit = test[0], test[1:]
    if sign == "!":
        return str(value) != limit
    if isinstance(value, bool | str):
        return False
    return value > float(limit) if sign == ">" else value < float(limit)


@functools.cache
def table() -> Knowledge:
    """The table that comes with graphkit."""
    return parse(json.loads(resources.files("graphkit").joinpath("mnn/operators.json").read_text("utf-8")))


def load(path: Path) -> Knowledge:
    """A table from a file. Raises ModelError when it is not one."""
    try:
        return parse(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"is not a table of operators: {error}", file=path) from error


def parse(data: Mapping[str, Any]) -> Knowledge:
    """A table from its JSON. Raises ValueError, KeyError or TypeError when something in it is not what it must be."""
    rows = {op: _row(op, row) for op, row in data["operators"].items()}
    return Knowledge(str(data["mnn"]), frozenset(data["known"]), rows)


def _row(op: str, row: Mapping[str, Any]) -> Operator:
    if row["verdict"] not in VERDICTS:
        raise ValueError(f"{op}: no such verdict: {row['verdict']}")
    conditions = tuple(Condition(**item) for item in row.get("bad", ()))
    wrong = [item.effect for item in conditions if item.effect not in EFFECTS]
    if wrong:
        raise ValueError(f"{op}: no such effect: {wrong[0]}")
    return Operator(row["verdict"], conditions, row.get("evidence", {}))


def write(knowledge: Knowledge, path: Path, **notes: Any) -> None:
    """Write a table as JSON, sorted; `notes` come before the rows."""
    rows = {op: _row_dict(row) for op, row in sorted(knowledge.operators.items())}
    head = {"mnn": knowledge.mnn, **notes, "known": sorted(knowledge.known)}
    lines = [f"  {json.dumps(op)}: {_row_text(row)}" for op, row in rows.items()]
    text = json.dumps(head, indent=1, ensure_ascii=False).rstrip("}\n") + ',\n "operators": {\n' + ",\n".join(lines)
    path.write_text(f"{text}\n }}\n}}\n", encoding="utf-8")


def _row_dict(row: Operator) -> dict[str, Any]:
    data: dict[str, Any] = {"verdict": row.verdict, "evidence": dict(sorted(row.evidence.items()))}
    return {**data, "bad": [condition.to_dict() for condition in row.bad]}


def _row_text(row: Mapping[str, Any]) -> str:
    """A row with one condition a line, so that a change of the table reads well as a difference."""
    head = json.dumps({key: value for key, value in row.items() if key != "bad"}, ensure_ascii=False)
    conditions = [f"    {json.dumps(item, ensure_ascii=False)}" for item in row["bad"]]
    return f'{head[:-1]}, "bad": [' + ("\n" + ",\n".join(conditions) if conditions else "") + "]}"


__all__ = [
    "EFFECTS",
    "VERDICTS",
    "Condition",
    "Effect",
    "Feature",
    "Knowledge",
    "Operator",
    "features",
    "holds",
    "load",
    "parse",
    "since_version",
    "table",
    "write",
]
