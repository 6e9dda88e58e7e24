"""The passes and presets that there are, and one of them in full."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any, Literal, get_args, get_origin

from rich.text import Text

from graphkit.options import free_field, option_fields
from graphkit.registry import PRESETS, PassInfo, Registry
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid
from graphkit.report.text import clean


def listing(registry: Registry) -> dict[str, Any]:
    """All passes and presets in JSON's types."""
    passes = [{"name": info.name, "summary": info.summary, "source": info.source} for info in registry]
    return {"passes": passes, "presets": dict(PRESETS)}


def show_listing(report: Report, data: dict[str, Any]) -> None:
    """Print the list of passes, then the presets."""
    table = Grid(Column("pass"), Column("does", wrap=True), Column("from", spare=1))
    for item in data["passes"]:
        style = "red" if item["summary"].startswith("broken: ") else None
        table.add(item["name"], item["summary"], item["source"], style=style)
    report.table(table)
    report.say()
    for name, pipeline in data["presets"].items():
        report.say(Text.assemble("preset ", (name, "bold"), f": {pipeline}"))
    report.say("`graphkit passes NAME` tells more about one")


def document(registry: Registry, name: str) -> dict[str, Any]:
    """One pass or preset in JSON's types. Raises UsageError for an unknown name, with a suggestion."""
    if name in PRESETS:
        return {"preset": name, "pipeline": PRESETS[name]}
    info = registry.get(name)
    cls = info.load()
    options = _options(cls)
    return {
        "name": name,
        "summary": str(getattr(cls, "summary", "")),
        "source": info.source,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "description": _description(cls),
        "options": options,
        "example": _example(info, cls, options),
    }


def show_document(report: Report, data: dict[str, Any]) -> None:
    """Print the documentation of one pass or preset."""
    if "preset" in data:
        report.say(data["pipeline"])
        return
    report.say(Text.assemble((clean(data["name"]), "bold"), f"  {clean(data['summary'])}"))
    report.say(f"from {clean(data['source'])}")
    report.say()
    if data["description"]:
        report.say(clean(data["description"]))
        report.say()
    if data["options"]:
        wrapped = (Column("type", wrap=True), Column("default", wrap=True), Column("help", wrap=True))
        table = Grid(Column("option"), *wrapped)
        for item in data["options"]:
            table.add(*(str(item[key]) for key in ("name", "type", "default", "help")))
        report.table(table)
    else:
        report.say("no options")
    report.say()
    report.say(f"example: {data['example']}")


def _description(cls: type) -> str:
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else text  # a dataclass without one gets its signature


def _options(cls: type) -> list[dict[str, Any]]:
    hints = typing.get_type_hints(cls)
    free = free_field(cls)
    found = []
    for name, field in option_fields(cls).items():
        text = str(field.metadata.get("help", ""))
        if name == free:
            found.append({"name": "NAME", "type": "text", "default": "", "help": text or f"{name}, by name"})
        else:
            found.append({"name": name, "type": _kind(hints[name]), "default": _default(field), "help": text})
    return found


def _kind(hint: Any) -> str:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else _kind(arg) for arg in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"{_kind(get_args(hint)[0])}; …"
    return {int: "number", float: "number", bool: "true, false", str: "text"}.get(hint, str(hint))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return "" if value is dataclasses.MISSING else _spell(value)


def _spell(value: Any) -> str:
    """A value as pipeline text spells it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ";".join(map(_spell, value))
    return str(value)


def _example(info: PassInfo, cls: type, options: list[dict[str, Any]]) -> str:
    """A command that runs the pass, with its first option where there is one."""
    text: str = getattr(cls, "example", None) or info.name
    if text == info.name and options:
        first = options[0]
        text = f"{info.name}{{{first['name']}={_other(first)}}}"
    quoted = f"'{text}'" if "{" in text else text
    plugin = f" --plugin {info.source}" if isinstance(info.target, type) else ""
    return f"graphkit optimize model.onnx{plugin} --passes {quoted}"


def _other(option: dict[str, Any]) -> str:
    """A value for an option that is not its default, where one is known."""
    kind, default = str(option["type"]), str(option["default"])
    if ", " in kind:
        return next(choice for choice in kind.split(", ") if choice != default)
    return default or ("VALUE" if kind == "text" else "1")
