"""What a check of a document says, and where: used by all the `_valid_*` modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Literal

from graphkit.mnn.document._path_text import quoted
from graphkit.mnn.document.files import GraphView
from graphkit.mnn.document.tree import Table

_OFF = 6  # characters by which a name can be longer than what was meant
_COMPARED = 300

SOURCES = frozenset(("Input", "Const", "TrainableParam"))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document.

    severity: an error makes MNN crash, refuse the file or compute from wrong data; a warning is worth a look.
    where: the path of the field, as `graphkit mnn get` takes it.
    """

    severity: Literal["error", "warning"]
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}{f' ({self.hint})' if self.hint else ''}"


def error(where: str, message: str, hint: str = "") -> Problem:
    """A problem of severity error."""
    return Problem("error", where, message, hint)


def warning(where: str, message: str, hint: str = "") -> Problem:
    """A problem of severity warning."""
    return Problem("warning", where, message, hint)


def near(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint with the nearest of the known names, `otherwise` when none is near.

    Only names of about the same length that begin or end alike are compared: a graph has thousands.
    """
    alike = [one for one in known if abs(len(one) - len(name)) <= _OFF and _touch(one, name)]
    found = get_close_matches(name, alike[:_COMPARED], n=1)
    return f"did you mean '{found[0]}'?" if found else otherwise


def _touch(one: str, other: str) -> bool:
    return one[:2].lower() == other[:2].lower() or one[-2:].lower() == other[-2:].lower()


def places(names: Iterable[str | None]) -> dict[str, list[int]]:
    """Where each name stands that stands more than once; None and "" are no names."""
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        if name:
            found.setdefault(name, []).append(number)
    return {name: numbers for name, numbers in found.items() if len(numbers) > 1}


def listed(numbers: list[int]) -> str:
    """The first few numbers, in words."""
    return ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")


@dataclass(frozen=True)
class Scope:
    """One graph of a document with the means to say where something is. `main` tells the main graph from subgraphs."""

    view: GraphView
    index: int = -1

    @property
    def main(self) -> bool:
        """Whether this is the main graph."""
        return self.index < 0

    @property
    def prefix(self) -> str:
        """What stands before `ops[…]` in paths: nothing, or the subgraph and a dot."""
        if self.main:
            return ""
        name = self.view.name
        return f"subgraphs[{quoted(name) if name else self.index}]."

    @cached_property
    def shared_names(self) -> dict[str, list[int]]:
        """Names that several operators have, with the operators' numbers."""
        return places(op["name"] for op in self.view.ops)

    def op(self, number: int) -> str:
        """The path of an operator: by name, by number when the name is missing or used twice."""
        name = self.view.ops[number]["name"]
        key = quoted(name) if name and name not in self.shared_names else str(number)
        return f"{self.prefix}ops[{key}]"

    def label(self, number: int) -> str:
        """An operator in words: its type and name."""
        op = self.view.ops[number]
        return f"{op.label('type')} '{op['name'] or number}'"

    def tensor_path(self, index: int) -> str:
        """The path of a tensor's name."""
        return f"{self.prefix}{'tensorName' if self.main else 'tensors'}[{index}]"

    def tensor(self, index: int) -> str:
        """A tensor in words, for an index that is in range."""
        return f"tensor {index} '{self.view.tensors[index]}'"


def kind_of(op: Table) -> str:
    """The name of an operator's type."""
    return op.label("type")
