"""What is suggested was tried: on the piece that shows the fault, and on the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from graphkit import shapes
from graphkit.compare import Tolerance
from graphkit.graph import Graph
from graphkit.mnn.document import read
from graphkit.mnn.document.summary import summarize
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.testing import parse
from graphkit.verification.bisect import suggest
from graphkit.verification.bisect._lab import Lab
from graphkit.verification.bisect.conclusions import Conclusion, Witness
from graphkit.verification.bisect.locate_faults import bisect_layers

SCATTER = (
    "g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> { y = ScatterND(x, i, u) }"
)
GELU = """
    g (float[2,8] x) => (float[2,8] y) <float r = {1.4142135}, float one = {1}, float half = {0.5}> {
        d = Div(x, r) e = Erf(d) f = Add(e, one) m = Mul(x, f) y = Mul(m, half)
    }
"""


def _witness(text: str, rtol: float = 1e-3, **feeds: np.ndarray) -> Witness:
    model = parse(text)
    rng = np.random.default_rng(0)
    graph = Graph.of(model)
    shapes.infer(graph)
    for name in graph.inputs:
        size = [dim if isinstance(dim, int) else 3 for dim in graph.shape(name) or ()]
        feeds.setdefault(name, rng.standard_normal(size).astype(np.float32))
    with Session(model) as session:
        return Witness(model, feeds, session.run(feeds), Tolerance(rtol))


def _fault(witness: Witness | None, kind: str = "operator") -> Conclusion:
    return Conclusion("n", "Op", "y", kind, ("n",), "wrong", witness=witness)  # type: ignore[arg-type]


def test_a_pass_that_lowers_the_node() -> None:
    found = suggest.alone(_fault(_witness(SCATTER)), Lab())
    assert found is not None
    assert (found.sort, found.passes) == ("passes", "lower-for-mnn")
    assert found.alone is not None
    assert found.alone < 1e-6


def test_a_flag_of_the_user_is_left_out() -> None:
    lab = Lab(ConverterOptions.of(useGeluApproximation=True))
    found = suggest.alone(_fault(_witness(GELU, rtol=1e-5), "fusion"), lab)
    assert found is not None
    assert (found.sort, found.options) == ("flag", {"useGeluApproximation": None})


def test_nothing_is_suggested_that_does_not_help() -> None:
    witness = _witness("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    lying = Witness(witness.model, witness.feeds, {"y": witness.expected["y"] + 1}, witness.tolerance)
    lab = Lab()
    assert suggest.alone(_fault(lying), lab) is None
    assert lab.made > 0


def test_without_a_witness_there_is_nothing_to_try_on() -> None:
    lab = Lab()
    assert suggest.alone(_fault(None), lab) is None
    assert lab.made == 0


def test_what_helps_one_is_tried_first_on_the_next() -> None:
    lab = Lab()
    first = suggest.alone(_fault(_witness(SCATTER)), lab)
    before = lab.made
    again = suggest.repeated(_fault(_witness(SCATTER)), [None, first], lab)
    assert again is not None
    assert again.passes == "lower-for-mnn"
    assert lab.made == before + 1


def test_zero_bits_keep_a_layer_float(tmp_path: Path) -> None:
    model = _convolutions()
    options = ConverterOptions.of(weightQuantBits=8)
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(suggest.layers_file(["a"], options)))
    made = tmp_path / "m.mnn"
    both = ConverterOptions.of(weightQuantBits=8, compressionParamsFile=str(path))
    assert Lab().convert(model, made, both) is None
    assert [layer.name for layer in summarize(read(made)).quantized] == ["b"]


def _convolutions() -> Model:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8, 1, 1)).astype(np.float32) for name in ("v", "w")}
    nodes = [("Conv", ["x", "v"], "a"), ("Tanh", ["a"], "r"), ("Conv", ["r", "w"], "b")]
    made = helper.make_graph(
        [helper.make_node(op, inputs, [output]) for op, inputs, output in nodes],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 8, 4, 4])],
        [helper.make_tensor_value_info("b", 1, [1, 8, 4, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return Model.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_the_whole_model_is_tried_with_the_suggestion() -> None:
    text = """
        g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> {
            a = Relu(x) [scatter] b = ScatterND(a, i, u) y = Neg(b)
        }
    """
    found = bisect_layers(parse(text)).faults[0].suggestion
    assert found is not None
    assert found.works
    assert found.before is not None
    assert found.error is not None
    assert found.error < 1e-6 < found.before
    assert json.dumps(found.to_dict())


@pytest.mark.parametrize("size", [4, 7])
def test_a_bound_size_leaves_other_samples_out(size: int) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    bound = suggest.Suggestion("bind", "--bind N=4", bind={"N": 4})
    assert suggest.fits(model, {"x": np.zeros(size, np.float32)}, [bound]) is (size == 4)
