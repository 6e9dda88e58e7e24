"""The backend tests of the installed onnx package, as models and tensors that a road to MNN can take."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

Array = npt.NDArray[Any]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
DTYPES = frozenset(
    ["float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool", "uint32", "uint64", "int16", "uint16"],
)
# At least as wide as this: MNN computes in float32, and its fast functions are a little off.
_RTOL, _ATOL = 1e-3, 1e-4
_PARAMETER_SIZE = 64  # elements of an integer input that is taken for a parameter (axes, shape, pads)


@dataclass(frozen=True)
class Case:
    """One test: a model, what goes in and what must come out, in the order of the model's outputs.

    Integer and boolean inputs of rank 0 or 1 after the first are bound as initializers, as real exports have axes,
    shapes and pads.
    """

    name: str
    kind: str
    model: bytes
    feeds: dict[str, Array]
    expected: dict[str, Array]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Excluded:
    """A test that cannot be put to MNN at all, and why."""

    name: str
    kind: str
    reason: str


@functools.cache
def load() -> tuple[Case | Excluded, ...]:
    """All backend tests of the four kinds, in a fixed order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests divide by zero on purpose
        return tuple(_load())


def runnable() -> tuple[Case, ...]:
    """Those that can be put to MNN."""
    return tuple(case for case in load() if isinstance(case, Case))


def _load() -> Iterator[Case | Excluded]:
    for kind in KINDS:
        for test in load_model_tests(kind=kind):
            yield _case(test, kind)


def _case(test: Any, kind: str) -> Case | Excluded:
    model, names, inputs, outputs = _contents(test)
    values = [*inputs, *outputs]
    if any(not isinstance(value, np.ndarray | np.generic) for value in values):
        return Excluded(test.name, kind, "sequences or optional values as inputs or outputs")
    foreign = sorted({_dtype_name(value) for value in values} - DTYPES)
    if foreign:
        return Excluded(test.name, kind, f"element types MNN does not have: {', '.join(foreign)}")
    feeds = _bind(model, dict(zip(names, map(np.asarray, inputs), strict=True)))
    expected = {info.name: np.asarray(value) for info, value in zip(model.graph.output, outputs, strict=True)}
    data = model.SerializeToString()
    return Case(test.name, kind, data, feeds, expected, max(test.rtol, _RTOL), max(test.atol, _ATOL))


def _contents(test: Any) -> tuple[onnx.ModelProto, list[str], Sequence[Any], Sequence[Any]]:
    """Model, input names, inputs and outputs of a test's first data set."""
    if test.model is not None and test.data_sets:
        inputs, outputs = test.data_sets[0]
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        return model, [info.name for info in model.graph.input][: len(inputs)], inputs, outputs
    folder = Path(test.model_dir)
    model, data = onnx.load(folder / "model.onnx"), folder / "test_data_set_0"
    initialized = {tensor.name for tensor in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in initialized]
    if len(list(data.glob("input_*.pb"))) == len(model.graph.input):
        infos = list(model.graph.input)
    inputs = [_read(data / f"input_{i}.pb", info) for i, info in enumerate(infos)]
    outputs = [_read(data / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output)]
    return model, [info.name for info in infos], inputs, outputs


def _read(path: Path, info: onnx.ValueInfoProto) -> Any:
    """The stored tensor; None for a value that is no tensor."""
    if not info.type.HasField("tensor_type"):
        return None
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def _dtype_name(value: Array) -> str:
    name = str(np.asarray(value).dtype)
    return "string" if name == "object" or name.startswith("<U") else name


def _bind(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Make parameter-like inputs initializers; returns the inputs that stay."""
    kept = {}
    for position, (name, array) in enumerate(feeds.items()):
        small = array.ndim <= 1 and array.size <= _PARAMETER_SIZE
        if position and small and array.dtype.name in ("int64", "int32", "bool"):
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
            for info in [info for info in model.graph.input if info.name == name]:
                model.graph.input.remove(info)
        else:
            kept[name] = array
    model.ir_version = max(model.ir_version, 4)
    return kept
