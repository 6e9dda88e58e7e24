"""`infer-shapes`: types of all values, from graph inputs and weights alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.node import Dim, TensorType, make_info, type_of_info
from graphkit.rewrite import Change, PassResult

Knowledge = tuple[int, int, int]


@dataclass(frozen=True)
class InferShapes:
    """Infer the type and shape of every value, symbolically, and correct graph outputs declared wrongly.

    Types follow from graph inputs and weights; what the file declares for inner values and outputs is not
    believed. Sizes of inputs keep their names and are computed with ("batch", "2*seq + 1"). A graph output
    whose declared size contradicts the inferred one gets the inferred one, with a note; its element type and
    rank stay as declared, and a contradiction there is only noted.
    """

    name: ClassVar[str] = "infer-shapes"
    summary: ClassVar[str] = "infer types and symbolic shapes of all values"

    def run(self, graph: Graph) -> PassResult:
        """Refresh all types; reports a change only when more is known than before."""
        before = [(inner, value, inner.type(value)) for inner, value in _values(graph)]
        count = shapes.infer(graph)
        fresh = sum(_is_news(inner.type(value), old) for inner, value, old in before)
        changes = [Change(graph.name or "graph", f"types of {fresh} values became known")] if fresh else []
        corrected, notes = correct_outputs(graph)
        return PassResult((*changes, *corrected), counters={"typed": count}, notes=tuple(notes))


def _values(graph: Graph) -> Iterator[tuple[Graph, str]]:
    for inner in graph.walk():
        for node in inner.nodes:
            yield from ((inner, value) for value in node.outputs if value)


@lru_cache(maxsize=4096)
def _is_news(now: TensorType | None, before: TensorType | None) -> bool:
    """True when `now` says more than `before`: more about rank and element type, else more about sizes."""
    new, old = _knowledge(now), _knowledge(before)
    return new[0] > old[0] or (new[0] == old[0] and new[1:] > old[1:])


def _knowledge(type_: TensorType | None) -> Knowledge:
    """How much a type says: (element type or rank known, sizes that are numbers, named sizes)."""
    if type_ is None:
        return (0, 0, 0)
    shape = type_.shape or ()
    known = sum(isinstance(dim, int) for dim in shape)
    named = sum(isinstance(dim, str) for dim in shape)
    return (bool(type_.dtype) + (type_.shape is not None), known, named)


def correct_outputs(graph: Graph, *, sharpen: bool = False) -> tuple[list[Change], list[str]]:
    """Correct sizes that root outputs declare and inference contradicts.

    With `sharpen` sizes that are known but not declared are written too. Returns the changes and a note for
    each contradiction.
    """
    changes: list[Change] = []
    notes: list[str] = []
    shapes_of_inputs = (graph.shape(value) or () for value in graph.inputs)
    named = {dim for shape in shapes_of_inputs for dim in shape if isinstance(dim, str)}
    for value, info in graph.output_infos.items():
        declared, found = type_of_info(info), graph.type(value)
        node = graph.producer(value)
        if declared is None or found is None or found.shape is None or node is None:
            continue
        if declared.dtype != found.dtype or (declared.shape is not None and declared.rank != found.rank):
            notes.append(f"output '{value}' is declared {declared} and computed as {found}; left as declared")
            continue
        shape = _corrected(declared.shape, found.shape, named, sharpen)
        if shape == declared.shape or not graph.allows(node, f"correct output shape to {shape}"):
            continue
        fixed = TensorType(declared.dtype, shape)
        info = type(info).FromString(info.SerializeToString())
        info.type.CopyFrom(make_info(value, fixed).type)
        graph.output_infos[value] = info
        changes.append(Change(node.label, f"output '{value}' declared {declared}, is {fixed}"))
        if shape and any(_is_wrong(*pair, named) for pair in zip(declared.shape or (), found.shape, strict=False)):
            notes.append(f"output '{value}' was declared {declared} but is {fixed}; corrected")
    return changes, notes


def _corrected(
    declared: tuple[Dim, ...] | None, found: tuple[Dim, ...], named: set[str], sharpen: bool
) -> tuple[Dim, ...] | None:
    if declared is None:
        return found if sharpen else None
    pairs = zip(declared, found, strict=True)
    return tuple(f if _is_wrong(d, f, named) or (sharpen and isinstance(f, int)) else d for d, f in pairs)


def _is_wrong(declared: Dim, found: Dim, named: set[str]) -> bool:
    """A declared number where inference knows another number, or that the size is one of an input's."""
    return isinstance(declared, int) and declared != found and (isinstance(found, int) or found in named)
