"""Codes as the engine makes them: each layer by the method of its plan, with a damping for GPTQ chosen on its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.quant._quantizer import Quantizer, fed_method
from graphkit.quant.codes import Codes
from graphkit.quant.damping import Chooser, Data
from graphkit.quant.layers import Layer
from graphkit.quant.options import Method, ScaleType
from graphkit.quant.setting import Setting

Array = npt.NDArray[Any]
ChooseDamping = Callable[[Layer, Array, Setting, Data], float]

_HALF_ERROR = 2.0**-10  # relative; scales that lose more as halves stay float32
_TYPICAL_BITS = 4  # that a damping is chosen with: it hardly depends on them, and choosing takes longer than using


@dataclass(frozen=True)
class Made:
    """Codes, the method that made them, and GPTQ's damping."""

    codes: Codes
    method: Method
    damping: float | None = None


@dataclass(frozen=True)
class Way:
    """How codes of a layer are made. damping, act_order: of GPTQ; no damping: one is chosen on the layer's data."""

    method: Method
    damping: float | None = None
    act_order: bool = False

    def made(self, layer: Layer, matrix: Array, setting: Setting, data: Data | None, choose: ChooseDamping) -> Made:
        """The codes of a layer, float32 [rows, columns]; of all data, once the damping is chosen.

        By `mse` where the method is gptq and no sample reached the layer.
        """
        method = self.method_for(data)
        if method != "gptq" or data is None:
            return Made(Quantizer(method)(layer, matrix, setting, None), method)
        damping = self.damping or choose(layer, matrix, setting, data)
        quantizer = Quantizer("gptq", {"damping": damping, "act_order": self.act_order})
        return Made(quantizer(layer, matrix, setting, data.all.matrix), method, damping)

    def method_for(self, data: Data | None) -> Method:
        """The method of a layer with these data."""
        return fed_method(self.method, data if data is not None and data.all.count else None)


def stored_scales(codes: Codes, wanted: ScaleType) -> tuple[Codes, ScaleType]:
    """The codes with scales rounded to halves where that is wanted and they lose little; and how they are stored."""
    if wanted == "float32":
        return codes, wanted
    with np.errstate(over="ignore"):
        halves = codes.scales.astype(np.float16).astype(np.float32)
    if not (np.abs(halves - codes.scales) <= _HALF_ERROR * np.abs(codes.scales)).all():
        return codes, "float32"
    return replace(codes, scales=halves), wanted


@dataclass(frozen=True)
class PlannedMethods:
    """Quantizes layers by the methods of a plan, by name.

    damping: None to choose one for each layer, on its own data: what is measured must not depend on which layers came
    before on the same worker. data: a hash of the calibration data, for caches. halved: layers whose scales are stored
    as halves.
    """

    methods: Mapping[str, Method] = field(default_factory=dict)
    damping: float | None = None
    act_order: bool = False
    data: str = ""
    halved: frozenset[str] = frozenset()
    _chosen: dict[tuple[str, int], float] = field(default_factory=dict, compare=False, repr=False)

    def identity(self, layer: Layer) -> str:
        """What the codes of one layer depend on besides its weights."""
        method: str = self.methods[layer.name]
        scales = " halves" if layer.name in self.halved else ""
        options = f" {self.damping} {self.act_order} {self.data}" if method == "gptq" else ""
        return f"{method}{scales}{options}"

    def __call__(self, layer: Layer, matrix: Array, setting: Setting, fed: Data | None) -> Codes:
        """The codes of one layer; without data by `mse` where its method is gptq."""
        way = Way(self.methods[layer.name], self.damping, self.act_order)
        made = way.made(layer, matrix, setting, fed, self._damping).codes
        return stored_scales(made, "float16" if layer.name in self.halved else "float32")[0]

    def _damping(self, layer: Layer, matrix: Array, setting: Setting, fed: Data) -> float:
        key = layer.name, setting.block
        if key not in self._chosen:
            typical = replace(setting, bits=_TYPICAL_BITS)
            self._chosen[key] = Chooser(self.act_order).damping(layer, matrix, typical, fed)
        return self._chosen[key]
