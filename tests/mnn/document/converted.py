"""Small models converted by MNN, what MNN computes with a file, and edits that must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphkit.errors import GraphkitError, UsageError
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import Document, dump, parse, read
from graphkit.mnn.document.tree import Table, first_difference
from graphkit.mnn.options import ConverterOptions
from graphkit.testing import parse as parse_onnx

Array = np.ndarray[Any, Any]

CNN = """g (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
    c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, b)
    t = Tanh(c)
    m = Mul(t, two)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(m)
    y = Sigmoid(p)
}"""
LOOP = """g (float[2, 3] x, int64 n) => (float[2, 3] y) {
    go = Constant<value = bool {1}>()
    y = Loop(n, go, x) <body = b (int64 i, bool ci, float[2, 3] v) => (bool co, float[2, 3] vo)
        { co = Identity(ci) t = Tanh(v) vo = Add(t, v) }>
}"""


def random(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


IMAGE = {"x": random(1, 3, 8, 8)}


def cnn_weights() -> dict[str, Array]:
    """The weights of `CNN`."""
    return {"w": random(4, 3, 3, 3), "b": random(4, seed=1), "two": np.float32(2)}


def convert(path: Path, text: str, weights: dict[str, Array] | None = None, **options: Any) -> Path:
    """Convert a model in ONNX's text form; `options` are MNNConvert's."""
    proto = parse_onnx(text).proto
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    source = path.with_suffix(".onnx")
    onnx.save(proto, source)
    return convert_file(source, path, **options)


def convert_file(source: Path, path: Path, **options: Any) -> Path:
    """Convert an ONNX file as it is."""
    run_converter(source, path, ConverterOptions.of("ONNX", options))
    return path


def computed(path: Path, feeds: dict[str, Array], outputs: list[str] | None = None) -> dict[str, Array]:
    """What MNN computes with a file."""
    return worker.run(path, feeds, outputs).outputs


def op_of(doc: Document | Path, name: str) -> Table:
    """An operator of the main graph by name."""
    document = read(doc) if isinstance(doc, Path) else doc
    return next(op for op in document.net["oplists"] if op["name"] == name)


def refused(doc: Document, edit: Callable[[], Any], message: str, kind: type[GraphkitError] = UsageError) -> str:
    """An edit raises and leaves the document as it was; the hint."""
    before = parse(dump(doc))
    with pytest.raises(kind) as caught:
        edit()
    assert message in str(caught.value)
    assert first_difference(before.net, doc.net) is None
    return caught.value.hint or ""
