"""What quantization did: a record of each layer, totals by kind, and what stayed float and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graphkit.quant.layers import Excluded
from graphkit.quant.setting import Setting


@dataclass(frozen=True)
class LayerRecord:
    """One layer as it was stored.

    float_bytes: of its weight before; nbytes: of codes and scales in a .mnn file. weight_error: norm of the change of
    the weight over its norm. output_error: the same of the layer's output over the calibration data, None without.
    sensitivity: how far the model's outputs move when only this layer is quantized, None when not measured. damping:
    that GPTQ used. why: who decided. seconds: of choosing and writing its codes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    setting: Setting
    method: str
    scales: str
    why: str
    float_bytes: int
    nbytes: int
    weight_error: float
    output_error: float | None = None
    sensitivity: float | None = None
    damping: float | None = None
    nodes: int = 1
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "bits": self.setting.bits,
            "block": self.setting.block,
            "symmetric": self.setting.symmetric,
            "method": self.method,
            "scales": self.scales,
            "why": self.why,
            "float_bytes": self.float_bytes,
            "bytes": self.nbytes,
            "weight_error": self.weight_error,
            "output_error": None if self.output_error is None else finite(self.output_error),
            "sensitivity": None if self.sensitivity is None else finite(self.sensitivity),
            "damping": self.damping,
            "nodes": self.nodes,
            "seconds": round(self.seconds, 4),
        }


def finite(value: float) -> float | None:
    """The number, or None where JSON has none."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class KindTotal:
    """All layers of a kind: how many, bytes before and after, and the mean of their weight errors."""

    kind: str
    layers: int
    float_bytes: int
    nbytes: int
    mean_error: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "kind": self.kind,
            "layers": self.layers,
            "float_bytes": self.float_bytes,
            "bytes": self.nbytes,
            "mean_error": self.mean_error,
        }


def totals(records: Iterable[LayerRecord]) -> tuple[KindTotal, ...]:
    """Sums of records by kind, in the order in which kinds first occur."""
    groups: dict[str, list[LayerRecord]] = {}
    for record in records:
        groups.setdefault(record.kind, []).append(record)
    return tuple(
        KindTotal(
            kind,
            len(members),
            sum(record.float_bytes for record in members),
            sum(record.nbytes for record in members),
            sum(record.weight_error for record in members) / len(members),
        )
        for kind, members in groups.items()
    )


def kept_dict(kept: Iterable[Excluded]) -> list[dict[str, Any]]:
    """What stayed float, as JSON-able dictionaries, the largest first."""
    return [
        {"name": entry.name, "op": entry.op, "bytes": entry.bytes, "reason": entry.reason}
        for entry in sorted(kept, key=lambda entry: -entry.bytes)
    ]
