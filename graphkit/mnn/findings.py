"""What `check` finds: one fault or piece of advice, and the node it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphkit.graph import Graph
from graphkit.mnn.locate import fault_at


@dataclass(frozen=True)
class Finding:
    """A node (or the value at fault), what MNN will do with it, why, and the pass that took it away.

    effect: "refused", "crashes", "fails" or "wrong"; "advice" for what is no fault. fixed_by: None when nothing did.
    """

    node: str
    op: str
    effect: str
    why: str
    fixed_by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return dict(vars(self))


def found_at(graph: Graph, name: str, effect: str, why: str) -> Finding:
    """A finding about a value: at the node that makes it, else at the first that reads it."""
    fault = fault_at(graph, name, why)
    return Finding(fault.node, fault.op, effect, why)
