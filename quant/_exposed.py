"""Sessions that compute chosen inner tensors of one model, on weights that are written to disk once.

Each session gets a small model of its own that holds only what the tensors need; onnxruntime maps the weights it
uses from the shared file, so that many sessions cost neither disk nor memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from graphkit._scratch import scratch
from graphkit.model import Model
from graphkit.runtime import Session


class Exposed:
    """A model of which any tensors of the main graph can be computed; a context manager.

    Raises OutputError when there is no room for a copy of its weights, ModelError when the model is damaged.
    """

    def __init__(self, model: Model) -> None:
        self._folder = scratch("calibration")
        try:
            path = Path(self._folder.name) / "model.onnx"
            model.save(path, external=True)
            self._proto = onnx.load(path, load_external_data=False)
        except BaseException:
            self.close()
            raise
        self._made = 0

    def session(self, values: Sequence[str], extra: Iterable[NodeProto] = ()) -> Session:
        """A session that computes these tensors of the main graph or of the nodes in `extra`, and nothing else.

        It takes all inputs of the model. Raises ModelError when onnxruntime does not accept the model.
        """
        proto = _only(self._proto, values, list(extra))
        self._made += 1
        path = Path(self._folder.name) / f"part{self._made}.onnx"
        path.write_bytes(proto.SerializeToString())
        return Session(path)

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _only(model: ModelProto, values: Sequence[str], extra: list[NodeProto]) -> ModelProto:
    """The part of a model that computes `values`, which become its outputs."""
    nodes, wanted = [], set(values)
    for node in reversed([*model.graph.node, *extra]):
        if not wanted.isdisjoint(node.output):
            nodes.append(node)
            wanted.update(_reads(node))
    inputs = {value.name for value in model.graph.input}
    graph = GraphProto(name=model.graph.name)
    graph.node.extend(reversed(nodes))
    graph.input.extend(model.graph.input)
    graph.initializer.extend(t for t in model.graph.initializer if t.name in wanted or t.name in inputs)
    graph.sparse_initializer.extend(t for t in model.graph.sparse_initializer if t.values.name in wanted)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in values)  # onnxruntime infers their types
    part = ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.CopyFrom(graph)
    return part


def _reads(node: NodeProto) -> Iterator[str]:
    """What a node may read: its inputs, and every name inside its subgraphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _reads(inner)
