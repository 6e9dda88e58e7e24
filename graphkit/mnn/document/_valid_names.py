"""Names of operators, tensors and outputs, and how many tensors the file says it has."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.mnn.document._valid_problem import Problem, Scope, error, kind_of, listed, near, places, warning
from graphkit.mnn.document._valid_wiring import produced


def check_names(scope: Scope) -> Iterator[Problem]:
    """Names that are used twice, and outputs that are not there, in one graph."""
    yield from _lists(scope)
    yield from _op_names(scope)
    yield from _tensor_names(scope)
    yield from _net_outputs(scope) if scope.main else _body_outputs(scope)
    yield from _count(scope)


def _lists(scope: Scope) -> Iterator[Problem]:
    ops, tensors = ("oplists", "tensorName") if scope.main else ("nodes", "tensors")
    for field, found in ((ops, scope.view.ops), (tensors, scope.view.tensors)):
        if not found:
            yield error(f"{scope.prefix}{field}", "is missing or empty: MNN cannot load the graph", "restore it")


def _op_names(scope: Scope) -> Iterator[Problem]:
    for name, numbers in scope.shared_names.items():
        yield warning(
            f"{scope.op(numbers[1])}.name",
            f"'{name}' is the name of {len(numbers)} operators ({listed(numbers)})",
            "quantization settings and profiles go by name: give each a name of its own",
        )


def _tensor_names(scope: Scope) -> Iterator[Problem]:
    looked_up = _looked_up(scope)
    for name, numbers in places(scope.view.tensors).items():
        where, message = scope.tensor_path(numbers[1]), f"'{name}' is the name of tensors {listed(numbers)}"
        if name in looked_up:
            message += f", and MNN finds the graph's {looked_up[name]} by name"
            yield error(where, message, "give each tensor a name of its own")
        else:
            yield warning(where, message, "give each a name of its own")


def _looked_up(scope: Scope) -> dict[str, str]:
    """Tensors that MNN finds by their names: inputs and outputs."""
    table, names = scope.view.table, scope.view.tensors
    if not scope.main:
        found = {names[k]: "input" for k in table.ints("inputs") if 0 <= k < len(names)}
        return found | {names[k]: "output" for k in table.ints("outputs") if 0 <= k < len(names)}
    fed = [k for op in scope.view.ops if kind_of(op) == "Input" for k in op.ints("outputIndexes")]
    found = {names[k]: "input" for k in fed if 0 <= k < len(names)}
    return found | dict.fromkeys(table.texts("outputName"), "output")


def _net_outputs(scope: Scope) -> Iterator[Problem]:
    net, names = scope.view.table, scope.view.tensors
    outputs = net.texts("outputName")
    if not outputs:
        yield from _no_outputs(scope)
    made = produced(scope)
    index = {name: k for k, name in enumerate(names)}
    seen: set[str] = set()
    for place, name in enumerate(outputs):
        where = f"outputName[{place}]"
        if name not in index:
            yield error(where, f"there is no tensor '{name}'", near(name, names, "name one of tensorName"))
        elif index[name] not in made:
            hint = near(
                name, [names[k] for k in made if 0 <= k < len(names)], "name a tensor that an operator computes"
            )
            yield error(where, f"nothing computes {scope.tensor(index[name])}: MNN would hand over an input", hint)
        elif name in seen:
            yield warning(where, f"'{name}' is an output already", "name it once")
        seen.add(name)


def _no_outputs(scope: Scope) -> Iterator[Problem]:
    if "outputName" in scope.view.table:
        yield error("outputName", "is empty: the model computes nothing", "name at least one tensor")
    else:
        hint = "MNN then takes every tensor that nothing reads; name the outputs"
        yield warning("outputName", "the file names no outputs", hint)


def _body_outputs(scope: Scope) -> Iterator[Problem]:
    body, names = scope.view.table, scope.view.tensors
    if not body["name"]:
        yield error(f"{scope.prefix}name", "a subgraph without a name makes MNN crash", "give it a name")
    made = produced(scope)
    for field in ("inputs", "outputs"):
        for place, index in enumerate(body.ints(field)):
            where = f"{scope.prefix}{field}[{place}]"
            if not 0 <= index < len(names):
                hint = f"tensors has {len(names)} names, 0 to {len(names) - 1}"
                yield error(where, f"there is no tensor {index}", hint)
            elif index not in made:
                hint = near(names[index], [names[k] for k in made if 0 <= k < len(names)])
                yield error(where, f"nothing computes {scope.tensor(index)}", hint)
    yield from _unlisted(scope)
    if "outputs" not in body:
        yield error(f"{scope.prefix}outputs", "is missing: MNN crashes", "list the tensors that the subgraph returns")


def _unlisted(scope: Scope) -> Iterator[Problem]:
    """MNN feeds a subgraph what `inputs` lists; another Input of it stays without a value."""
    fed = set(scope.view.table.ints("inputs"))
    for number, op in enumerate(scope.view.ops):
        for index in op.ints("outputIndexes"):
            if kind_of(op) == "Input" and index not in fed:
                message = f"tensor {index} of {scope.label(number)} is not listed: MNN crashes"
                yield error(f"{scope.prefix}inputs", message, f"add {index}, or remove the operator")


def _count(scope: Scope) -> Iterator[Problem]:
    if not scope.main:
        return
    said, count = int(scope.view.table["tensorNumber"]), len(scope.view.tensors)
    if 0 < said < count:
        hint = "set it to the number of names, or to 0: MNN reads it only where there are no names"
        yield warning("tensorNumber", f"says {said} where tensorName has {count}", hint)
