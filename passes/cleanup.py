"""The pass `cleanup`: what does nothing, is not used or is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from graphkit.graph import Graph
from graphkit.passes import _cleanup_dead as dead
from graphkit.passes import _cleanup_weights as weights
from graphkit.passes._cleanup_noops import NOOPS
from graphkit.rewrite import Change, PassResult, Refusal, apply_rules


@dataclass(frozen=True)
class Cleanup:
    """Remove nodes that pass their input on, nodes and weights that nobody uses, and equal weights.

    Removes Identity; Dropout in inference; Cast to the same type; Reshape, Flatten, Squeeze, Expand, Tile to
    the same shape; Transpose that moves nothing; Slice of everything; Concat, Sum, Max, Min, Mean of one
    input; Split into one part; Pad by nothing; reductions over axes of size 1; adding 0 or False, multiplying
    by, dividing by or raising to 1 with a constant of one element (an input of -0.0 then stays -0.0). Then
    unused nodes, unused optional outputs, unused outputs of If, equal and unused initializers, unused local
    functions and imports of operator sets. Subgraphs are cleaned too. In a file of IR version 3 initializers
    stop being graph inputs, and the version becomes 4.

    Refuses Dropout in training mode or with its mask used, constants that add axes to the result, and (unless
    asked) to change the model's inputs. Names, order, types and shapes of graph outputs are kept, and so is
    an Identity that makes an output of an input, a constant or another output. Outputs of LSTM, GRU, RNN and
    BatchNormalization are kept.
    """

    name: ClassVar[str] = "cleanup"
    summary: ClassVar[str] = "remove no-ops, unused nodes and weights, and duplicate weights"

    remove_unused_inputs: bool = field(
        default=False, metadata={"help": "also remove inputs of the model that nothing reads"}
    )
    freeze_defaults: bool = field(
        default=False,
        metadata={"help": "make inputs with a default value constants, which callers cannot set"},
    )

    def run(self, graph: Graph) -> PassResult:
        """Clean the graph in place; linear in its nodes, reads weights only when they look equal."""
        steps: list[tuple[str, Callable[[], list[Change]]]] = [
            ("unused node", lambda: dead.remove_dead(graph)),
            ("duplicate initializer", lambda: weights.merge_initializers(graph)),
            ("unused initializer", lambda: weights.remove_unused_initializers(graph)),
            ("unused function", lambda: dead.remove_functions(graph)),
            ("unused operator set", lambda: dead.remove_opsets(graph)),
        ]
        if self.remove_unused_inputs:
            steps.append(("unused input", lambda: weights.remove_unused_inputs(graph)))
        frozen = weights.free_initializers(graph, all_versions=self.freeze_defaults)
        result = PassResult(tuple(frozen), self._refusals(graph), _count("default value", frozen))
        result += apply_rules(graph, NOOPS)
        for kind, step in steps:
            changes = step()
            result += PassResult(tuple(changes), counters=_count(kind, changes))
        return result

    def _refusals(self, graph: Graph) -> tuple[Refusal, ...]:
        reason = "an input with a default value may be set by callers; freeze_defaults=true makes it a constant"
        names = [name for name in graph.initializers if name in graph.input_infos]
        return tuple(Refusal("default-value", name, reason) for name in names)


def _count(kind: str, changes: list[Change]) -> Counter[str]:
    return Counter({kind: len(changes)} if changes else {})
