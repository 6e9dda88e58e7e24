"""Fusions on what PyTorch's exporters really write: one operator, or the spelling that MNN fuses into one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fixtures import exports
from graphkit import shapes
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.canonicalize import Canonicalize
from graphkit.passes.cleanup import Cleanup
from graphkit.passes.fold_constants import FoldConstants
from graphkit.passes.fuse_gelu import FuseGelu
from graphkit.passes.fuse_layernorm import FuseLayernorm
from graphkit.passes.fuse_rmsnorm import FuseRmsnorm
from graphkit.passes.inline_functions import InlineFunctions
from graphkit.testing import assert_equal_outputs

pytestmark = pytest.mark.torch

GELU = {"Gelu": 1}
ERF = {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2}
TANH = {"Pow": 1, "Mul": 4, "Add": 2, "Tanh": 1}
NORM = {"LayerNormalization": 1}
ROOT = {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1}
WANTED: Mapping[tuple[str, str, int], Mapping[str, int]] = {
    ("gelu_none", "ts", 17): ERF,
    ("gelu_none", "dyn", 18): ERF,
    ("gelu_tanh", "ts", 17): {"Mul": 6, "Add": 2, "Tanh": 1},
    ("gelu_tanh", "dyn", 18): TANH,
    ("gelu_new", "ts", 17): TANH,
    ("gelu_new", "ts", 20): GELU,
    ("gelu_new", "dyn", 23): GELU,
    ("gelu_quick", "dyn", 23): {"Mul": 2, "Sigmoid": 1},
    ("layernorm", "ts", 13): {"ReduceMean": 2, "Sub": 1, "Pow": 1, "Add": 2, "Sqrt": 1, "Div": 1, "Mul": 1},
    ("layernorm_handmade", "ts", 17): NORM,
    ("layernorm_handmade", "dyn", 18): NORM,
    ("layernorm_handmade", "dyn", 23): NORM,
    ("layernorm_gelu", "ts", 20): NORM | GELU,
    ("layernorm_gelu", "dyn", 18): NORM | ERF,
    ("rmsnorm_hf", "ts", 17): ROOT | {"Mul": 1},
    ("rmsnorm_hf", "dyn", 18): ROOT | {"Mul": 1},
    ("rmsnorm_hf", "dyn", 23): {"RMSNormalization": 1},
    ("rmsnorm_torch", "dyn", 18): ROOT | {"Mul": 1},
    ("rmsnorm_no_affine", "dyn", 18): ROOT,
}
PREPARE = (InlineFunctions(), Canonicalize(), Cleanup(), FoldConstants(), Cleanup())
FUSE = (FuseLayernorm(), FuseRmsnorm(), FuseGelu())


@pytest.mark.parametrize(("kind", "exporter", "opset"), WANTED)
def test_export(kind: str, exporter: str, opset: int) -> None:
    model = Model.from_proto(exports.spelling(kind, exporter, opset))
    graph = Graph.of(model)
    for pass_ in (*PREPARE, *FUSE):
        shapes.infer(graph)
        pass_.run(graph)
    graph.check()
    assert graph.op_counts() == WANTED[kind, exporter, opset]
    assert_equal_outputs(model, graph.to_model())
    shapes.infer(graph)
    assert not any(pass_.run(graph).modified for pass_ in FUSE), "the passes do not come to rest"
