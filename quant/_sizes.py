"""Bytes that a plan decides, and those that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphkit.model import Model
from graphkit.quant.plan import LayerPlan, Plan
from graphkit.quant.setting import Setting
from graphkit.weights import tensor_nbytes

_W8 = Setting(8)


@dataclass(frozen=True)
class Sizes:
    """Bytes of all weights of a model: `float_bytes` as the model stores them, `w8_bytes` with 8 bits and one scale a
    row for every layer of the plan, `fixed` of what a search does not touch, as it is stored in a .mnn file."""

    float_bytes: int
    w8_bytes: int
    fixed: int


def sizes_of(model: Model, plan: Plan, searched: Sequence[LayerPlan]) -> Sizes:
    """Sizes for a plan of which some layers are searched. A weight that is two layers is stored twice."""
    total = sum(weight.nbytes for weight in model.weights())
    layers = {entry.layer.where: tensor_nbytes(entry.layer.dtype, entry.layer.shape) for entry in plan.layers}
    rest = total - sum(layers.values())
    names = {entry.layer.name for entry in searched}
    settled = sum(entry.nbytes for entry in plan.layers if entry.layer.name not in names)
    w8 = sum(replace(entry, setting=_W8).nbytes for entry in plan.layers)
    return Sizes(total, rest + w8, rest + settled)


def costs_of(searched: Sequence[LayerPlan], settings: dict[str, list[Setting]]) -> dict[str, dict[Setting, int]]:
    """Bytes of every setting that a layer may have, by the layer's name."""
    return {
        entry.layer.name: {setting: replace(entry, setting=setting).nbytes for setting in settings[entry.layer.name]}
        for entry in searched
    }
