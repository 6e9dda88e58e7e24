"""Models of one operator, and what `lower-for-mnn` makes of them: for tests of its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import run
from tests.in_mnn import assert_right_in_mnn

Arrays = Mapping[str, npt.NDArray[Any]]


def one_node(
    op: str,
    inputs: Arrays,
    *,
    constants: Sequence[str] = (),
    outputs: Mapping[str, int] | None = None,
    opset: int = 17,
    dynamic: bool = False,
    **attrs: Any,
) -> tuple[Model, dict[str, npt.NDArray[Any]]]:
    """A model of one operator (`domain::Name` for another domain) and its feeds.

    `inputs` are arrays by name in order, "" omitting one; those in `constants` become initializers, the others graph
    inputs, with named dims when `dynamic`. `outputs` maps names to element types, "_" and so on leaving one out.
    """
    domain, _, op_type = op.rpartition("::")
    first = next(iter(inputs.values())).dtype
    made = {"y": helper.np_dtype_to_tensor_dtype(first)} if outputs is None else outputs
    names = [name if not name.startswith("_") else "" for name in made]
    node = helper.make_node(op_type, list(map(_name, inputs)), names, domain=domain, **attrs)
    feeds = {name: array for name, array in inputs.items() if _name(name) and name not in constants}
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}{i}" if dynamic else size for i, size in enumerate(array.shape)],
        )
        for name, array in feeds.items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in made.items() if name[0] != "_"]
    weights = [numpy_helper.from_array(inputs[name], name) for name in constants]
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    proto = helper.make_model(
        helper.make_graph([node], "g", infos, results, weights), opset_imports=imports, ir_version=8
    )
    return Model.from_proto(proto), feeds


def _name(name: str) -> str:
    return "" if name.startswith("_") else name


def lowered(model: Model) -> Graph:
    """The graph after `lower-for-mnn`; a second run must find nothing."""
    graph = Graph.of(model)
    LowerForMnn().run(graph)
    graph.check()
    again = LowerForMnn().run(graph)
    assert not again.modified, again.changes
    return graph


def refusals(model: Model) -> list[str]:
    """The reasons why `lower-for-mnn` leaves the operator."""
    graph = Graph.of(model)
    before = [node.op for node in graph.nodes]
    result = LowerForMnn().run(graph)
    assert [node.op for node in graph.nodes] == before
    return [refusal.reason for refusal in result.refusals]


def assert_same(
    model: Model, feeds: Arrays, *, expected: Arrays | None = None, rtol: float = 1e-5, left: Sequence[str] = ()
) -> Graph:
    """Assert that onnxruntime computes the same after lowering (or `expected`), and that the operator is gone."""
    graph = lowered(model)
    ops = {node.op for node in Graph.of(model).nodes} - set(left)
    assert not ops & {node.op for node in graph.nodes}, f"{ops} is still there"
    expected = run(model, feeds) if expected is None else expected
    actual = run(graph.to_model(), feeds)
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name}: {got.dtype} {got.shape}"
        scale = max(float(np.abs(want[np.isfinite(want)]).max(initial=0)), 1e-6) if want.dtype.kind == "f" else 1
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * scale, err_msg=name)
    return graph


def assert_right_everywhere(
    model: Model, feeds: Arrays, folder: Path, *, expected: Arrays | None = None, rtol: float = 1e-5
) -> None:
    """Assert that the lowered model is right in onnxruntime, and in MNN after the preset `mnn`."""
    assert_same(model, feeds, expected=expected, rtol=rtol)
    assert_right_in_mnn(model, folder, feeds=feeds, expected=expected)
