"""Codes as the engine makes them: each layer by the method of its plan, with a damping for GPTQ chosen on its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from graphkit.quant._quantizer import Quantizer
from graphkit.quant.codes import Codes
from graphkit.quant.damping import Chooser, Data
from graphkit.quant.layers import Layer
from graphkit.quant.options import Method
from graphkit.quant.setting import Setting

Array = npt.NDArray[Any]

_TYPICAL_BITS = 4  # that a damping is chosen with: it hardly depends on them, and choosing takes longer than using


@dataclass(frozen=True)
class PlannedMethods:
    """Quantizes layers by the methods of a plan, by name.

    damping: None to choose one for each layer, on its own data: what is measured must not depend on which layers came
    before on the same worker. data: a hash of the calibration data, for caches.
    """

    methods: Mapping[str, Method] = field(default_factory=dict)
    damping: float | None = None
    act_order: bool = False
    data: str = ""
    _chosen: dict[tuple[str, int], float] = field(default_factory=dict, compare=False, repr=False)

    def identity(self, layer: Layer) -> str:
        """What the codes of one layer depend on besides its weights."""
        method = self.methods[layer.name]
        return f"{method} {self.damping} {self.act_order} {self.data}" if method == "gptq" else method

    def __call__(self, layer: Layer, matrix: Array, setting: Setting, fed: Data | None) -> Codes:
        """The codes of one layer; without data by `mse` where its method is gptq."""
        method = self.methods[layer.name]
        if method != "gptq" or fed is None or not fed.all.count:
            return Quantizer("mse" if method == "gptq" else method)(layer, matrix, setting, None)
        damping = self.damping or self._damping(layer, matrix, setting, fed)
        quantizer = Quantizer("gptq", {"damping": damping, "act_order": self.act_order})
        return quantizer(layer, matrix, setting, fed.all.matrix)

    def _damping(self, layer: Layer, matrix: Array, setting: Setting, fed: Data) -> float:
        key = layer.name, setting.block
        if key not in self._chosen:
            typical = replace(setting, bits=_TYPICAL_BITS)
            self._chosen[key] = Chooser(self.act_order).damping(layer, matrix, typical, fed)
        return self._chosen[key]
