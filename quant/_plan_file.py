"""Plans as JSON files: ours, and the config of MNN tutorials."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from graphkit.errors import UsageError
from graphkit.model import PathLike
from graphkit.options import suggest
from graphkit.quant import tutorial
from graphkit.quant.codes import check_bits
from graphkit.quant.options import Override, ScaleType, check_damping, known_method
from graphkit.quant.setting import FLOAT_BITS, Setting

TITLE = "quantization plan"
VERSION = 1
_TOP = ("graphkit", "version", "default", "damping", "act_order", "layers", "kept")
_SETTINGS = ("bits", "block", "symmetric", "method", "scales")
_DESCRIBING = ("name", "kind", "shape", "why", "sensitivity", "bytes")


@dataclass(frozen=True)
class PlanFile:
    """What a plan file asks for.

    default: the setting of layers that it does not name; None: those stay float. layers: settings by name or pattern,
    later ones win. shapes: of weights that the file describes, by the layer's name. source: the file, for messages.
    damping, act_order: of GPTQ.
    """

    default: Override | None
    layers: tuple[Override, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    source: str = "plan"
    damping: float | None = None
    act_order: bool = False


def read_plan(path: PathLike) -> PlanFile:
    """Read a plan file. Raises UsageError, naming the file and the key, for anything that is no plan."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise UsageError(f"the plan cannot be read: {error.strerror}", file=path) from error
    except ValueError as error:
        raise UsageError(f"is not JSON: {error}", file=path) from error
    return parse_plan(data, str(path))


def parse_plan(data: Any, where: str = "plan") -> PlanFile:
    """A plan from its JSON object. Raises UsageError as `read_plan` does."""
    if not isinstance(data, Mapping):
        raise UsageError("a plan is a JSON object", file=where, hint="write one with --save-plan")
    if "graphkit" not in data and tutorial.is_tutorial(data):
        default, layers = tutorial.read_tutorial(data, where)
        return PlanFile(default, layers, {}, where)
    for key in data:
        if key not in _TOP:
            raise UsageError(f"unknown key '{key}' in the plan{suggest(key, _TOP)}", file=where)
    if data.get("version", VERSION) != VERSION:
        raise UsageError(f"is a plan of version {data['version']!r}; this is version {VERSION}", file=where)
    entries = data.get("layers", [])
    if not isinstance(entries, list):
        raise UsageError("'layers' of a plan is a list", file=where)
    default = data.get("default")
    found = [_entry(entry, where) for entry in entries]
    shapes = {
        o.pattern: _shape(e["shape"], o.pattern, where) for o, e in zip(found, entries, strict=True) if "shape" in e
    }
    return PlanFile(
        None if default is None else _settings("*", default, where), tuple(found), shapes, where, *_gptq(data, where)
    )


def _gptq(data: Mapping[str, Any], where: str) -> tuple[float | None, bool]:
    """Damping and order of columns. Raises UsageError."""
    damping, act_order = data.get("damping"), data.get("act_order", False)
    if damping is not None and (isinstance(damping, bool) or not isinstance(damping, int | float)):
        raise UsageError(f"'damping' is a number, not {damping!r}", file=where)
    try:
        damping = None if damping is None else float(damping)
    except OverflowError:
        damping = math.inf
    if not isinstance(act_order, bool):
        raise UsageError(f"'act_order' is true or false, not {act_order!r}", file=where)
    if damping is not None:
        try:
            check_damping(damping)
        except UsageError as error:
            raise UsageError(error.message, file=where) from error
    return damping, act_order


def _entry(entry: Any, where: str) -> Override:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise UsageError(f"a layer of the plan has no name: {json.dumps(entry)[:80]}", file=where)
    return _settings(name, entry, where)


def _settings(name: str, entry: Any, where: str) -> Override:
    """Raises UsageError, naming file and layer."""
    try:
        return _override(name, entry)
    except UsageError as error:
        raise UsageError(f"'{name}': {error.message}", file=where, hint=error.hint) from error


def _override(name: str, entry: Any) -> Override:
    if not isinstance(entry, Mapping):
        raise UsageError(f"settings are an object, not {entry!r}")
    for key in entry:
        if key not in (*_SETTINGS, *_DESCRIBING):
            raise UsageError(f"unknown key '{key}'{suggest(key, _SETTINGS)}")
    bits, block = _bits(entry.get("bits")), _typed(entry, "block", int)
    if bits != FLOAT_BITS:
        Setting(8 if bits is None else bits, block or 0)
    scales = _typed(entry, "scales", str)
    if scales is not None and scales not in get_args(ScaleType):
        raise UsageError(f"'scales' is one of {', '.join(get_args(ScaleType))}, not '{scales}'")
    method = _typed(entry, "method", str)
    return Override(
        pattern=name,
        bits=bits,
        block=block,
        symmetric=_typed(entry, "symmetric", bool),
        method=None if method is None else known_method(method),
        scales=cast("ScaleType | None", scales),
        why=_typed(entry, "why", str) or "plan",
    )


def _bits(value: Any) -> int | None:
    if value is None or value == "float":
        return None if value is None else FLOAT_BITS
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"'bits' is 2 to 8, or 'float', not {value!r}")
    if value != FLOAT_BITS:
        check_bits(value)
    return value


def _typed(entry: Mapping[str, Any], key: str, kind: type) -> Any:
    value = entry.get(key)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    words = {int: "a whole number", bool: "true or false", str: "text"}
    raise UsageError(f"'{key}' is {words[kind]}, not {value!r}")


def _shape(value: Any, name: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise UsageError(f"'shape' of '{name}' is a list of whole numbers, not {value!r}", file=where)
    return tuple(value)
