"""A model without what is the user's: random weights and inputs, and names that tell nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from graphkit._body import write_model
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model, tensors
from graphkit.proof import Feeds
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect._fresh import fresh_feeds, with_fresh_weights
from graphkit.verification.bisect._shrink import cleaned
from graphkit.verification.bisect._values import Array
from graphkit.verification.bisect.search import Answer, Exhausted

_QUOTED = re.compile(r"'([^']*)'")
_TRIES = 3
_LIST = 16  # elements; longer lists in attributes are data rather than parameters


@dataclass(frozen=True)
class Anonymized:
    """The model and its feeds without the user's weights and names.

    shows: whether it still shows the fault, None when the time was up before that was known. kept: what was not
    replaced, in words; empty when nothing is left that could be the user's but the structure, single numbers and
    shapes. names: new names of values and nodes by old.
    """

    model: Model
    feeds: dict[str, Array]
    shows: bool | None
    kept: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def translated(self, text: str) -> str:
        """A message with the names in it, which messages put between ' and ', replaced."""
        return _QUOTED.sub(lambda found: f"'{self.names.get(found[1], found[1])}'", text)

    @property
    def note(self) -> str:
        """What there is to say about it, one line."""
        left = f"; still in it: {', '.join(self.kept)}" if self.kept else ""
        if self.shows:
            return f"weights and inputs are random and names are replaced{left}"
        if self.shows is None:
            return f"weights and inputs are random and names are replaced; the time was up before it was tried{left}"
        return f"with random weights and inputs the fault does not show: it depends on the original's{left}"


def anonymize(
    model: Model,
    feeds: Feeds,
    predicate: Callable[[Model, Feeds], Answer],
    *,
    tries: int = _TRIES,
    effort: Effort | None = None,
) -> Anonymized:
    """Replace all weights, inputs and names, and ask whether the fault still shows.

    Random numbers are drawn up to `tries` times; when integer inputs must stay for the fault to show, they do, and
    `kept` says so. Weights never stay: when none of the tries shows the fault, the result is the first try and `shows`
    is False. effort: what ends the tries; the predicate may end them too, by Exhausted. Operator types and domains
    stay, names of local functions do not. Raises UsageError unless `tries` is positive.
    """
    if tries < 1:
        raise UsageError(f"at least one try is needed, not {tries}")
    plain = cleaned(model)
    first: Anonymized | None = None
    for integers in (True, False) if _has_integers(feeds) else (True,):
        for seed in range(tries):
            drawn = fresh_feeds(feeds, seed, integers=integers)
            made, names, labels = renamed(with_fresh_weights(plain, seed=seed))
            inputs = {names[name]: array for name, array in drawn.items()}
            known = {**labels, **names}
            kept = (*_kept(made), *_kept_inputs(feeds, integers))
            first = first or Anonymized(made, inputs, False, kept, known)
            try:
                shows = _asked(predicate, effort, made, inputs)
            except Exhausted:
                return replace(first, shows=None)
            if shows:
                return Anonymized(made, inputs, True, kept, known)
    assert first is not None
    return first


def _asked(predicate: Callable[[Model, Feeds], Answer], effort: Effort | None, model: Model, feeds: Feeds) -> bool:
    if effort is not None and effort.late:
        raise Exhausted
    return predicate(model, feeds) is True


def _has_integers(feeds: Feeds) -> bool:
    return any(array.dtype.kind in "iu" for array in feeds.values())


def _kept_inputs(feeds: Feeds, integers: bool) -> Iterator[str]:
    if not integers:
        yield "integer inputs"
    if any(array.dtype.kind in "OUS" for array in feeds.values()):
        yield "text inputs"


def renamed(model: Model) -> tuple[Model, dict[str, str], dict[str, str]]:
    """The model with values, nodes, graphs, dims and local functions numbered; new names of values, and of nodes (by
    what messages call them), by old."""
    proto = write_model(Graph.of(model))  # value names are unique over nested graphs after reading
    renaming = _Renaming({(f.domain, f.name, f.overload): f"F{number}" for number, f in enumerate(proto.functions)})
    renaming.graph(proto.graph)
    for function in proto.functions:
        renaming.function(function)
    return Model(proto, model.store), renaming.values.known, renaming.labels


class _Names:
    """Numbered names, the same for the same old name; an empty name stays empty."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.known: dict[str, str] = {}

    def __call__(self, old: str) -> str:
        return self.known.setdefault(old, f"{self.prefix}{len(self.known)}") if old else ""


