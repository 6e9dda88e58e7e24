"""Einsum with several batch indices."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged
from tests.in_mnn import assert_right_in_mnn
from tests.lowered import lowered

SIZES = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6}


def product(equation: str, *, known: bool = True) -> str:
    """Two operands of an equation as a model."""
    operands, result = equation.split("->")
    x, z = (",".join(str(SIZES[i]) if known else i for i in term) for term in operands.split(","))
    names = ",".join(f"o{i}" for i in range(len(result)))
    return f'g (float[{x}] x, float[{z}] z) => (float[{names}] y) {{ y = Einsum<equation="{equation}">(x, z) }}'


@pytest.mark.parametrize(
    "equation",
    [
        "bhqd,bkhd->bhqk",
        "bqhd,bkhd->bqhk",
        "bqhd,bhkd->bqhk",
        "bdhq,bhkd->bhqk",
        "dbhq,bhkd->bhqk",
        "bhqd,khdb->qhbk",
        "bhqd,hbkd->kbhq",
    ],
)
def test_batch_indices_lead(equation: str, tmp_path: Path) -> None:
    assert lowered(product(equation))[-1] == "Einsum"
    assert_right_in_mnn(product(equation), tmp_path)


def test_sizes_that_are_not_known(tmp_path: Path) -> None:
    assert_right_in_mnn(product("bhqd,bkhd->bhqk", known=False), tmp_path)


@pytest.mark.parametrize("equation", ["bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "bqd,bkd->bqk", "qd,kd->qk"])
def test_what_mnn_runs_right_stays(equation: str) -> None:
    assert_unchanged(LowerForMnn(), product(equation))
