"""Helpers to test passes, for graphkit's own tests and for plugin authors.

`assert_rewrites(pass_, before, after)` takes small graphs in ONNX text, checks the result node by node, and
runs both in onnxruntime: equal structure is nice, equal outputs are the point.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node
from graphkit.rewrite import Pass, PassResult

_PRINTED = 64  # elements; larger constants are compared bit for bit, these as they print


def parse(text: str, *, opset: int = 18, ir_version: int = 8, imports: Mapping[str, int] | None = None) -> Model:
    """A model from ONNX text: a whole model, or only a graph (then with this opset and these imports)."""
    if not text.lstrip().startswith("<"):
        domains = {"": opset, **(imports or {})}
        listing = ", ".join(f'"{domain}": {version}' for domain, version in domains.items())
        text = f"<ir_version: {ir_version}, opset_import: [{listing}]>\n{text}"
    return Model.from_proto(onnx.parser.parse_model(text))


def graph_of(text: str, *, opset: int = 18, infer: bool = True, **header: Any) -> Graph:
    """The indexed graph of a model in ONNX text, its shapes inferred."""
    graph = Graph.of(parse(text, opset=opset, **header))
    if infer:
        shapes.infer(graph)
    return graph


def assert_rewrites(
    pass_: Pass,
    before: str,
    after: str,
    *,
    opset: int = 18,
    inputs: Mapping[str, np.ndarray] | None = None,
    rtol: float = 1e-5,
    **header: Any,
) -> PassResult:
    """Assert that a pass turns `before` into `after` (up to inner names) and that both compute the same.

    `rtol` is the max abs error over the reference's max, per output. `inputs` replaces the random ones.
    """
    graph = graph_of(before, opset=opset, **header)
    result = _run_pass(pass_, graph)
    graph.check()
    model = graph.to_model()
    onnx.checker.check_model(model.materialized())
    expected, actual = canonical(graph_of(after, opset=opset, **header)), canonical(graph)
    assert actual == expected, "\n".join(["expected:", *expected, "got:", *actual])
    assert result.modified, "the pass changed the graph but reports no change"
    assert_equal_outputs(parse(before, opset=opset, **header), model, inputs=inputs, rtol=rtol)
    return result


def assert_unchanged(
    pass_: Pass, before: str, *, refuses: str | None = None, opset: int = 18, **header: Any
) -> PassResult:
    """Assert that a pass leaves the graph alone; `refuses` is a part of the reason it must give."""
    graph = graph_of(before, opset=opset, **header)
    expected = canonical(graph)
    result = _run_pass(pass_, graph)
    assert canonical(graph) == expected, "\n".join(["the graph changed:", *canonical(graph)])
    assert not result.modified, f"nothing changed, but the pass reports {result.changes}"
    reasons = [refusal.reason for refusal in result.refusals]
    if refuses is not None:
        assert any(refuses in reason for reason in reasons), f"no refusal says '{refuses}': {reasons}"
    return result


def _run_pass(pass_: Pass, graph: Graph) -> PassResult:
    """Run a pass and assert that it changed no protobuf in place: a rollback could not undo that."""
    protos = graph.snapshot().nodes
    stored = [proto.SerializeToString() for proto in protos]
    result = pass_.run(graph)
    for proto, then in zip(protos, stored, strict=True):
        was = onnx.NodeProto.FromString(then)
        assert proto == was, f"the pass changed node '{was.name or was.output[0]}' in place; use graph methods"
    return result


def canonical(graph: Graph) -> list[str]:
    """A graph as lines that do not depend on inner names or on the order of independent nodes.

    Nodes that nothing uses come last, so that a pass that leaves some behind is seen.
    """
    lines: list[str] = []
    names: dict[str, str] = {}
    for name in graph.inputs:
        names[name] = f"input {name}"
    for name in graph.outputs:
        lines.append(f"output {name} = {_value(graph, name, names, lines)}")
    for node in reversed(list(graph.nodes)):
        if node.op != "Constant" and not any(out in names for out in node.outputs):
            lines.append("unused:")
            _node(graph, node, names, lines)
    return lines


def _value(graph: Graph, name: str, names: dict[str, str], lines: list[str]) -> str:
    if not name:
        return "-"
    if name not in names:
        array = graph.constant(name)
        node = graph.producer(name)
        if array is not None:
            names[name] = _constant(array)
        elif node is not None:
            _node(graph, node, names, lines)
        else:
            return f"outer {name}"
    return names[name]


def _constant(array: np.ndarray) -> str:
    kind = f"{array.dtype}{list(array.shape)}"
    if array.size <= _PRINTED:
        return kind + np.array2string(array, threshold=_PRINTED)
    return f"{kind} crc32 {zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def _node(graph: Graph, node: Node, names: dict[str, str], lines: list[str]) -> None:
    inputs = [_value(graph, value, names, lines) for value in node.inputs]
    attrs = {key: _plain(value) for key, value in sorted(node.attrs.items())}
    number = len(lines)
    lines.append(f"%{number} = {node.op}({', '.join(inputs)}) {attrs or ''}".rstrip())
    for key, sub in node.subgraphs.items():
        lines.extend(f"  {key}: {line}" for line in canonical(sub))
    for index, out in enumerate(node.outputs):
        names[out] = f"%{number}" if len(node.outputs) == 1 else f"%{number}.{index}"


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value).tolist()
    return round(value, 7) if isinstance(value, float) else value


def random_feeds(model: Model, *, size: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """Small random inputs: dynamic dims become `size`, integers stay below 3, floats are standard normal."""
    rng = np.random.default_rng(seed)
    feeds = {}
    graph = Graph.of(model)
    for name in graph.inputs:
        type_ = graph.type(name)
        if name in graph.initializers or type_ is None:
            continue
        shape = [dim if isinstance(dim, int) else size for dim in type_.shape or ()]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.dtype)
        feeds[name] = (
            rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 3, shape).astype(dtype)
        )
    return feeds


def assert_equal_outputs(
    before: Model, after: Model, *, inputs: Mapping[str, np.ndarray] | None = None, rtol: float = 1e-5
) -> None:
    """Assert that two models compute the same in onnxruntime, at two sizes of their dynamic dims."""
    for size in (3, 5):
        feeds = dict(inputs) if inputs is not None else random_feeds(before, size=size)
        expected, actual = run(before, feeds), run(after, feeds)
        for name, want in expected.items():
            got = actual[name]
            assert got.dtype == want.dtype, f"{name}: {got.dtype} instead of {want.dtype}"
            assert got.shape == want.shape, f"{name}: shape {got.shape} instead of {want.shape}"
            scale = max(float(np.abs(want[np.isfinite(want)]).max(initial=0)), 1e-6) if want.dtype.kind == "f" else 1
            np.testing.assert_allclose(got, want, rtol=0, atol=rtol * scale, err_msg=name)


def run(model: Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model in onnxruntime without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model.materialized().SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
