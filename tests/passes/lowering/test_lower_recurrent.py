"""RNN, LSTM and GRU in every variant: equal to onnxruntime before and after, and in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_unchanged, run
from tests.in_mnn import assert_right_in_mnn

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
HIDDEN, INPUT, BATCH = 5, 4, 2
ALL = {"RNN": "Y,Y_h", "GRU": "Y,Y_h", "LSTM": "Y,Y_h,Y_c"}


def recurrent(
    op: str,
    wanted: str = "",
    *,
    steps: int | str = 3,
    direction: str = "forward",
    bias: bool = True,
    initial: bool = False,
    computed: bool = False,
    lengths: list[int] | None = None,
    peepholes: float | None = None,
    opset: int = 14,
    padded: bool = False,
    dtype: type = np.float32,
    **attrs: Any,
) -> Model:
    """One recurrent node; `computed` weights are inputs, `peepholes` is what they are multiplied by,
    `padded` writes omitted inputs at the end."""
    rng = np.random.default_rng(0)
    directions, rows = 1 + (direction == "bidirectional"), GATES[op] * HIDDEN
    shapes = {"W": (directions, rows, INPUT), "R": (directions, rows, HIDDEN), "B": (directions, 2 * rows)}
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    if not bias:
        del arrays["B"]
    if lengths is not None:
        arrays["lengths"] = np.array(lengths, np.int32)
    if peepholes is not None:
        arrays["P"] = (rng.standard_normal((directions, 3 * HIDDEN)) * peepholes).astype(dtype)
    batch_first = attrs.get("layout", 0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    state = [BATCH, directions, HIDDEN] if batch_first else [directions, BATCH, HIDDEN]
    x = [BATCH, steps, INPUT] if batch_first else [steps, BATCH, INPUT]
    infos = [helper.make_tensor_value_info("X", kind, x)]
    states = (["h", "c"] if op == "LSTM" else ["h"]) if initial else []
    infos += [helper.make_tensor_value_info(name, kind, state) for name in states]
    if computed:
        infos += [helper.make_tensor_value_info(n, kind, a.shape) for n, a in arrays.items() if n in "WRBP"]
        arrays = {name: array for name, array in arrays.items() if name not in "WRBP"}
    known = {info.name for info in infos} | set(arrays)
    names = ["X", "W", "R", "B", "lengths", "h", *(["c", "P"] if op == "LSTM" else [])]
    inputs = [name if name in known else "" for name in names]
    while not padded and not inputs[-1]:
        inputs.pop()
    outputs = [name if name in (wanted or ALL[op]).split(",") else "" for name in ALL[op].split(",")]
    node = helper.make_node(op, inputs, outputs, hidden_size=HIDDEN, direction=direction, **attrs)
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs if name]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", infos, results, weights)
    imports = [helper.make_opsetid("", opset)]
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def lowered(model: Model) -> Model:
    return optimize(model, "lower-for-mnn", verify="none").model


def ops(model: Model) -> list[str]:
    return [node.op for node in Graph.of(model).nodes]


DIRECTIONS = ("forward", "reverse", "bidirectional")
VARIANTS: list[dict[str, Any]] = [
    {"clip": 0.3},
    {"lengths": [3, 2]},
    {"lengths": [3, 3]},
    {"initial": True, "bias": False},
    {"initial": True, "computed": True, "clip": 1.0},
    {"steps": 12, "lengths": [12, 5]},
    {"steps": 1},
    {"opset": 7},
    {"opset": 22},
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variant_keeps_its_numbers(op: str, direction: str, variant: dict[str, Any]) -> None:
    if variant.get("steps") == 12 and op == "RNN":
        variant = {**variant, "activations": ["Relu"] * (2 if direction == "bidirectional" else 1)}
    model = recurrent(op, direction=direction, **variant)
    assert_equal_outputs(model, lowered(model))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("op", "extra"),
    [
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("LSTM", {"peepholes": 1.0}),
        ("LSTM", {"peepholes": 1.0, "clip": 0.5}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"initial": True}),
        ("RNN", {"clip": 2.0}),
    ],
)
def test_a_loop_for_an_unknown_number_of_steps(op: str, extra: dict[str, Any], direction: str) -> None:
    model = recurrent(op, steps="steps", direction=direction, **extra)
    assert_equal_outputs(model, lowered(model))
    spelled = op != "LSTM" or direction != "bidirectional" or "initial" not in extra
    assert ("Loop" in ops(lowered(model))) == spelled


ACTIVATIONS = [
    ("RNN", ["Relu"], {}),
    ("RNN", ["Affine"], {"activation_alpha": [0.5], "activation_beta": [0.25]}),
    ("RNN", ["Softplus"], {}),
    ("GRU", ["HardSigmoid", "Softsign"], {}),
    ("GRU", ["Sigmoid", "LeakyRelu"], {"activation_alpha": [0.3]}),
    ("LSTM", ["Sigmoid", "Elu", "ThresholdedRelu"], {"activation_alpha": [0.5, 0.25]}),
    ("LSTM", ["Sigmoid", "Tanh", "ScaledTanh"], {"activation_alpha": [0.5], "activation_beta": [0.25]}),
    ("LSTM", ["Sigmoid", "Relu", "Tanh"], {}),
]


@pytest.mark.parametrize(("op", "names", "parameters"), ACTIVATIONS)
def test_other_activations(op: str, names: list[str], parameters: dict[str, list[float]]) -> None:
    model = recurrent(op, activations=names, **parameters)
    assert_equal_outputs(model, lowered(model))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batch_first(op: str, direction: str) -> None:
    model = recurrent(op, direction=direction, layout=1, initial=True)
    plain = recurrent(op, direction=direction, initial=True)
    rng = np.random.default_rng(1)
    feeds = {
        name: rng.standard_normal([d if isinstance(d, int) else 3 for d in Graph.of(plain).shape(name) or ()])
        for name in Graph.of(plain).inputs
    }
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    expected = run(plain, feeds)
    turned = {name: array.transpose(1, 0, 2) for name, array in feeds.items()}
    actual = run(lowered(model), turned)
    for name, want in expected.items():
        perm = (2, 0, 1, 3) if name == "Y" else (1, 0, 2)
        np.testing.assert_allclose(actual[name], want.transpose(perm), atol=1e-5)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [("RNN", "Y_h"), ("GRU", "Y_h"), ("LSTM", "Y"), ("LSTM", "Y_h"), ("LSTM", "Y_c"), ("LSTM", "Y,Y_c")],
)
def test_all_outputs_are_declared(op: str, wanted: str) -> None:
    """Without them MNN returns Y in place of Y_h, or its converter crashes."""
    model = recurrent(op, wanted, linear_before_reset=1) if op == "GRU" else recurrent(op, wanted)
    made = Graph.of(lowered(model))
    assert [len([out for out in node.outputs if out]) for node in made.nodes] == [2 if op != "LSTM" else 3]
    assert_equal_outputs(model, made.to_model())


@pytest.mark.parametrize(
    "form",
    [
        {"op": "RNN"},
        {"op": "RNN", "steps": "steps", "direction": "bidirectional", "computed": True},
        {"op": "LSTM", "initial": True, "direction": "bidirectional"},
        {"op": "LSTM", "steps": "steps"},
        {"op": "GRU", "linear_before_reset": 1},
    ],
    ids=str,
)
def test_what_mnn_runs_right_stays(form: dict[str, Any]) -> None:
    """Its own operators are faster, and carry the weights that are quantized."""
    model = recurrent(form.pop("op"), **form)
    assert ops(lowered(model)) == ops(model)


def test_omitted_inputs_at_the_end_go() -> None:
    """MNN counts them, and takes eight inputs for peepholes."""
    made = Graph.of(lowered(recurrent("LSTM", steps="steps", padded=True)))
    assert [len(node.inputs) for node in made.nodes] == [4]


def test_one_step_is_seen_behind_an_unsqueeze() -> None:
    model = recurrent("LSTM", steps="steps", initial=True).materialized()
    row = helper.make_node("Unsqueeze", ["row", "zero"], ["X"])
    model.graph.node.insert(0, row)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("row", TensorProto.FLOAT, None))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    assert "LSTM" in ops(lowered(Model.from_proto(model)))


def test_one_step_with_c_but_not_h(tmp_path: Path) -> None:
    model = recurrent("LSTM", steps=1, initial=True).materialized()
    model.graph.node[0].input[5] = ""
    del model.graph.input[1]
    assert_right_in_mnn(Model.from_proto(model), tmp_path)


def test_zero_peepholes_go_and_the_operator_stays() -> None:
    model = recurrent("LSTM", peepholes=0.0)
    made = lowered(model)
    assert ops(made) == ["LSTM"]
    assert_equal_outputs(model, made)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"activations": ["Swish"]}, "has no activation"),
        ({"activations": ["Affine"]}, "needs alpha and beta"),
        ({"activations": ["Tanh", "Tanh"]}, "2 activations for 1 directions"),
        ({"steps": "steps", "direction": "reverse", "opset": 9}, "from opset 10"),
        ({"lengths": [2, 1], "opset": 8}, "from opset 9"),
    ],
)
def test_refusals(form: dict[str, Any], reason: str) -> None:
    text = onnx.printer.to_text(recurrent("RNN", **form).materialized())
    assert_unchanged(LowerForMnn(), text, refuses=reason)


def test_lstm_clip_is_onnxruntimes() -> None:
    """The clip bounds the sums of the gates, not what goes into the last activation."""
    model = recurrent("LSTM", clip=0.2, steps=6, peepholes=1.0)
    assert_equal_outputs(model, lowered(model), rtol=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        {"op": "GRU"},
        {"op": "GRU", "steps": "steps", "direction": "bidirectional"},
        {"op": "GRU", "wanted": "Y_h", "direction": "reverse", "linear_before_reset": 1},
        {"op": "LSTM", "wanted": "Y"},
        {"op": "LSTM", "steps": "steps", "initial": True},
        {"op": "LSTM", "direction": "reverse", "peepholes": 1.0},
        {"op": "LSTM", "steps": 12, "lengths": [12, 4]},
        {"op": "RNN", "wanted": "Y_h", "direction": "reverse"},
        {"op": "RNN", "wanted": "Y", "direction": "reverse", "steps": "steps"},
    ],
    ids=str,
)
def test_right_in_mnn(form: dict[str, Any], tmp_path: Path) -> None:
    assert_right_in_mnn(recurrent(form.pop("op"), **form), tmp_path)


def test_the_node_in_a_subgraph_is_lowered(tmp_path: Path) -> None:
    inner = recurrent("GRU", "Y_h").materialized()
    branches = []
    for name in ("yes", "no"):
        node = inner.graph.node[0]
        branch = onnx.NodeProto.FromString(node.SerializeToString())
        branch.output[1] = f"Y_h_{name}"
        branch.input[0] = "X" if name == "yes" else "X2"
        info = helper.make_tensor_value_info(f"Y_h_{name}", TensorProto.FLOAT, None)
        branches.append(helper.make_graph([branch], name, [], [info]))
    choice = helper.make_node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1])
    twice = helper.make_node("Add", ["X", "X"], ["X2"])
    infos = [*inner.graph.input, helper.make_tensor_value_info("which", TensorProto.BOOL, [])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([twice, choice], "g", infos, [y], inner.graph.initializer)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((3, BATCH, INPUT)).astype(np.float32)
    for which in (True, False):
        assert_right_in_mnn(Model.from_proto(proto), tmp_path, feeds={"X": x, "which": np.array(which)})


def test_full_lengths_agree_with_the_reference() -> None:
    model = recurrent("RNN", lengths=[3, 3])
    x = np.random.default_rng(0).standard_normal((3, BATCH, INPUT)).astype(np.float32)
    want = ReferenceEvaluator(recurrent("RNN").materialized()).run(["Y"], {"X": x})[0]
    np.testing.assert_allclose(run(lowered(model), {"X": x})["Y"], want, atol=1e-5)
