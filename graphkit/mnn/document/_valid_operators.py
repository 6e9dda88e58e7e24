"""Whether an operator's type, main_type and main belong together, and whether it has inputs enough."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.mnn.document._valid_problem import SOURCES, Problem, Scope, error, kind_of, warning
from graphkit.mnn.document._valid_table import NEEDS, Needs
from graphkit.mnn.document.tree import Table

# With so many inputs these take from them what the parameters would say.
_INSTEAD = {
    "Reshape": 2,
    "QuantizedReshape": 2,
    "ExpandDims": 2,
    "GatherV2": 2,
    "BatchToSpaceND": 3,
    "SpaceToBatchND": 3,
}

# Operations of BinaryOp that no code of MNN 3.6.1 computes, and what does.
_OLD = {"DIV": "REALDIV", "MAX_TEMP": "MAXIMUM", "MIN_TEMP": "MINIMUM"}


def check_operators(scope: Scope) -> Iterator[Problem]:
    """Problems of the operators' types and parameters in one graph."""
    for number, op in enumerate(scope.view.ops):
        kind = kind_of(op)
        if kind.startswith("?"):
            yield _unknown_type(scope, number, op)
            continue
        needs = NEEDS.get(kind)
        if needs is not None:
            yield from _parameters(scope, number, op, needs)
        yield from _inputs(scope, number, op, needs)
        if kind == "BinaryOp":
            yield from _computed(scope, number, op["main"])


def _computed(scope: Scope, number: int, main: object) -> Iterator[Problem]:
    if isinstance(main, Table) and main.type.name == "BinaryOp" and main.label("opType") in _OLD:
        name = main.label("opType")
        message = f"MNN has a number for {name} and does not compute it"
        yield error(f"{scope.op(number)}.main.opType", message, f"use {_OLD[name]}")


def _unknown_type(scope: Scope, number: int, op: Table) -> Problem:
    version = op.schema.version
    return error(
        f"{scope.op(number)}.type",
        f"MNN {version} has no operator of type {op['type']}",
        "set a type that it has, such as 'Convolution'",
    )


def _table_of(op: Table) -> str:
    """The table of the parameters; "NONE" without any, "?" for a number the schema does not know."""
    number = int(op["main_type"])
    members = op.schema.members
    return members[number] if number < len(members) else "?"


def _parameters(scope: Scope, number: int, op: Table, needs: Needs) -> Iterator[Problem]:
    kind, table, main = kind_of(op), _table_of(op), op["main"]
    where = scope.op(number)
    wanted = " or ".join(name for name in needs.tables if name != "NONE") or "no parameters"
    if isinstance(main, Table) and main.type.name != table:
        said = f"main_type says {table}, main is a {main.type.name}"
        yield error(f"{where}.main_type", said, f"set main_type to {main.type.name}")
    elif table == "NONE" or main is None:
        yield from _missing(where, kind, table, wanted, needs)
    elif table not in needs.tables:
        report = error if needs.crashes_without else warning
        found = "a table this version does not know" if table == "?" else table
        yield report(f"{where}.main_type", f"a {kind} has {wanted}, this one has {found}", f"set main_type to {wanted}")


def _missing(where: str, kind: str, table: str, wanted: str, needs: Needs) -> Iterator[Problem]:
    field = "main_type" if table == "NONE" else "main"
    if needs.crashes_without:
        yield error(f"{where}.{field}", f"is missing: MNN crashes on a {kind} without {wanted}", "give it parameters")
    elif table != "NONE":
        yield error(f"{where}.main", f"is missing though main_type says {table}", "set main_type to NONE")
    elif "NONE" not in needs.tables:
        yield warning(f"{where}.{field}", f"is missing: a {kind} has {wanted}", "give it parameters")


def _inputs(scope: Scope, number: int, op: Table, needs: Needs | None) -> Iterator[Problem]:
    kind, count = kind_of(op), len(op.ints("inputIndexes"))
    fewest = max(needs.inputs if needs is not None else 0, _fewest(kind, op["main"]))
    if kind in SOURCES and count:
        yield warning(f"{scope.op(number)}.inputIndexes", f"a {kind} reads nothing", "remove the field")
    elif count < fewest:
        message = f"lists {count} tensors, a {kind} reads at least {fewest}"
        hint = " or give it parameters" if kind in _INSTEAD else ""
        yield error(f"{scope.op(number)}.inputIndexes", message, f"name the tensors that it reads{hint}")


def _fewest(kind: str, main: object) -> int:
    """How many inputs an operator needs for what its parameters say, or leave to inputs."""
    if kind == "RNNSequenceGRU" and isinstance(main, Table) and "isBidirectionalRNN" in main.type.fields:
        return 11 if main["isBidirectionalRNN"] else 0
    without = main is None or (isinstance(main, Table) and main.type.name == "Reshape" and main["dims"] is None)
    return _INSTEAD.get(kind, 0) if without else 0