class _Renaming:
    """The names of one model; `functions` are new names of local functions."""

    def __init__(self, functions: Mapping[tuple[str, str, str], str]) -> None:
        self.functions = functions
        self.values, self.dims = _Names("t"), _Names("d")
        self.labels: dict[str, str] = {}

    def graph(self, graph: GraphProto) -> None:
        """Rename everything in a graph and those inside it."""
        graph.name = "g"
        for info in (*graph.input, *graph.output, *graph.value_info):
            info.name = self.values(info.name)
            info.ClearField("doc_string")
            self._type(info.type)
        for tensor in graph.initializer:
            tensor.name = self.values(tensor.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = self.values(sparse.values.name)
        self._nodes(graph.node)

    def function(self, function: FunctionProto) -> None:
        """Rename everything in a local function, whose values have names of their own."""
        inside = _Renaming(self.functions)
        function.name = self.functions[function.domain, function.name, function.overload]
        for field_name in ("doc_string", "value_info", "metadata_props"):
            function.ClearField(field_name)
        for values in (function.input, function.output):
            values[:] = [inside.values(value) for value in values]
        inside._nodes(function.node)

    def _nodes(self, nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            label = node.name or next((out for out in node.output if out), node.op_type)
            node.op_type = self.functions.get((node.domain, node.op_type, node.overload), node.op_type)
            for values in (node.input, node.output):
                values[:] = [self.values(value) for value in values]
            node.name = f"{node.op_type}_{next((out for out in node.output if out), '')}"
            self.labels[label] = node.name
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    attribute.t.name = ""
                for inner in graphs_of(attribute):
                    self.graph(inner)

    def _type(self, type_: TypeProto) -> None:
        kind = type_.WhichOneof("value")
        if kind in ("tensor_type", "sparse_tensor_type"):
            for dim in getattr(type_, kind).shape.dim:
                dim.ClearField("denotation")
                if dim.dim_param:
                    dim.dim_param = self.dims(dim.dim_param)
        elif kind in ("sequence_type", "optional_type"):
            self._type(getattr(type_, kind).elem_type)
        elif kind == "map_type":
            self._type(type_.map_type.value_type)


def graphs_of(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _kept(model: Model) -> Iterator[str]:
    """What is still the user's: text, tables of integers, long lists in attributes."""
    for tensor in tensors(model.proto):
        size = 1
        for dim in tensor.dims:
            size *= dim
        if tensor.data_type == TensorProto.STRING:
            yield f"text constant '{tensor.name}'"
        elif size > _LIST and tensor.data_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL):
            yield f"{TensorProto.DataType.Name(tensor.data_type).lower()} constant '{tensor.name}'{list(tensor.dims)}"
    for node, attribute in _attributes(model.proto):
        value: Any = onnx.helper.get_attribute_value(attribute) if not attribute.ref_attr_name else None
        if attribute.type == AttributeProto.STRINGS or (isinstance(value, list) and len(value) > _LIST):
            yield f"attribute '{attribute.name}' of '{node.name}'"


def _attributes(proto: ModelProto) -> Iterator[tuple[NodeProto, AttributeProto]]:
    waiting = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        for attribute in node.attribute:
            yield node, attribute
            for graph in graphs_of(attribute):
                waiting += graph.node
