"""Faults for `benchmarks/planted.py`: models, what is planted in their .mnn files, and where it must be found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_TESTS = str(Path(__file__).resolve().parent.parent / "tests")
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

import planted as plants  # noqa: E402
from planted import Plant  # noqa: E402

from graphkit.model import Model  # noqa: E402
from graphkit.runtime import Session  # noqa: E402

Feeds = Mapping[str, npt.NDArray[Any]]
KINDS = (
    "weights changed",
    "attribute changed",
    "wrong fusion",
    "wrong quantization scale",
    "swapped input",
    "wrong mask",
    "three at once",
    "inside an If",
    "only at the second shape",
)


@dataclass(frozen=True)
class At:
    """Where a fault must be found: the MNN operator that goes wrong, and the type of the ONNX node it stands for."""

    mnn_op: str
    op: str


@dataclass(frozen=True)
class Case:
    """One row: what is planted, and the faults that must be found, no more and no fewer.

    feeds: samples other than the usual ones. bits: of the weights in the file. unseen: samples on which the file must
    still be right, so that only another shape shows the fault.
    """

    kind: str
    what: str
    plants: Sequence[Plant] = ()
    at: Sequence[At] = ()
    feeds: Sequence[Feeds] | None = None
    bits: int = 0
    unseen: int = 0


@dataclass(frozen=True)
class Subject:
    """A model: where it comes from, the passes in front of MNNConvert, samples, its cases."""

    name: str
    source: Callable[[], Model]
    passes: str | None
    feeds: Callable[[], Sequence[Feeds]]
    cases: Callable[[Model], Sequence[Case]]


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def value(model: Model, feeds: Feeds, name: str) -> list[float]:
    """A value of the reference on a sample, as a list."""
    with Session(model, outputs=[name]) as session:
        return [float(number) for number in session.run(feeds)[name].reshape(-1)]


MATMUL = "__matmul_converted"


def scaled(name: str, op: str, factor: float, **more: Any) -> Case:
    """Weights of a product or convolution times a factor."""
    return Case("weights changed", f"× {factor:g}", [plants.scaled(name, "weight", factor)], [At(name, op)], **more)


def wrong_scale(name: str, op: str) -> Case:
    """The scales of a quantized layer × 1.5."""
    return Case("wrong quantization scale", "W8, scales × 1.5", [plants.wrong_scale(name, 1.5)], [At(name, op)], bits=8)


def three(what: str, *found: tuple[Plant, At]) -> Case:
    """Several faults at once."""
    return Case("three at once", what, [plant for plant, _ in found], [at for _, at in found])
