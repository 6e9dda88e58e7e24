"""`static-shapes`: give dynamic sizes of graph inputs fixed values, and fold what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from graphkit import shapes
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.node import Node, TensorType
from graphkit.passes._bindings import resolve
from graphkit.passes.fold_constants import FoldConstants
from graphkit.passes.fold_shapes import FoldShapes
from graphkit.passes.infer_shapes import correct_outputs
from graphkit.rewrite import Change, PassResult

_ROUNDS = 16
_REASONS = {
    "NonZero": "the number of nonzero elements",
    "Unique": "the number of distinct elements",
    "Compress": "how many elements its condition selects",
    "NonMaxSuppression": "how many boxes are kept",
    "Loop": "the number of iterations, or values carried through them",
    "If": "the branch that is taken",
    "Range": "values computed at run time",
}


@dataclass(frozen=True)
class StaticShapes:
    """Bind sizes of graph inputs to numbers, infer all shapes again and fold what that settles.

    Each option is a size by its name (`batch=1`: every input axis of that name), by its place (`x[0]=1`: axis
    0 of input x, counted from the end when negative), or all sizes of an input (`x=1x3x224x224`). Sizes that
    are fixed already change only when named by place or input, with a note. Declared output shapes follow.
    Binds nothing without options. Notes name sizes that are still dynamic, and nodes whose output shape
    depends on data. Wrong names, sizes below 1, wrong ranks and contradictions are usage errors.
    """

    name: ClassVar[str] = "static-shapes"
    summary: ClassVar[str] = "bind dynamic input sizes to numbers and fold what follows"
    free_options: ClassVar[str] = "dims"

    dims: tuple[tuple[str, str], ...] = field(
        default=(), metadata={"help": "sizes by dim name, by place (x[0]) or by input (x=1x3x224x224)"}
    )

    def run(self, graph: Graph) -> PassResult:
        """Bind, infer and fold. Raises UsageError for bindings that do not fit the graph's inputs."""
        if not self.dims:
            return PassResult()
        bindings = resolve(graph, self.dims)
        result = PassResult(notes=tuple(bindings.notes))
        for value, type_ in bindings.types.items():
            what = f"bind to {type_}"
            if not graph.gate(value, what):
                return result
            graph.set_input_type(value, type_)
            result += PassResult((Change(value, what),), counters={"bound input": 1})
        if result.modified:
            for inner in graph.walk():
                inner.declared.clear()  # shapes of before, which may be wrong now
        result += _settle(graph)
        changes, notes = correct_outputs(graph, sharpen=True)
        return result + PassResult(tuple(changes), notes=(*notes, *bindings.open_sizes(), *_data_dependent(graph)))


def _settle(graph: Graph) -> PassResult:
    """Fold until nothing changes."""
    total = PassResult()
    for _ in range(_ROUNDS):
        shapes.infer(graph)
        round_ = FoldShapes().run(graph) + FoldConstants().run(graph)
        total += round_
        if not round_.modified:
            return total
    raise GraphkitError(f"folding did not come to rest within {_ROUNDS} rounds", hint="please report this model")


def _data_dependent(graph: Graph) -> list[str]:
    """A sentence for each node whose output shape is open although its inputs' shapes are fixed."""
    return [
        f"the output shape of {node.op} '{node.label}' depends on {_reason(graph, node)}"
        for inner in graph.walk()
        for node in inner.nodes
        if not all(_is_static(inner.type(value)) for value in node.outputs if value and inner.is_used(value))
        and all(_is_static(inner.type(value)) for value in inner.values_used_by(node))
    ]


def _reason(graph: Graph, node: Node) -> str:
    if node.domain:
        return f"what an operator of domain '{node.domain}' does"
    return _REASONS.get(node.op_type, "values computed at run time")


def _is_static(type_: TensorType | None) -> bool:
    return type_ is not None and type_.static
