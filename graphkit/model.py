"""Load and save ONNX models without reading their weights into memory.

`Model.load` maps the file and parses only its skeleton; `Model.save` streams skeleton and weights to a
temporary file and renames it. Nothing over 2 GB ever passes through one serialized message, and the input
file is never touched. External data as in the ONNX specification, docs/ExternalData.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from graphkit import _write
from graphkit._wire import MARK, MAX_MESSAGE, Ref, WireError, expand, raw_data, strip
from graphkit.errors import GraphkitError, ModelError
from graphkit.weights import Weight, WeightStore, ref_of, refer, tensor_nbytes

PathLike = str | os.PathLike[str]
_GRAPHS = frozenset({AttributeProto.GRAPH, AttributeProto.GRAPHS})
_HOLDS_TENSORS = _GRAPHS | {AttributeProto.TENSOR, AttributeProto.TENSORS}


class Model:
    """An ONNX model: a skeleton protobuf and a store of lazy weights.

    `proto` is a valid ModelProto whose large tensors refer to buffers of `store`; `path` is the file it came
    from, None for a model made in memory.
    """

    def __init__(self, proto: ModelProto, store: WeightStore, path: Path | None = None) -> None:
        self.proto = proto
        self.store = store
        self.path = path

    @classmethod
    def load(cls, path: PathLike) -> Model:
        """Load a model file; weights stay in the file, embedded or external.

        Raises ModelError for a file that is missing, empty, truncated, not ONNX or of a newer IR version, and
        for external data that are missing, too short, or outside the model's folder.
        """
        path = Path(path)
        _check_file(path)
        store = WeightStore()
        number = store.add_file(path.absolute())
        model = cls(_parse(store.buffers[number].view, number, path), store, path)
        _check_model(model.proto, path)
        _adopt_tensors(model, path.absolute().parent)
        return model

    @classmethod
    def from_proto(cls, proto: ModelProto, base_dir: PathLike | None = None) -> Model:
        """Wrap a model made in memory; `base_dir` is where its external data files are.

        The given message is not changed. Raises ModelError as `load` does, for a message over 2 GB, and for
        one that is the skeleton of another model (take its `materialized()`, or save and load it).
        """
        if proto.ByteSize() > MAX_MESSAGE:
            raise ModelError("is over 2 GB in one message; keep its weights in external data files", file="model")
        store = WeightStore()
        serialized = proto.SerializeToString()
        if MARK.encode() in serialized:
            raise ModelError("refers to weights of another model", file="model", hint="use materialized()")
        data = memoryview(serialized)
        model = cls(_parse(data, store.add_memory(data), None), store)
        _check_model(model.proto, None)
        _adopt_tensors(model, Path(base_dir).absolute() if base_dir is not None else None)
        return model

    @property
    def nbytes(self) -> int:
        """Bytes of the model with all its weights inside (not what duplicates would save)."""
        return expand(self.proto.SerializeToString(), raw_data).size

    @property
    def external(self) -> bool:
        """True when the model came with external data files."""
        own = self.path.absolute() if self.path is not None else None
        return any(file != own for file in self.store.files())

    def weights(self) -> Iterator[Weight]:
        """All constant tensors: initializers and tensor attributes, subgraphs and functions included."""
        return (Weight(tensor, self.store) for tensor in tensors(self.proto))

    def materialized(self) -> ModelProto:
        """A self-contained copy of the protobuf. Raises ModelError when it would exceed 2 GB."""
        pieces = expand(self.proto.SerializeToString(), raw_data)
        if pieces.size > MAX_MESSAGE:
            raise ModelError(
                f"{pieces.size / 1e9:.1f} GB do not fit into one message",
                file=self.path,
                hint="save the model: weights over 2 GB go to an external data file",
            )
        data = b"".join(bytes(self.store.read(p)) if isinstance(p, Ref) else p for p in pieces.parts)
        return ModelProto.FromString(data)

    def save(self, path: PathLike, *, external: bool | None = None) -> int:
        """Write the model atomically and return the bytes written.

        Weights go inside the file, or to `<name>.data` beside it when `external` is true, or by default when
        the model came with external data or would exceed 2 GB. Raises OutputError when the place cannot be
        written, the disk is full, or the output is one of the files the model is read from.
        """
        skeleton = self.proto.SerializeToString()
        size = expand(skeleton, raw_data).size
        if external is None:
            external = self.external or size > MAX_MESSAGE
        if not external and size > MAX_MESSAGE:
            raise ModelError(f"{size / 1e9:.1f} GB do not fit into one ONNX file; use external data", file=path)
        return _write.save(skeleton, self.store, Path(path), external=external)


def load(path: PathLike) -> Model:
    """Load an ONNX model lazily; see `Model.load`."""
    return Model.load(path)


def save(model: Model, path: PathLike, *, external: bool | None = None) -> int:
    """Save a model atomically; see `Model.save`."""
    return model.save(path, external=external)


def tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model: initializers and tensor attributes, subgraphs and functions included."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _attribute_tensors(node.attribute)


def inner_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds: branches, bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def walk_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of the graphs inside them, each before what it holds."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from walk_nodes(graph.node)


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all inside it, outer ones first."""
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from walk_graphs(inner)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if attributes := node.attribute:
            yield from _attribute_tensors(attributes)


