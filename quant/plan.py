"""The plan: how each layer of a model is stored, and why. Made from options and a plan file; JSON itself."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from graphkit._write import atomic
from graphkit.errors import UsageError
from graphkit.model import PathLike
from graphkit.quant import embeddings
from graphkit.quant._plan_file import TITLE, VERSION, PlanFile, parse_plan, read_plan
from graphkit.quant.layers import Excluded, Layer
from graphkit.quant.options import Method, Override, QuantizeOptions, ScaleType, check_method
from graphkit.quant.setting import FLOAT, Setting
from graphkit.weights import tensor_nbytes

_TABLE = Setting(embeddings.BITS)


@dataclass(frozen=True)
class LayerPlan:
    """How one layer is stored: the layer, its setting (float: it stays as it is), method, scales, and why."""

    layer: Layer
    setting: Setting
    method: Method = "rtn"
    scales: ScaleType = "float32"
    why: str = ""
    sensitivity: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in a .mnn file."""
        if self.setting.is_float:
            return 4 * self.layer.rows * self.layer.columns
        setting = self.setting
        return self.layer.mnn_bytes(
            setting.bits, setting.block, symmetric=setting.symmetric, half_scales=self.scales == "float16"
        )

    @property
    def float_nbytes(self) -> int:
        """Bytes of the weight in the ONNX model as it was."""
        return tensor_nbytes(self.layer.dtype, self.layer.shape)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary, which a plan file may hold."""
        described = {
            "name": self.layer.name,
            "kind": self.layer.kind,
            "shape": list(self.layer.shape),
            "bits": "float" if self.setting.is_float else self.setting.bits,
            "block": self.setting.block,
            "symmetric": self.setting.symmetric,
            "method": self.method,
            "scales": self.scales,
            "why": self.why,
        }
        return described if self.sensitivity is None else {**described, "sensitivity": self.sensitivity}


@dataclass(frozen=True)
class Plan:
    """All layers of a model in the order of their use, and what cannot be quantized.

    damping, act_order: of GPTQ (None: chosen on a part of the calibration data).
    """

    layers: tuple[LayerPlan, ...]
    kept: tuple[Excluded, ...] = ()
    damping: float | None = None
    act_order: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all layers in a .mnn file, without what cannot be quantized."""
        return sum(entry.nbytes for entry in self.layers)

    def with_settings(self, settings: dict[str, Setting], why: str, sensitivity: dict[str, float]) -> Plan:
        """The plan with other settings for some layers, by name: what a search found."""
        changed = [
            replace(entry, setting=settings[name], why=why, sensitivity=sensitivity.get(name))
            if (name := entry.layer.name) in settings
            else entry
            for entry in self.layers
        ]
        return replace(self, layers=tuple(changed))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary that `read_plan` takes back."""
        return {
            "graphkit": TITLE,
            "version": VERSION,
            **({} if self.damping is None else {"damping": self.damping}),
            **({"act_order": True} if self.act_order else {}),
            "layers": [entry.to_dict() for entry in self.layers],
            "kept": [{"name": e.name, "op": e.op, "bytes": e.bytes, "reason": e.reason} for e in self.kept],
        }

    def save(self, path: PathLike) -> None:
        """Write the plan as JSON, a layer a line. Raises OutputError."""
        head = {key: value for key, value in self.to_dict().items() if not isinstance(value, list)}
        lists = {key: value for key, value in self.to_dict().items() if isinstance(value, list)}
        parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        for key, value in lists.items():
            lines = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            parts.append(f" {json.dumps(key)}: [\n{lines}\n ]" if value else f" {json.dumps(key)}: []")
        with atomic(Path(path)) as (file,):
            file.write(("{\n" + ",\n".join(parts) + "\n}\n").encode())


def make_plan(
    layers: Sequence[Layer], kept: Sequence[Excluded], options: QuantizeOptions, file: PlanFile | None = None
) -> Plan:
    """A setting for each layer: of the plan file if there is one, else of the options; then the options' exceptions.

    Raises UsageError for patterns that name no layer, blocks that do not divide a layer for which they were asked,
    layers of other shapes than the plan file says, and when nothing is left to quantize.
    """
    maker = _Maker(layers, kept, options)
    plans = {layer.name: maker.general(layer, file) for layer in layers}
    if file is not None:
        _check_shapes(layers, file)
        maker.apply(plans, file.layers, file.source)
    maker.apply(plans, options.layers, "")
    maker.apply(plans, [Override(pattern, FLOAT.bits, why="skipped by the user") for pattern in options.skip], "")
    found = tuple(_worthwhile(plan) for plan in plans.values())
    _check_any(found, options)
    damping, act_order = (None, False) if file is None else (file.damping, file.act_order)
    return Plan(
        found, tuple(kept), damping if options.damping is None else options.damping, options.act_order or act_order
    )


class _Maker:
    """Applies settings to layers."""

    def __init__(self, layers: Sequence[Layer], kept: Sequence[Excluded], options: QuantizeOptions) -> None:
        self.layers, self.kept, self.options = layers, kept, options
        self.by_name: dict[str, list[Layer]] = {}
        for layer in layers:
            for name in dict.fromkeys(_names(layer)):
                self.by_name.setdefault(name, []).append(layer)

    def general(self, layer: Layer, file: PlanFile | None) -> LayerPlan:
        """What a layer gets that nothing names."""
        options = self.options
        why = "rule"
        if file is not None and file.default is None:
            return LayerPlan(layer, FLOAT, options.method, options.scales, "not in the plan")
        if layer.kind == "Embedding" and not options.embeddings:
            return LayerPlan(layer, FLOAT, "rtn", "float32", "embeddings stay float on demand")
        setting, method, scales = options.setting, options.method, options.scales
        if file is not None and file.default is not None:
            default = file.default
            setting, scales, why = default.applied(setting), default.scales or scales, default.why
            method = default.method or (method if setting.symmetric else "rtn")
            check_method(method, setting.symmetric)
        if layer.kind == "Embedding" and not setting.is_float:
            return LayerPlan(layer, _table(setting), "rtn", "float32", why)
        fitting = setting.for_channels(layer.channels)
        if fitting != setting:
            why = f"{why}; {_unfit(setting.block, layer)}"
        return LayerPlan(layer, fitting, method, scales, why)

    def apply(self, plans: dict[str, LayerPlan], overrides: Iterable[Override], source: str) -> None:
        """Change the plans of the layers that each override names."""
        for override in overrides:
            exact = self.by_name.get(override.pattern, [])
            named = exact or [layer for layer in self.layers if matches(override.pattern, layer)]
            if not named:
                raise unknown_layer(override.pattern, self.layers, self.kept, source)
            block = override.block or 0
            if block and not exact and all(layer.channels % block for layer in named):
                named[0].block_columns(block)  # refuses it, and says what fits
            for layer in named:
                plans[layer.name] = self._changed(plans[layer.name], override, exact=bool(exact))

    def _changed(self, plan: LayerPlan, override: Override, *, exact: bool) -> LayerPlan:
        """A layer that was named itself must take the setting; one that a pattern fits takes what it can."""
        layer, why = plan.layer, override.why
        if layer.kind == "Embedding":
            return self._changed_table(plan, override, exact=exact)
        general = self.options.setting.for_channels(layer.channels)
        setting = override.applied(general if plan.setting.is_float else plan.setting)
        fitting = setting.for_channels(layer.channels)
        if fitting != setting:
            if exact:
                layer.block_columns(setting.block)  # refuses it
            why = f"{why}; {_unfit(setting.block, layer)}"
        method = override.method or (plan.method if fitting.symmetric else "rtn")
        check_method(method, fitting.symmetric, layer.name)
        return replace(plan, setting=fitting, method=method, scales=override.scales or plan.scales, why=why)

    def _changed_table(self, plan: LayerPlan, override: Override, *, exact: bool) -> LayerPlan:
        wanted = override.applied(_TABLE if plan.setting.is_float else plan.setting)
        if exact and not wanted.is_float:
            embeddings.check_table(plan.layer.name, wanted.bits, 2 if wanted.block else 1)
        return LayerPlan(plan.layer, wanted if wanted.is_float else _table(wanted), "rtn", "float32", override.why)


def _table(setting: Setting) -> Setting:
    """What a table takes of a setting: 8 bits and one scale a row."""
    return replace(_TABLE, symmetric=setting.symmetric)


def _unfit(block: int, layer: Layer) -> str:
    return f"{block} does not divide its {layer.channels} input channels: one scale a channel"


def matches(pattern: str, layer: Layer) -> bool:
    """True when a pattern is, or fits, the layer's name, the label of one of its nodes, or its weight's name."""
    return any(pattern == name or fnmatchcase(name, pattern) for name in _names(layer))


def _names(layer: Layer) -> tuple[str, ...]:
    return layer.name, layer.weight, *layer.nodes


def unknown_layer(pattern: str, layers: Sequence[Layer], kept: Sequence[Excluded] = (), source: str = "") -> UsageError:
    """The error for a pattern that names no layer: why what it names stays float, or the nearest names."""
    for entry in kept:
        if pattern in (entry.name, entry.weight) or fnmatchcase(entry.name, pattern):
            return UsageError(f"'{pattern}' cannot be quantized: '{entry.name}' {entry.reason}", file=source or None)
    names = [layer.name for layer in layers]
    core = pattern.strip("*")
    near = [name for name in names if core and core.lower() in name.lower()][:3]
    near = near or difflib.get_close_matches(core, names, n=3, cutoff=0.4)
    listing = ", ".join(f"'{name}'" for name in near or names[:3])
    hint = f"near names: {listing}" if near else f"layers are called {listing}, …" if names else None
    return UsageError(f"no layer is called '{pattern}'", file=source or None, hint=hint)


def _check_shapes(layers: Sequence[Layer], file: PlanFile) -> None:
    for layer in layers:
        shape = file.shapes.get(layer.name)
        if shape is not None and shape != layer.shape:
            raise UsageError(
                f"the plan is of another model: '{layer.name}' has shape {list(layer.shape)} here, "
                f"{list(shape)} in the plan",
                file=file.source,
            )


def _worthwhile(plan: LayerPlan) -> LayerPlan:
    """The plan, float where codes, their header and scales would take no less."""
    if plan.setting.is_float or plan.nbytes < 4 * plan.layer.rows * plan.layer.columns:
        return plan
    return replace(plan, setting=FLOAT, why=f"codes and scales would take {plan.nbytes:,} bytes, no fewer than floats")


def _check_any(plans: Sequence[LayerPlan], options: QuantizeOptions) -> None:
    """Raise UsageError when a block was asked for that no layer can have."""
    wide = [p.layer for p in plans if p.layer.kind != "Embedding" and not p.setting.is_float]
    if options.block and wide and all(layer.channels % options.block for layer in wide):
        channels = sorted({layer.channels for layer in wide})
        raise UsageError(
            f"a block of {options.block} divides the input channels of no layer",
            hint=f"layers have {', '.join(map(str, channels[:8]))} input channels",
        )


__all__ = [
    "LayerPlan", "Plan", "PlanFile", "make_plan", "matches", "parse_plan", "read_plan", "unknown_layer",
]  # fmt: skip
