"""Attributes that permit less accuracy do not make a reference less exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from graphkit import _permissions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.proof import Evidence
from graphkit.testing import run
from graphkit.verification.outputs import verify
from tests.quantized_models import MS, model


def product(level: int | None) -> Model:
    """A product with weights of 4 bits, as onnxruntime's tools write it."""
    rng = np.random.default_rng(1)
    attrs = {} if level is None else {"accuracy_level": level}
    node = helper.make_node(
        "MatMulNBits", ["x", "c", "s"], ["y"], name="nb", domain=MS, K=64, N=32, bits=4, block_size=32, **attrs
    )
    constants = {
        "c": rng.integers(0, 256, (32, 2, 16)).astype(np.uint8),
        "s": (rng.random((32, 2)) * 0.02 + 0.01).astype(np.float32),
    }
    return model([node], {"x": (TensorProto.FLOAT, [4, 64])}, {"y": TensorProto.FLOAT}, constants, opset=21)


def test_the_reference_computes_what_the_operator_means() -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    want = run(product(None), feeds)["y"]
    np.testing.assert_array_equal(Evidence.gather(product(4), inputs=[feeds]).samples[0].expected["y"], want)


def test_the_note_says_so_and_the_model_stays() -> None:
    source = product(4)
    before = source.proto.SerializeToString()
    assert "accuracy_level permits less (1 node)" in Evidence.gather(source).note
    assert source.proto.SerializeToString() == before
    assert not Evidence.gather(product(0)).note
    assert _permissions.exact(product(0)) is not None


def test_models_without_permissions_are_not_copied() -> None:
    source = product(None)
    assert _permissions.exact(source) is source


def test_permissions_in_bodies_are_found() -> None:
    inner = product(4).proto.graph
    body = helper.make_graph([inner.node[0]], "b", [], [helper.make_tensor_value_info("y", 1, [4, 32])])
    node = helper.make_node("If", ["t"], ["z"], then_branch=body, else_branch=body)
    held = product(None)
    del held.proto.graph.node[:]
    held.proto.graph.node.append(node)
    exact = _permissions.exact(held)
    names = [a.name for branch in exact.proto.graph.node[0].attribute for a in branch.g.node[0].attribute]
    assert "accuracy_level" not in names
    assert "K" in names


def test_every_road_takes_the_exact_reference(tmp_path: Path) -> None:
    source = product(4)
    assert optimize(source, "mnn").proof.kind == "equal"
    result = convert(source, tmp_path / "m.mnn")
    assert result.proof.kind == "equal"
    assert [layer.bits for layer in result.carriage.layers] == [4]
    assert verify(source, tmp_path / "m.mnn").ok
