"""What the schema does not know: numbers of enums, fields of a newer version; and what is said about tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphkit.mnn.document._valid_problem import Problem, Scope, error, kind_of, warning
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.schema import TableType
from graphkit.mnn.document.tree import Table


def check_unknown(doc: Document) -> Iterator[Problem]:
    """Fields that the file holds and the schema does not know."""
    for line in doc.unknown():
        where, _, what = line.partition(": ")
        yield warning(where.split(" ")[0] or "net", what, "a newer MNN wrote it: it cannot be written back")


def check_enums(scope: Scope, types: dict[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Enum fields of a graph's operators whose number has no name; `types` caches each table's enum fields."""
    for number, op in enumerate(scope.view.ops):
        for where, table in op.walk():
            for field in _enum_fields(table.type, types):
                if field in table.fields and table.label(field).startswith("?") and _odd(where, op, field):
                    report = error if field == "opType" else warning
                    yield _unnamed(report, f"{scope.op(number)}{f'.{where}' if where else ''}.{field}", table, field)


def _odd(where: str, op: Table, field: str) -> bool:
    """Whether a number without a name is worth a warning.

    The operator's own type is checked elsewhere; by -1 a scatter says that it does not combine.
    """
    if not where:
        return field != "type"
    return not (kind_of(op).startswith("Scatter") and field == "opType")


def _enum_fields(type_: TableType, types: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    found = types.get(type_.name)
    if found is None:
        fields = type_.fields.values()
        found = types[type_.name] = tuple(field.name for field in fields if field.kind == "enum" and not field.vector)
    return found


def _unnamed(report: Callable[[str, str, str], Problem], where: str, table: Table, field: str) -> Problem:
    names = table.schema.enums[table.field(field).type]
    known = ", ".join(f"{name} {number}" for name, number in list(names.numbers.items())[:6])
    return report(where, f"{names.name} has no number {table[field]}", f"it has {known}, …")


def check_descriptions(scope: Scope) -> Iterator[Problem]:
    """Problems of extraTensorDescribe, and of static models, which MNN runs with the sizes it gives."""
    count = len(scope.view.tensors)
    described = scope.view.table["extraTensorDescribe"]
    static = scope.main and scope.view.table.label("usage") == "INFERENCE_STATIC"
    if static and described is None:
        message = "is missing: MNN crashes on a model of usage INFERENCE_STATIC without it"
        yield error("extraTensorDescribe", message, "set usage to INFERENCE")
    for place, entry in enumerate(described or ()):
        where = f"{scope.prefix}extraTensorDescribe[{place}]"
        if not 0 <= entry["index"] < count:
            hint = f"there are {count}, 0 to {count - 1}"
            yield error(f"{where}.index", f"there is no tensor {entry['index']}", hint)
        if static:
            yield from _regions(where, entry, count)


def _regions(where: str, entry: Table, count: int) -> Iterator[Problem]:
    for place, region in enumerate(entry.tables("regions")):
        spot = f"{where}.regions[{place}]"
        if not 0 <= region["origin"] < count:
            yield error(f"{spot}.origin", f"there is no tensor {region['origin']}", f"there are {count}")
        parts: Mapping[str, Table | None] = {"src.stride": region["src"], "dst.stride": region["dst"], "size": region}
        for field, table in parts.items():
            sizes = table.ints(field.rpartition(".")[2]) if table is not None else ()
            if len(sizes) < 3:
                yield error(f"{spot}.{field}", f"has {len(sizes)} numbers", "MNN reads 3")


def check_loops(scope: Scope) -> Iterator[Problem]:
    """Problems of While operators that hold a LoopParam: tensors by number in a stack of their own."""
    for number, op in enumerate(scope.view.ops):
        main = op["main"]
        if isinstance(main, Table) and main.type.name == "LoopParam" and kind_of(op) == "While":
            yield from _loop(f"{scope.op(number)}.main", op, main)


def _loop(where: str, op: Table, loop: Table) -> Iterator[Problem]:
    count = int(loop["tensorNumber"])
    for field in ("inputIndexes", "outputIndexes"):
        listed, used = loop.ints(field), op.ints(field)
        if len(listed) != len(used):
            message = f"has {len(listed)} numbers where the operator's {field} has {len(used)}"
            yield error(f"{where}.{field}", message, "there is one for each")
        yield from _in_stack(f"{where}.{field}", listed, count, 0)
    for field in ("commands", "initCommand"):
        for place, command in enumerate(loop.tables(field)):
            yield from _command(f"{where}.{field}[{place}]", command, count, field)
    if loop["commands"] is None:
        yield error(f"{where}.commands", "is missing: MNN crashes", "give the loop what it does")
    infos = loop["extraTensorInfos"]
    if infos is None or len(infos) != len(op.ints("outputIndexes")):
        yield error(f"{where}.extraTensorInfos", "does not describe each output", "give each output its sizes")


def _command(where: str, command: Table, count: int, field: str) -> Iterator[Problem]:
    yield from _in_stack(f"{where}.indexes", command.ints("indexes"), count, 0)
    yield from _in_stack(f"{where}.iterIndexes", command.ints("iterIndexes"), count, -1)
    if command["op"] is None:
        if field == "commands":
            yield error(f"{where}.op", "is missing: MNN crashes", "give the command an operator")
        return
    if len(command.ints("size")) < 3:
        yield error(f"{where}.size", f"has {len(command.ints('size'))} numbers", "MNN reads 3")
    for place, view in enumerate(command.tables("view")):
        if len(view.ints("stride")) < 3:
            yield error(f"{where}.view[{place}].stride", f"has {len(view.ints('stride'))} numbers", "MNN reads 3")


def _in_stack(where: str, indexes: tuple[int, ...], count: int, lowest: int) -> Iterator[Problem]:
    for place, index in enumerate(indexes):
        if not lowest <= index < count:
            yield error(f"{where}[{place}]", f"there is no tensor {index}", f"the loop's tensorNumber is {count}")
