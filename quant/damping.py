"""The damping of GPTQ, chosen on calibration data that the codes are not made from.

GPTQ adds a fraction of the mean of the Hessian's diagonal to the diagonal (Frantar et al. 2022, arXiv:2210.17323,
which takes 1 %). Which fraction is right depends on how many vectors the Hessian is made of: with fewer than columns,
1 % fits noise. The error at the layer's output over held-out data tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from graphkit.quant import gptq
from graphkit.quant.codes import Array
from graphkit.quant.collect import Hessian
from graphkit.quant.layers import Layer
from graphkit.quant.setting import Setting

DAMPINGS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # few samples want much damping, many want little
DEFAULT = 0.1  # where nothing is held out
_CHOICES = 3  # layers of a number of columns for which the choice is made; an odd number
_TRIAL_ROWS = 64  # rows do not touch one another in GPTQ: a few tell which damping suits all


@dataclass(frozen=True, eq=False)
class Data:
    """What a layer is fed with: Hessians of the data that codes are made from, and of those held out, if any."""

    seen: Hessian
    held: Hessian | None = None

    @cached_property
    def all(self) -> Hessian:
        """The Hessian of all data."""
        if self.held is None:
            return self.seen
        return Hessian(self.seen.matrix + self.held.matrix, self.seen.count + self.held.count)


@dataclass
class Chooser:
    """Chooses a damping for one layer after another.

    What suits depends on how many vectors there are for so many columns more than on the layer: after a few layers of
    a number of columns, and for layers that read the same value as the one before, the choice is known.
    """

    act_order: bool = False
    _found: dict[int, list[float]] = field(default_factory=dict)
    _latest: tuple[Hessian, float] | None = None

    def damping(self, layer: Layer, matrix: Array, setting: Setting, data: Data) -> float:
        """The damping with the least output error on held-out data, tried on some rows of the matrix [rows, columns].

        `DEFAULT` when nothing is held out, or nothing of it reached the layer.
        """
        if data.held is None or not data.held.count or not data.seen.count:
            return DEFAULT
        if self._latest is not None and self._latest[0] is data.seen:
            return self._latest[1]
        found = self._found.setdefault(layer.columns, [])
        if len(found) < _CHOICES:
            found.append(self._choose(layer, matrix, setting, data))
            self._latest = (data.seen, found[-1])
            return found[-1]
        return sorted(found)[_CHOICES // 2]

    def _choose(self, layer: Layer, matrix: Array, setting: Setting, data: Data) -> float:
        assert data.held is not None
        return gptq.best_damping(
            _some_rows(layer, matrix),
            setting.bits,
            layer.block_columns(setting.block),
            hessian=data.seen.matrix,
            held_out=data.held.matrix,
            name=layer.name,
            candidates=DAMPINGS,
            act_order=self.act_order,
            rounds=0,
        ).value


def _some_rows(layer: Layer, matrix: Array) -> Array:
    """Rows from all over the matrix, the same number of each group."""
    each = layer.rows // layer.groups
    count = max(1, min(each, _TRIAL_ROWS // layer.groups))
    chosen = np.linspace(0, each - 1, count).astype(int)
    rows: Array = matrix.reshape(layer.groups, each, layer.columns)[:, chosen]
    return rows.reshape(-1, layer.columns)
