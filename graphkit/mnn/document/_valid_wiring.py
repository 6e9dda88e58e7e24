"""Which operator computes which tensor: indexes, order, producers.

MNN checks none of this. An index out of range is a crash when the file is loaded; a tensor that is read before it is
computed holds whatever the memory held.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.mnn.document._valid_problem import SOURCES, Problem, Scope, error, kind_of, near, warning


def check_wiring(scope: Scope) -> Iterator[Problem]:
    """Problems of the operators' inputs and outputs in one graph."""
    producers = _producers(scope)
    yield from _indexes(scope)
    yield from _outputs_given(scope)
    yield from _twice(scope)
    yield from _order(scope, producers)


def produced(scope: Scope) -> set[int]:
    """Tensors that an operator computes or that the graph is given."""
    return {*_producers(scope), *_given(scope)}


def _given(scope: Scope) -> tuple[int, ...]:
    return () if scope.main else scope.view.table.ints("inputs")


def _producers(scope: Scope) -> dict[int, int]:
    """The first operator that computes each tensor."""
    found: dict[int, int] = {}
    for number, op in enumerate(scope.view.ops):
        for index in op.ints("outputIndexes"):
            found.setdefault(index, number)
    return found


def _indexes(scope: Scope) -> Iterator[Problem]:
    count = len(scope.view.tensors)
    listed = "tensorName" if scope.main else "tensors"
    for number, op in enumerate(scope.view.ops):
        for field in ("inputIndexes", "outputIndexes"):
            for place, index in enumerate(op.ints(field)):
                if not 0 <= index < count:
                    yield error(
                        f"{scope.op(number)}.{field}[{place}]",
                        f"there is no tensor {index}",
                        f"{listed} has {count} names, 0 to {count - 1}: add a name or correct the index",
                    )


def _outputs_given(scope: Scope) -> Iterator[Problem]:
    for number, op in enumerate(scope.view.ops):
        where = f"{scope.op(number)}.outputIndexes"
        kind = kind_of(op)
        count = len(op.ints("outputIndexes"))
        if "outputIndexes" not in op:
            yield error(where, "is missing: MNN refuses an operator without outputs", "give it the tensor it computes")
        elif kind in SOURCES and count != 1:
            yield error(where, f"names {count} tensors where a {kind} has one", "give it one tensor")
        elif not count:
            yield warning(where, "is empty: nothing can read what the operator computes", "remove the operator")


def _twice(scope: Scope) -> Iterator[Problem]:
    first: dict[int, int] = {}
    for number, op in enumerate(scope.view.ops):
        for place, index in enumerate(op.ints("outputIndexes")):
            if index in first:
                yield _second(scope, first[index], number, place, index)
            first.setdefault(index, number)


def _second(scope: Scope, before: int, number: int, place: int, index: int) -> Problem:
    where = f"{scope.op(number)}.outputIndexes[{place}]"
    message = f"{_named(scope, index)} is computed by {scope.label(before)} already"
    if kind_of(scope.view.ops[before]) in ("Const", "TrainableParam"):
        return warning(where, message, "MNN takes this for a parameter that is trained")
    return error(where, message, "give each operator tensors of its own")


def _named(scope: Scope, index: int) -> str:
    return scope.tensor(index) if 0 <= index < len(scope.view.tensors) else f"tensor {index}"


def _order(scope: Scope, producers: dict[int, int]) -> Iterator[Problem]:
    ready = set(_given(scope))
    count = len(scope.view.tensors)
    for number, op in enumerate(scope.view.ops):
        for place, index in enumerate(op.ints("inputIndexes")):
            if index not in ready and 0 <= index < count:
                yield _not_ready(scope, producers, number, place, index)
        ready.update(op.ints("outputIndexes"))


def _not_ready(scope: Scope, producers: dict[int, int], number: int, place: int, index: int) -> Problem:
    where = f"{scope.op(number)}.inputIndexes[{place}]"
    maker = producers.get(index)
    if maker is None:
        return error(where, f"nothing computes {scope.tensor(index)}", _instead(scope, producers, index))
    if maker == number:
        return error(where, f"{scope.tensor(index)} is the operator's own output", "read another tensor")
    return error(
        where,
        f"{scope.tensor(index)} is read before {scope.label(maker)} computes it",
        f"MNN runs operators in the order of the file: move {scope.op(maker)} before {scope.op(number)}",
    )


def _instead(scope: Scope, producers: dict[int, int], index: int) -> str:
    made = [scope.view.tensors[k] for k in producers if 0 <= k < len(scope.view.tensors)]
    return near(scope.view.tensors[index], made, "read a tensor that an operator before it computes")
