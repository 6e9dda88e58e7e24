"""If and While: the subgraphs they name, and the tensors they pass by name.

MNN makes the subgraphs in the order of the file, so that one can only use those before it. It looks names up without
asking whether they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.mnn.document._valid_problem import Problem, Scope, error, listed, near, places, warning
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.tree import Table


@dataclass(frozen=True)
class Body:
    """A subgraph: its number in the file, and the names of what goes in and comes out."""

    number: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def bodies(doc: Document) -> dict[str, Body]:
    """The subgraphs by name; of two with one name, the first, as MNN does."""
    found: dict[str, Body] = {}
    for number, table in enumerate(doc.net.tables("subgraphs")):
        names = table.texts("tensors")
        inputs, outputs = (
            tuple(names[k] if 0 <= k < len(names) else "" for k in table.ints(field)) for field in ("inputs", "outputs")
        )
        found.setdefault(table["name"] or "", Body(number, inputs, outputs))
    return found


def check_subgraph_names(doc: Document) -> Iterator[Problem]:
    """Names that several subgraphs have."""
    for name, numbers in places(table["name"] for table in doc.net.tables("subgraphs")).items():
        message = f"'{name}' is the name of subgraphs {listed(numbers)}, and MNN takes the first"
        yield error(f"subgraphs[{numbers[1]}].name", message, "give each a name of its own")


def check_control(scope: Scope, known: Mapping[str, Body]) -> Iterator[Problem]:
    """Problems of the If and While operators of one graph."""
    for number, op in enumerate(scope.view.ops):
        main = op["main"]
        if not isinstance(main, Table) or main.type.name not in ("IfParam", "WhileParam"):
            continue
        control = Control(f"{scope.op(number)}.main", scope, op, main, known)
        yield from control.check_if() if main.type.name == "IfParam" else control.check_while()


@dataclass(frozen=True)
class Control:
    """One If or While: `where` is the path of its parameters, `main`."""

    where: str
    scope: Scope
    op: Table
    main: Table
    known: Mapping[str, Body]

    def check_if(self) -> Iterator[Problem]:
        """Problems of an If."""
        branches = {}
        for field in ("then_graph", "else_graph"):
            body, problems = self._find(field)
            yield from problems
            if body is not None:
                branches[field] = body
        given = self.main["aliases_inputs"]
        if given is None:
            yield error(f"{self.where}.aliases_inputs", "is missing: MNN crashes", "give it a list for each input")
            return
        yield from self._too_many("aliases_inputs", "inputIndexes")
        for body in branches.values():
            yield from self._covered(body)
        yield from self._if_outputs(branches)

    def check_while(self) -> Iterator[Problem]:
        """Problems of a While."""
        body, problems = self._find("body_graph")
        yield from problems
        if self.main["cond_graph"] is None:
            yield from self._counted_loop(body) if body is not None else ()
            return
        cond, problems = self._find("cond_graph")
        yield from problems
        absent = [name for name in ("aliases_inputs", "aliases_updates", "aliases_outputs") if self.main[name] is None]
        for name in absent:
            yield error(f"{self.where}.{name}", "is missing: MNN crashes", "write it, or leave cond_graph out")
        if absent or body is None or cond is None:
            return
        yield from self._too_many("aliases_inputs", "inputIndexes")
        yield from self._empty_aliases()
        for graph in (body, cond):
            yield from self._covered(graph)
        yield from self._updates(body, cond)
        yield from self._while_outputs(body)

    def _find(self, field: str) -> tuple[Body | None, list[Problem]]:
        where, name = f"{self.where}.{field}", self.main[field]
        if name is None:
            return None, [error(where, "is missing: MNN crashes", "name a subgraph")]
        body = self.known.get(name)
        if body is None:
            hint = near(name, self.known, f"subgraphs: {', '.join(list(self.known)[:5]) or 'none'}")
            return None, [error(where, f"there is no subgraph '{name}'", hint)]
        if not self.scope.main and body.number >= self.scope.index:
            message = f"subgraph '{name}' comes after the one that uses it, and MNN makes them in order"
            return body, [error(where, message, f"move subgraphs[{body.number}] before subgraphs[{self.scope.index}]")]
        return body, []

    def _aliases(self) -> list[Sequence[str]]:
        return [entry.texts("data") for entry in self.main.tables("aliases_inputs")]

    def _too_many(self, field: str, indexes: str) -> Iterator[Problem]:
        entries, count = len(self.main[field]), len(self.op.ints(indexes))
        if entries > count:
            message = f"has {entries} entries where the operator has {count} {indexes[:-7]}s"
            yield error(f"{self.where}.{field}", message, "there is one for each, in their order")

    def _empty_aliases(self) -> Iterator[Problem]:
        for place, entry in enumerate(self.main.tables("aliases_inputs")):
            if entry["data"] is None:
                where = f"{self.where}.aliases_inputs[{place}].data"
                yield error(where, "is missing: MNN crashes", "write an empty list")

    def _covered(self, body: Body) -> Iterator[Problem]:
        """Every input of a subgraph must come from an input of the operator."""
        passed = {name for names in self._aliases() for name in names}
        graph = self._name_of(body)
        for name in body.inputs:
            if name not in passed:
                hint = near(name, passed, "add its name to the aliases of the input it comes from")
                message = f"no input is passed to '{name}' of subgraph '{graph}': MNN crashes or hands over another"
                yield error(f"{self.where}.aliases_inputs", message, hint)

    def _name_of(self, body: Body) -> str:
        return next(name for name, known in self.known.items() if known is body)

    def _if_outputs(self, branches: Mapping[str, Body]) -> Iterator[Problem]:
        entries, count = self.main["aliases_outputs"], len(self.op.ints("outputIndexes"))
        if entries is None:
            yield from self._outputs_in_order(branches, count)
            return
        if len(entries) != count:
            message = f"has {len(entries)} entries where the operator has {count} outputs"
            yield error(f"{self.where}.aliases_outputs", message, "there is one for each output")
        for place, entry in enumerate(entries):
            where = f"{self.where}.aliases_outputs[{place}].data"
            pair = entry.texts("data")
            if len(pair) != 2:
                yield error(where, f"has {len(pair)} names", "it holds a tensor of then_graph and one of else_graph")
                continue
            for name, field in zip(pair, ("then_graph", "else_graph"), strict=True):
                body = branches.get(field)
                if body is not None and name not in body.outputs:
                    hint = near(name, body.outputs, f"its outputs: {', '.join(body.outputs)}")
                    yield error(where, f"'{name}' is no output of {field} '{self.main[field]}'", hint)

    def _outputs_in_order(self, branches: Mapping[str, Body], count: int) -> Iterator[Problem]:
        for field, body in branches.items():
            if len(body.outputs) < count:
                message = f"subgraph '{self.main[field]}' has {len(body.outputs)} outputs, the operator {count}"
                yield error(f"{self.where}.{field}", message, "add outputs to the subgraph")

    def _counted_loop(self, body: Body) -> Iterator[Problem]:
        """A Loop as ONNX has it: limit, condition and N values go in, condition, N values and K scans come out."""
        inputs, outputs = len(self.op.ints("inputIndexes")), len(self.op.ints("outputIndexes"))
        where = f"{self.where}.body_graph"
        if inputs < 2:
            yield error(where, f"the operator has {inputs} inputs", "a loop reads a limit and a condition first")
        elif len(body.inputs) != inputs:
            yield error(where, f"takes {len(body.inputs)} inputs where the operator has {inputs}", "make them equal")
        elif outputs < inputs - 2 or len(body.outputs) < outputs + 1:
            message = f"returns {len(body.outputs)} tensors where {outputs} outputs need {outputs + 1}"
            yield error(where, message, "it returns the condition, the carried values and the scanned ones")

    def _updates(self, body: Body, cond: Body) -> Iterator[Problem]:
        for place, entry in enumerate(self.main.tables("aliases_updates")):
            where, pair = f"{self.where}.aliases_updates[{place}].data", entry.texts("data")
            if len(pair) != 2:
                yield error(where, f"has {len(pair)} names", "it holds an output and the input that it becomes")
                continue
            made, taken = (*body.outputs, *cond.outputs), (*body.inputs, *cond.inputs)
            for name, known, what in ((pair[0], made, "output"), (pair[1], taken, "input")):
                if name not in known:
                    hint = near(name, known, f"{what}s: {', '.join(known[:5])}")
                    yield warning(where, f"'{name}' is no {what} of the loop's subgraphs: MNN ignores it", hint)

    def _while_outputs(self, body: Body) -> Iterator[Problem]:
        names, count = self.main.texts("aliases_outputs"), len(self.op.ints("outputIndexes"))
        if len(names) != count:
            message = f"has {len(names)} names where the operator has {count} outputs"
            yield error(f"{self.where}.aliases_outputs", message, "there is one for each output")
        known = {*body.outputs, *body.inputs, *(name for entry in self._aliases() for name in entry)}
        for place, name in enumerate(names):
            if name not in known:
                where = f"{self.where}.aliases_outputs[{place}]"
                hint = near(name, known, "name an output of the body")
                yield error(where, f"'{name}' is no tensor of the loop", hint)
