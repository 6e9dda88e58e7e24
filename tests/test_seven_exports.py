"""The seven exports of both exporters: no more nodes than the best peer leaves, equal outputs, and MNN takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures import exports
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize

Find = Callable[[str], Path]


@dataclass(frozen=True)
class Best:
    """Fewest nodes that any peer leaves, dynamic and static (Constant nodes not counted), and fewest MNN operators.

    Measured by benchmarks/optimize.py with the versions it names; None where every peer fails.
    """

    dynamic: int
    static: int | None
    ops: int | None
    static_ops: int | None


BEST = {
    "mbv3_ts": Best(122, 122, 159, 159),
    "mbv3": Best(122, 122, 180, 180),
    "bert2_ts": Best(108, 71, 361, 234),
    "bert2": Best(103, 69, 291, 230),
    "qwen2_eager_ts": Best(208, 131, 512, 283),
    "qwen2_sdpa_ts": Best(214, 137, None, None),
    "qwen2_sdpa": Best(193, 142, None, None),
}


def static(path: Path) -> dict[str, int]:
    """Sizes for all named dims of a model."""
    dims = {
        dim.dim_param
        for info in Model.load(path).proto.graph.input
        for dim in info.type.tensor_type.shape.dim
        if dim.dim_param
    }
    return {dim: 16 if "seq" in dim else 1 for dim in dims}


def test_the_seven_are_the_ones_measured() -> None:
    assert set(BEST) == set(exports.PEER_KINDS)


@pytest.mark.parametrize("kind", BEST)
def test_no_more_nodes_than_the_best_peer(kind: str, export_path: Find) -> None:
    result = optimize(export_path(kind))
    assert result.report.nodes_after <= BEST[kind].dynamic
    assert result.proof.kind == "equal"
    assert len(result.proof.checks) == 2
    assert result.proof.max_error <= 1e-5


@pytest.mark.parametrize("kind", BEST)
def test_no_more_nodes_when_bound(kind: str, export_path: Find) -> None:
    path = export_path(kind)
    result = optimize(path, bind=static(path))
    assert result.report.nodes_after <= (BEST[kind].static or 0)
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= 1e-5


@pytest.mark.parametrize("bound", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("kind", BEST)
def test_mnn_takes_it_in_no_more_operators(kind: str, bound: bool, export_path: Find, tmp_path: Path) -> None:
    path, best = export_path(kind), BEST[kind]
    most = best.static_ops if bound else best.ops
    arguments = {"bind": static(path) if bound else None}
    result = convert(path, tmp_path / "m.mnn", **arguments)
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= 1e-4
    if most is not None:  # torch's sdpa guards its softmax with IsNaN, which no peer replaces and MNN refuses
        assert result.ops <= most