def _attribute_tensors(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        kind = attribute.type
        if kind not in _HOLDS_TENSORS:
            continue
        if kind == AttributeProto.TENSOR:
            yield attribute.t
        yield from attribute.tensors
        for graph in (attribute.g, *attribute.graphs) if kind in _GRAPHS else ():
            yield from _graph_tensors(graph)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ModelError("is a directory, not a model file", file=path, hint="name the .onnx file inside it")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"cannot be opened: {error.strerror}", file=path) from error
    if size == 0:
        raise ModelError("is empty", file=path)


def _parse(data: memoryview, buffer: int, path: Path | None) -> ModelProto:
    try:
        return ModelProto.FromString(strip(data, buffer))
    except (WireError, DecodeError, IndexError) as error:
        mnn = path is not None and path.suffix.lower() == ".mnn"
        raise ModelError(
            f"is not an ONNX model{', but a .mnn file' if mnn else f', or it is truncated ({error})'}",
            file=path or "model",
            hint="name the ONNX model it was made from" if mnn else "export or download the file again",
        ) from error


def _check_model(proto: ModelProto, path: Path | None) -> None:
    where = path or "model"
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError("is not an ONNX model: it has no graph or no IR version", file=where)
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"has IR version {proto.ir_version}; onnx {onnx.__version__} reads up to {onnx.IR_VERSION}",
            file=where,
            hint="upgrade the onnx package, or export with an older IR version",
        )
    _check_opset(proto, where)
    if not proto.graph.output:
        raise ModelError("has no outputs", file=where, hint="export the model again, with the outputs you want")


def _check_opset(proto: ModelProto, where: Path | str) -> None:
    versions = [opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if versions and not 1 <= versions[0] <= newest:
        raise ModelError(
            f"imports opset {versions[0]}; onnx {onnx.__version__} knows 1 to {newest}",
            file=where,
            hint="upgrade the onnx package, or export with an older opset",
        )
    if not versions and any(node.domain in ("", "ai.onnx") for node in proto.graph.node):
        raise ModelError("uses ONNX operators but imports no operator set", file=where, hint="export the model again")


def _adopt_tensors(model: Model, base_dir: Path | None) -> None:
    """Point external tensors at buffers, and check that every lazy tensor has the bytes its shape needs."""
    for tensor in tensors(model.proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            try:
                _adopt_tensor(tensor, model, base_dir)
            except ModelError as error:
                raise one_line(error) from error


def _adopt_tensor(tensor: TensorProto, model: Model, base_dir: Path | None) -> None:
    ref = _own_ref(tensor, model)
    if ref is None:
        ref = _resolve_external(tensor, model, base_dir)
        refer(tensor, ref)
    _check_length(tensor, ref, model.path)


def one_line(error: GraphkitError) -> ModelError:
    """A ModelError with the same text, in which names from the file cannot break the line."""
    return ModelError(
        readable(error.message),
        file=error.file,
        node=None if error.node is None else readable(error.node),
        tensor=None if error.tensor is None else readable(error.tensor),
        hint=error.hint,
    )


def readable(text: str | bytes) -> str:
    """Text from a file as something to print: what is not UTF-8 or not printable is escaped."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _own_ref(tensor: TensorProto, model: Model) -> Ref | None:
    """The reference that `strip` left, None when there is none; entries that only look so are refused."""
    try:
        ref = ref_of(tensor)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError("has a damaged external-data entry", file=model.path, tensor=tensor.name) from error
    if ref is None:
        return None
    end = len(model.store.buffers[0].view)
    if ref.buffer != 0 or not 0 <= ref.offset <= ref.offset + ref.length <= end:
        raise ModelError("refers to data outside the file", file=model.path, tensor=tensor.name)
    return ref


def _check_length(tensor: TensorProto, ref: Ref, path: Path | None) -> None:
    try:
        needed = tensor_nbytes(tensor.data_type, tuple(tensor.dims))
    except (KeyError, ValueError) as error:
        raise ModelError(f"unknown element type {tensor.data_type}", file=path, tensor=tensor.name) from error
    if needed != ref.length:
        raise ModelError(
            f"has {ref.length} bytes of data where its shape {list(tensor.dims)} needs {needed}",
            file=path,
            tensor=tensor.name,
        )


def _resolve_external(tensor: TensorProto, model: Model, base_dir: Path | None) -> Ref:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = _external_file(location, base_dir, tensor.name, model.path)
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or tensor_nbytes(tensor.data_type, tuple(tensor.dims)))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError("has a damaged external-data entry", file=model.path, tensor=tensor.name) from error
    size = file.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(
            f"external data file '{location}' is too short: tensor '{tensor.name}' needs bytes {offset} to "
            f"{offset + length}, the file has {size}",
            file=model.path,
            tensor=tensor.name,
            hint="copy or download the file again",
        )
    return Ref(model.store.add_file(file), offset, length)


def _external_file(location: str, base_dir: Path | None, tensor: str, path: Path | None) -> Path:
    if base_dir is None:
        raise ModelError(f"external data '{location}' of a model in memory needs a folder", tensor=tensor)
    file = base_dir / location
    if not location or Path(location).is_absolute() or not _is_inside(file, base_dir):
        raise ModelError(
            f"external data path '{location}' leaves the model's folder",
            file=path,
            tensor=tensor,
            hint="put the data file beside the model; links and '..' out of the folder are refused",
        )
    if not _is_file(file):
        raise ModelError(
            f"external data file '{location}' is missing",
            file=path,
            tensor=tensor,
            hint=f"copy it to {base_dir}",
        )
    return file


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, links in a circle
        return False


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # a name that is too long
        return False
