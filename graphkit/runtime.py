"""Reference runs in onnxruntime, with its own optimizations off.

onnxruntime without graph optimizations computes what the ONNX file says; that is what every rewrite and
every MNN result is compared with. With its optimizations on it would be one more party with its own faults.
"""

from __future__ import annotations

import copy
import difflib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from graphkit._permissions import exact
from graphkit._scratch import scratch
from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.model import Model

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Source = str | Path | Model

# onnxruntime's exceptions have no base class of their own.
_ORT_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__base__ is Exception
    ),
)
_NUMPY_NAMES = {"float": "float32", "double": "float64", "string": "object"}
_NODE = (
    re.compile(r"running (?P<op>\w+) node\. Name:'(?P<node>[^']*)'"),
    re.compile(r"Node \((?P<node>[^)]*)\) Op \((?P<op>\w+)\)"),
    re.compile(r'In Node, \("(?P<node>[^"]*)", (?P<op>\w+),'),
    re.compile(r"implementation for (?P<op>\w+)\(\d+\) node with name '(?P<node>[^']*)'"),
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_TELLING = 40  # characters; shorter first sentences ("Invalid model.") say nothing without the next
_SOURCE_PLACE = re.compile(r"/onnxruntime_src/\S+ .*?\) (?=[A-Z])|\S*onnxruntime_src/\S+:\d+\s*")


@dataclass(frozen=True)
class InputSpec:
    """What a model takes: dtype is numpy's (bfloat16 from ml_dtypes); in shape an int is a fixed size, a str
    a named one (equal names are equal sizes), None an unknown one."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class Reference:
    """Outputs of a reference run; `unstable` names those that differed in a second run on the same inputs.

    A model with unstable outputs (random numbers, training mode) cannot be compared with anything.
    """

    outputs: dict[str, Array]
    unstable: tuple[str, ...] = ()

    @property
    def deterministic(self) -> bool:
        """True when both runs agreed bit for bit."""
        return not self.unstable


class Engine(Protocol):
    """What runs a model: `Session`, or ONNX's own evaluator."""

    @property
    def input_specs(self) -> tuple[InputSpec, ...]:
        """The inputs that must be fed."""
        ...

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The outputs by name; raises GraphkitError."""
        ...


class Session:
    """An onnxruntime CPU session on a file or a model in memory; a context manager.

    `outputs` are the tensors to compute, default the model's outputs; inner tensors of the main graph may be
    asked for. Models compute as their operators say: attributes that permit less do not count (see `_permissions`).
    `optimize` turns onnxruntime's graph optimizations on. Raises ModelError when onnxruntime does
    not accept the model, UsageError when a tensor of `outputs` does not exist.
    """

    def __init__(
        self,
        source: Source,
        *,
        optimize: bool = False,
        outputs: Sequence[str] | None = None,
        threads: int = 2,
    ) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file = source.path if isinstance(source, Model) else Path(source)
        try:
            path = self._place(source, outputs)
            self._session = self._open(path, optimize, threads)
        except BaseException:
            self.close()
            raise
        self._outputs = list(outputs) if outputs is not None else [o.name for o in self._session.get_outputs()]

    @property
    def input_specs(self) -> tuple[InputSpec, ...]:
        """The inputs that must be fed. Raises ModelError for inputs that are not tensors."""
        return tuple(self._spec(value) for value in self._session.get_inputs())

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the computed outputs, in order."""
        return tuple(self._outputs)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run the model; raises GraphkitError with onnxruntime's reason and, if it says so, the node."""
        try:
            values = {name: self._to_ort(name, array) for name, array in feeds.items()}
            results = self._session.run_with_ort_values(self._outputs, values)
            return {name: self._from_ort(name, v) for name, v in zip(self._outputs, results, strict=True)}
        except _ORT_ERRORS as error:
            raise self._error(GraphkitError, "onnxruntime cannot run the model", error) from error

    def close(self) -> None:
        """Free the session and remove its temporary files."""
        self._session = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, source: Source, outputs: Sequence[str] | None) -> Path:
        """The file to open: the source itself, or a temporary one for models in memory and inner outputs."""
        if not isinstance(source, Model) and outputs is None:
            return Path(source)
        model = exact(source if isinstance(source, Model) else Model.load(source))
        if outputs is not None:
            model = with_outputs(model, outputs)
        self._folder = scratch("ort")
        path = Path(self._folder.name) / "model.onnx"
        model.save(path)
        return path

    def _open(self, path: Path, optimize: bool, threads: int) -> Any:
        if not path.is_file():
            raise ModelError("is not there" if not path.exists() else "is not a file", file=path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it logs at lower levels comes back as an exception anyway
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except _ORT_ERRORS as error:
            raise self._error(ModelError, "onnxruntime does not accept the model", error) from error

    def _spec(self, value: Any) -> InputSpec:
        found = re.fullmatch(r"tensor\((\w+)\)", value.type)
        if found is None:
            raise ModelError(f"input '{value.name}' is a {value.type}; only tensors are supported", file=self._file)
        name = _NUMPY_NAMES.get(found.group(1), found.group(1))
        dtype = np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
        return InputSpec(value.name, dtype, tuple(d if isinstance(d, int) else d or None for d in value.shape))

    def _to_ort(self, name: str, array: Array) -> Any:
        array = np.asarray(array)
        if array.dtype == ml_dtypes.bfloat16:
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(array).view(np.uint16), onnx.TensorProto.BFLOAT16
            )
        # ascontiguousarray makes scalars 1-D.
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))

    def _from_ort(self, name: str, value: Any) -> Array:
        if not value.is_tensor():
            raise ModelError(f"output '{name}' is a {value.data_type()}; only tensors are supported", file=self._file)
        if "bfloat16" in value.data_type():
            raise ModelError(
                f"output '{name}' is bfloat16, which onnxruntime cannot hand over",
                file=self._file,
                hint="end the model with a Cast to float",
            )
        return np.asarray(value.numpy())

    def _error(self, kind: type[GraphkitError], what: str, error: Exception) -> GraphkitError:
        node, reason = explain(str(error))
        return kind(f"{what}: {reason}", file=self._file, node=node)


