"""Print the description of a model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from graphkit.report import text
from graphkit.report.console import Report
from graphkit.report.table import Column, Grid

_OPS = 20  # operators listed without -v
_VALUES = 12  # inputs or outputs listed without -v
_PROBLEMS = 8  # problems listed without -v
_USUAL = ("mnn_uuid", "sourceType")  # every .mnn file has them
_BYTES = Column("bytes", right=True)


def show_inspected(report: Report, data: Mapping[str, Any]) -> None:
    """Print what `inspect` found."""
    report.say(_headline(data))
    report.table(_values(report, data))
    report.say()
    report.table(_counts("operator", "nodes", data["ops"], data["nodes"], None if report.verbose else _OPS))
    if data.get("functions"):
        report.say(f"functions: {text.listing([text.clean(name) for name in data['functions']], 8)}")
    if data.get("subgraphs"):
        names = [f"{text.clean(name)} ({number} ops)" for name, number in data["subgraphs"].items()]
        report.say(f"subgraphs: {text.listing(names, 8)}")
    if data.get("weights", {}).get("tensors"):
        report.say()
        report.table(_weights(data["weights"]))
    if "structure" in data:
        sizes = [text.size(data[key]["bytes"]) for key in ("names", "structure")]
        report.say(f"names: {sizes[0]}  structure: {sizes[1]}")
    if data["quantized"]:
        report.say()
        report.table(_quantized(data["quantized"], report.verbose))
    for item in data["external"]:
        size = "is missing" if item["bytes"] is None else text.size(item["bytes"])
        report.say(f"external data: {text.clean(item['file'])}  {size}")
    for key, value in data.get("metadata", {}).items() if report.verbose else ():
        report.say(f"metadata: {text.clean(key)} = {text.clean(value)}")
    for key, value in data.get("settings", {}).items():
        if report.verbose or key not in _USUAL:
            report.say(f"{key}: {text.clean(value)}")
    _problems(report, data)


def _headline(data: Mapping[str, Any]) -> Text:
    if data["format"] == "mnn":
        rest = f"MNN {data['version'] or 'of unknown version'}"
    else:
        opsets = ", ".join(
            f"opset {version}" if domain == "ai.onnx" else f"{domain} {version}"
            for domain, version in data["opsets"].items()
        )
        version = f"  version {data['version']}" if data["version"] else ""
        made = f"  by {data['producer']}" if data["producer"] else ""
        rest = f"ONNX IR {data['ir_version']}  {opsets}{made}{version}"
    noun = "op" if data["format"] == "mnn" else "node"
    facts = f"{text.count(data['nodes'], noun)}  {text.size(data['bytes'])}"
    return Text.assemble((text.clean(data["file"]), "bold"), f"  {text.clean(rest)}  {facts}")


def _values(report: Report, data: Mapping[str, Any]) -> Grid:
    table = Grid(Column(""), Column("name"), Column("dtype", spare=1), Column("shape"))
    for kind, items in (("input", data["inputs"]), ("output", data["outputs"])):
        shown: Sequence[Mapping[str, Any]] = items if report.verbose else items[:_VALUES]
        for item in shown:
            dims = text.shape(item["shape"]) if "shape" in item else ""
            layout = f"  {item['layout']}" if "layout" in item else ""
            table.add(kind, item["name"], item.get("dtype", ""), dims + layout)
        if len(shown) < len(items):
            table.add("", f"… {len(items) - len(shown)} more (-v shows all)", "", "")
    return table


def _counts(title: str, noun: str, counts: Mapping[str, int], total: int, limit: int | None) -> Grid:
    table = _grid(title, noun)
    items = list(counts.items())
    for name, number in items[:limit]:
        table.add(name, f"{number:,}")
    if limit is not None and len(items) > limit:
        rest = sum(number for _, number in items[limit:])
        table.add(f"… {len(items) - limit} more kinds (-v shows all)", f"{rest:,}")
    table.add("all", f"{total:,}")
    return table


def _quantized(layers: Sequence[Mapping[str, Any]], verbose: bool) -> Grid:
    """Quantized layers by how they are quantized; with -v each by itself."""
    titles = ("layer", "type") if verbose else ("layers",)
    table = Grid(*(Column(title) for title in ("quantized", *titles)), Column("weights", right=True), _BYTES)
    if verbose:
        for layer in layers:
            name = f"{layer['graph']}/{layer['name']}" if layer.get("graph") else layer["name"]
            table.add(_scheme(layer), name, layer["type"], f"{layer['weights']:,}", text.size(layer["nbytes"]))
        return table
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for layer in layers:
        groups.setdefault(_scheme(layer), []).append(layer)
    for scheme, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        weights, size = (sum(layer[key] for layer in group) for key in ("weights", "nbytes"))
        table.add(scheme, f"{len(group):,}", f"{weights:,}", text.size(size))
    return table


def _scheme(layer: Mapping[str, Any]) -> str:
    activations = ", activations too" if layer.get("activations") else ""
    return f"{layer['bits']}-bit {layer['sharing']}, {layer['symmetry']}, {layer['scales']} scales{activations}"


def _problems(report: Report, data: Mapping[str, Any]) -> None:
    problems = data.get("problems", [])
    shown = problems if report.verbose else problems[:_PROBLEMS]
    for problem in shown:
        hint = f"; {problem['hint']}" if problem["hint"] else ""
        report.say(text.clean(f"{problem['severity']}: {problem['where']}: {problem['message']}{hint}"))
    if len(shown) < len(problems):
        report.say(f"… {len(problems) - len(shown)} more problems (-v shows all)")
    unknown = data.get("unknown", [])
    if unknown:
        report.say(f"not known to graphkit: {text.listing([text.clean(line) for line in unknown], 3)}")


def _weights(weights: Mapping[str, Any]) -> Grid:
    table = _grid("weights", "tensors", "bytes")
    for title, groups in (
        ("", weights["by_kind"]),
        ("", weights["by_dtype"]),
        ("read by ", weights["by_operator"]),
    ):
        for name, group in groups.items():
            table.add(title + name, f"{group['tensors']:,}", text.size(group["bytes"]))
        table.add("", "", "")
    table.add("all", f"{weights['tensors']:,}", text.size(weights["bytes"]))
    return table


def _grid(*titles: str) -> Grid:
    return Grid(*(Column(title, right=title in ("nodes", "tensors", "bytes")) for title in titles))
