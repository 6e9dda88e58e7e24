"""The mixed quantization config of MNN tutorials, read as a plan.

`{"weight_quant": true, "activate_quant": false, "quant_bits": 8, "quant_scheme": "symmetric"}` for all layers, or such
an object for each layer by name or pattern: `{"encoder.*": {"quant_bits": 4}, "head": {"weight_quant": false}}`, also
under a key "layers", beside one for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit.errors import UsageError
from graphkit.options import suggest
from graphkit.quant.codes import check_bits
from graphkit.quant.options import Override
from graphkit.quant.setting import FLOAT_BITS

_BITS = 8  # of a config that does not say
_SCHEMES = {"symmetric": True, "asymmetric": False}
_KEYS = ("weight_quant", "activate_quant", "quant_bits", "quant_scheme", "block_size")


def is_tutorial(data: Any) -> bool:
    """True for JSON in the form of MNN's tutorials."""
    if not isinstance(data, Mapping):
        return False
    return any(key in data for key in _KEYS) or any(
        isinstance(value, Mapping) and any(key in value for key in _KEYS) for value in _layers(data).values()
    )


def read_tutorial(data: Mapping[str, Any], where: str) -> tuple[Override | None, tuple[Override, ...]]:
    """The setting for all other layers (None: they stay float) and those of layers by pattern.

    Raises UsageError, naming `where` and the key, for unknown keys, values that do not fit, and `activate_quant`.
    """
    layers = _layers(data)
    general = {key: value for key, value in data.items() if key not in layers and key != "layers"}
    default = _override("*", general, where) if general else None
    return default, tuple(_override(name, _object(value, name, where), where) for name, value in layers.items())


def _layers(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that goes by layers."""
    listed = data.get("layers")
    if isinstance(listed, Mapping):
        return listed
    if isinstance(listed, list):
        return {str(item.get("name", "")): _nameless(item) for item in listed if isinstance(item, Mapping)}
    return {key: value for key, value in data.items() if isinstance(value, Mapping)}


def _nameless(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "name"}


def _object(value: Any, name: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"'{name}' has {value!r} where an object with {', '.join(_KEYS)} is expected", file=where)
    return value


def _override(pattern: str, entry: Mapping[str, Any], where: str) -> Override:
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"unknown key '{key}' for '{pattern}'{suggest(key, _KEYS)}", file=where)
    if _flag(entry, "activate_quant", False, where):
        raise UsageError(
            f"'activate_quant' is true for '{pattern}': activations stay float here",
            file=where,
            hint="MNN itself quantizes activations to INT8 at run time when memory is set to low; `graphkit verify` "
            "measures what that costs",
        )
    scheme = entry.get("quant_scheme", "symmetric")
    if scheme not in _SCHEMES:
        raise UsageError(f"'quant_scheme' is one of {', '.join(_SCHEMES)}, not {scheme!r}", file=where)
    if not _flag(entry, "weight_quant", True, where):
        return Override(pattern, FLOAT_BITS, why="config")
    bits, block = _number(entry, "quant_bits", _BITS, where), _number(entry, "block_size", 0, where)
    check_bits(bits)
    return Override(pattern, bits, block, _SCHEMES[scheme], why="config")


def _flag(entry: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise UsageError(f"'{key}' is true or false, not {value!r}", file=where)
    return value


def _number(entry: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"'{key}' is a whole number, not {value!r}", file=where)
    return value
