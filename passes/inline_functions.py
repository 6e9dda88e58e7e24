"""The pass `inline-functions`: calls of local functions replaced by what they do."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import normal_domain
from graphkit.passes._cleanup_dead import called_functions
from graphkit.rewrite import Change, PassResult, Refusal

Key = tuple[str, str, str]


@dataclass(frozen=True)
class InlineFunctions:
    """Replace calls of local functions by their bodies, in subgraphs and in other functions too.

    Exporters write a module or an operator as a local function; no other pass looks inside one, and MNN does
    not know them. Functions that nothing calls any more are removed. Weights are not read.

    Refuses a function whose operator sets are of other versions than the model's, for its operators may mean
    something else there. Patterns of `only` and `exclude` match `name` or `domain::name`.
    """

    name: ClassVar[str] = "inline-functions"
    summary: ClassVar[str] = "replace calls of local functions by their bodies"

    only: tuple[str, ...] = field(
        default=(), metadata={"help": "inline these functions only; names or patterns, separated by ';'"}
    )
    exclude: tuple[str, ...] = field(
        default=(), metadata={"help": "leave these functions; names or patterns, separated by ';'"}
    )

    def run(self, graph: Graph) -> PassResult:
        """Inline in place. Uses onnx.inliner, on the model without its weights."""
        if not graph.functions:
            return PassResult()
        called = called_functions(graph)
        wanted = [key for key in graph.functions if key in called and self._wants(key)]
        refusals = [refusal for key in wanted if (refusal := _refuse(graph, key)) is not None]
        refused = {refusal.node for refusal in refusals}
        chosen: list[Key] = []
        for key in wanted:
            if label(key) not in refused:
                if not graph.root.gate(label(key), "inline this function"):
                    break
                chosen.append(key)
        calls = _calls(graph)
        if chosen:
            _inline(graph, chosen)
        changes = tuple(Change(label(key), f"inline {calls[key[:2]]} calls of this function") for key in chosen)
        counters = {"inlined": len(chosen)} if chosen else {}
        return PassResult(changes, tuple(refusals), counters, self._notes(graph, wanted))

    def _wants(self, key: Key) -> bool:
        return (not self.only or _matches(key, self.only)) and not _matches(key, self.exclude)

    def _notes(self, graph: Graph, wanted: list[Key]) -> tuple[str, ...]:
        missing = [pattern for pattern in self.only if not any(_matches(key, (pattern,)) for key in wanted)]
        return tuple(f"no local function that is called matches '{pattern}'" for pattern in missing)


def label(key: Key) -> str:
    """What messages call a function: `domain::name`, and its overload if it has one."""
    return "::".join(part for part in key if part)


def _matches(key: Key, patterns: tuple[str, ...]) -> bool:
    names = (key[1], f"{key[0]}::{key[1]}", label(key))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _refuse(graph: Graph, key: Key) -> Refusal | None:
    """A refusal when an operator set of the function is not the model's."""
    for domain, version in graph.functions[key].opsets.items():
        ours = graph.opsets.get(domain, version)
        if ours != version:
            name = domain or "ai.onnx"
            reason = f"it uses operator set {name} {version} and the model {ours}"
            return Refusal("inline-functions", label(key), reason)
    return None


def _calls(graph: Graph) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for top in (graph, *graph.functions.values()):
        for inner in top.walk():
            found.update((node.proto.domain, node.op_type) for node in inner.nodes if node.domain)
    return found


def _inline(graph: Graph, chosen: list[Key]) -> None:
    had_types = bool(graph.inferred)
    proto = graph.to_model().proto
    _add_imports(proto, [graph.functions[key].opsets for key in chosen])
    _write_defaults(proto)
    inlined = onnx.inliner.inline_selected_functions(proto, [key[:2] for key in chosen])
    _drop(inlined, chosen)
    graph.replace_with(Model(inlined, graph.store, graph.model.path))
    if had_types:
        shapes.infer(graph)


def _add_imports(proto: ModelProto, needed: list[dict[str, int]]) -> None:
    """Import what the bodies use: the inliner leaves that out."""
    known = {normal_domain(opset.domain) for opset in proto.opset_import}
    for opsets in needed:
        for domain, version in opsets.items():
            if domain not in known:
                known.add(domain)
                proto.opset_import.add(domain=domain, version=version)


def _write_defaults(proto: ModelProto) -> None:
    """Write default attributes out at every call: the inliner forgets them, and with them their values."""
    defaults = {_key(f): list(f.attribute_proto) for f in proto.functions if f.attribute_proto}
    for nodes in (proto.graph.node, *(f.node for f in proto.functions)) if defaults else ():
        for node in _nested(nodes):
            have = {attribute.name for attribute in node.attribute}
            key = (node.domain, node.op_type, getattr(node, "overload", ""))
            node.attribute.extend(a for a in defaults.get(key, ()) if a.name not in have)


def _nested(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nested(inner.node)


def _drop(proto: ModelProto, chosen: list[Key]) -> None:
    kept = [f for f in proto.functions if _key(f) not in chosen]
    del proto.functions[:]
    proto.functions.extend(kept)


def _key(function: FunctionProto) -> Key:
    return function.domain, function.name, getattr(function, "overload", "")