def reference(source: Source | Engine, feeds: Feeds) -> Reference:
    """Run a model twice in one session and compare the results bit for bit, NaN equal to NaN.

    Raises what `Session` and `Session.run` raise.
    """
    if isinstance(source, str | Path | Model):
        with Session(source) as session:
            first, second = session.run(feeds), session.run(feeds)
    else:
        first, second = source.run(feeds), source.run(feeds)
    return Reference(first, tuple(name for name in first if not _same(first[name], second[name])))


def explain(message: str) -> tuple[str | None, str]:
    """Node name (if named) and reason, on one line, in an onnxruntime message."""
    node = None
    for pattern in _NODE:
        found = pattern.search(message)
        if found is not None:
            node = found.group("node") or None
            break
    text = _PREFIX.sub("", message.strip())
    for cut in ("Status Message: ", ", Error ", "failed:"):
        text = text.split(cut, 1)[-1] if cut in text else text
    text = " ".join(_SOURCE_PLACE.sub("", text).split())
    sentences = re.split(r"(?<=[a-z\])'])\. ", text)
    reason = sentences[0]
    for more in sentences[1:]:
        if len(reason) > _TELLING:
            break
        reason += f". {more}"
    return node, reason.rstrip(".")[:300] or "no reason given"


def _same(first: Array, second: Array) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))


def with_outputs(model: Model, outputs: Sequence[str]) -> Model:
    """The same model whose outputs are exactly these tensors of its main graph; UsageError when one is not there."""
    graph = model.proto.graph
    known = {name for node in graph.node for name in node.output}
    known |= {v.name for v in graph.input} | {t.name for t in graph.initializer}
    for name in outputs:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else "tensors inside subgraphs cannot be read"
            raise UsageError(f"the model has no tensor '{name}'", file=model.path, hint=hint)
    proto = copy.deepcopy(model.proto)
    declared = {value.name: value for value in model.proto.graph.output}
    del proto.graph.output[:]
    # onnxruntime infers the type of an output that declares none.
    proto.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    return Model(proto, model.store, model.path)
