"""Differences of two .onnx files: each planted change is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import ModelError
from graphkit.mnn.diff import ABSENT, Change, Difference, diff
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import parse

TEXT = """g (float[2,4] x) => (float[2,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}, float[4] b = {1.0, 1.0, 1.0, 1.0}>
{ h = Mul(x, w) s = Add(h, b) r = LeakyRelu<alpha = 0.1>(s) y = Softmax<axis = 1>(r) }"""


def compare(tmp_path: Path, old: Any, new: Any) -> Difference:
    """The difference of two models, given as text or protobuf."""
    paths = []
    for name, given in (("old", old), ("new", new)):
        model = parse(given) if isinstance(given, str) else Model.from_proto(given)
        paths.append(tmp_path / f"{name}.onnx")
        model.save(paths[-1])
    return diff(*paths)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Callable[[onnx.ModelProto], Any]], Difference]:
    """`edited(edit)`: how the model of TEXT differs from itself after an edit of its protobuf."""

    def run(edit: Callable[[onnx.ModelProto], Any]) -> Difference:
        proto = parse(TEXT).materialized()
        for node in proto.graph.node:
            node.name = f"n_{node.output[0]}"
        new = onnx.ModelProto()
        new.CopyFrom(proto)
        edit(new)
        return compare(tmp_path, proto, new)

    return run


def only_fields(result: Difference) -> dict[str, tuple[Any, Any]]:
    """The fields of the only node that changed, when nothing else differs."""
    (changed,) = result.ops
    assert (changed.kind, changed.arrays, result.model, result.weights) == ("changed", (), (), ())
    return {change.field: (change.old, change.new) for change in changed.fields}


def test_a_model_equals_itself(edited: Any) -> None:
    result = edited(lambda proto: None)
    assert result.equal
    assert (result.same, result.notes) == (4, ())


def test_attributes(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.node[2].attribute[0].f = 0.2

    assert only_fields(edited(edit)) == {"alpha": (0.1, 0.2)}


def test_an_attribute_that_is_gone(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        del proto.graph.node[3].attribute[:]

    assert only_fields(edited(edit)) == {"axis": (1, ABSENT)}


def test_nan_equals_nan(tmp_path: Path) -> None:
    proto = parse(TEXT).materialized()
    proto.graph.node[2].attribute[0].f = float("nan")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full(4, np.nan, np.float32), "w"))
    assert compare(tmp_path, proto, proto).equal


def test_rewired(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.node[2].input[0] = "h"

    assert only_fields(edited(edit)) == {"inputs[0]": ("s", "h")}


def test_an_optional_input_that_is_new(tmp_path: Path) -> None:
    old = "g (float[4] x) => (float[4] y) <float lo = {0.0}, float hi = {6.0}> { y = Clip(x, lo) }"
    result = compare(tmp_path, old, old.replace("Clip(x, lo)", "Clip(x, lo, hi)"))
    assert only_fields(result) == {"inputs[2]": (ABSENT, "hi")}


def test_values_and_nodes_renamed_everywhere(tmp_path: Path) -> None:
    new = TEXT.replace("h = ", "h2 = ").replace("Add(h,", "Add(h2,").replace(" s = ", " s2 = ")
    new = new.replace("(s)", "(s2)").replace("float[4] w", "float[4] w2").replace("Mul(x, w)", "Mul(x, w2)")
    result = compare(tmp_path, TEXT, new)
    assert [(change.name, change.matched, change.fields) for change in result.ops] == [
        ("(h2)", "structure", (Change("outputs[0]", "h", "h2"),)),
        ("(s2)", "structure", (Change("outputs[0]", "s", "s2"),)),
    ]
    (weight,) = result.weights
    assert (weight.name, weight.old_name, weight.array, weight.used_by) == ("w2", "w", None, ("(h2)",))
    assert result.same == 2


def test_added_and_removed(tmp_path: Path) -> None:
    new = TEXT.replace("r = LeakyRelu<alpha = 0.1>(s)", "q = Relu(s) r = Neg(q)")
    result = compare(tmp_path, TEXT, new)
    kinds = [(change.kind, change.name, change.type, change.instead_of) for change in result.ops]
    assert kinds == [
        ("added", "(q)", "Relu", ""),
        ("added", "(r)", "Neg", "(r)"),
        ("removed", "(r)", "LeakyRelu", ""),
    ]
    assert result.same == 3


def test_another_type_under_the_same_name(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.node[1].op_type = "Sub"

    assert only_fields(edited(edit)) == {"type": ("Add", "Sub")}


def test_weights(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        changed = np.array([1, 2, 3, np.nan], np.float32)
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(changed, "w"))

    result = edited(edit)
    (weight,) = result.weights
    assert result.ops == ()
    array = weight.array
    assert array is not None
    assert (weight.name, weight.used_by) == ("w", ("n_h",))
    assert (array.changed, array.count, array.nans, array.relative, array.largest) == (1, 4, 1, 0.0, 0.0)
    assert array.old.values == (1.0, 2.0, 3.0, 4.0)


def test_weights_of_another_type(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([1, 2, 3, 5], np.float64), "w"))

    (weight,) = edited(edit).weights
    assert weight.array is not None
    assert (weight.array.old.dtype, weight.array.new.dtype, weight.array.changed) == ("float", "double", 1)
    assert weight.array.relative == pytest.approx(1 / np.sqrt(30))


def test_how_a_tensor_is_stored_does_not_count(tmp_path: Path) -> None:
    new = parse(TEXT).materialized()
    for tensor in new.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.FLOAT, values.shape, values, raw=False))
    assert compare(tmp_path, TEXT, new).equal


def test_weights_in_another_file_are_the_same_weights(tmp_path: Path) -> None:
    proto = parse(TEXT).materialized()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    big = numpy_helper.from_array(np.arange(4000, dtype=np.float32), "unused")
    proto.graph.initializer.append(big)
    Model.from_proto(proto).save(tmp_path / "a.onnx")
    Model.from_proto(proto).save(tmp_path / "b.onnx", external=True)
    result = diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (result.equal, result.notes) == (True, ("where weights are kept",))


def test_initializers_added_and_removed(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.int64), "more"))

    (weight,) = edited(edit).weights
    assert (weight.kind, weight.name, weight.facts.dtype, weight.facts.shape) == ("added", "more", "int64", (3,))


def test_facts_of_the_model(edited: Any) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.opset_import[0].version = 17
        proto.metadata_props.add(key="who", value="me")
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
        proto.graph.doc_string = "not counted"
        proto.graph.node[0].doc_string = "not counted"

    result = edited(edit)
    assert {change.field: (change.old, change.new) for change in result.model} == {
        "opset[ai.onnx]": (18, 17),
        "metadata[who]": (ABSENT, "me"),
        "inputs[x].shape": ((2, 4), ("batch", 4)),
    }
    assert result.ops == ()
    assert result.notes == ("texts for people (doc_string)", "texts and metadata of 1 operators")


def test_inputs_and_outputs_renamed_or_new(tmp_path: Path) -> None:
    new = (
        TEXT.replace("] x)", "] z)")
        .replace("Mul(x", "Mul(z")
        .replace("=> (float[2,4] y)", "=> (float[2,4] y, float[2,4] s)")
    )
    result = compare(tmp_path, TEXT, new)
    assert result.model == (
        Change("inputs[x].name", "x", "z"),
        Change("outputs[s]", ABSENT, "float [2,4]"),
    )
    assert result.ops == ()


def test_order_of_outputs_counts_and_order_of_nodes_does_not(tmp_path: Path) -> None:
    old = "g (float[2] x) => (float[2] a, float[2] b) { a = Neg(x) b = Abs(x) }"
    result = compare(tmp_path, old, old.replace("{ a = Neg(x) b = Abs(x) }", "{ b = Abs(x) a = Neg(x) }"))
    assert (result.equal, result.notes) == (True, ("the order of 1 operators",))
    result = compare(tmp_path, old, old.replace("float[2] a, float[2] b", "float[2] b, float[2] a"))
    assert [change.field for change in result.model] == ["outputs in order"]


def test_declared_shapes(edited: Any) -> None:
    def declare(proto: onnx.ModelProto, dims: list[int]) -> None:
        proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, dims))

    assert edited(lambda proto: declare(proto, [2, 4])).notes == ("shapes of 1 inner values that B alone declares",)


def test_shapes_that_both_declare(tmp_path: Path) -> None:
    protos = []
    for dims in ([2, 4], [3, 4]):
        protos.append(parse(TEXT).materialized())
        protos[-1].graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, dims))
    assert only_fields(compare(tmp_path, *protos)) == {"outputs[0] shape": ("float[2,4]", "float[3,4]")}


BRANCHES = """g (bool c, float[2] x) => (float[2] y) {
  y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Abs(x) }> }"""


def test_graphs_inside(tmp_path: Path) -> None:
    assert compare(tmp_path, BRANCHES, BRANCHES).equal
    (changed,) = compare(tmp_path, BRANCHES, BRANCHES.replace("Neg(x)", "Exp(x)")).ops[:1]
    assert (changed.kind, changed.graph, changed.type) == ("added", "(y)/then_branch", "Exp")


def test_graphs_inside_see_renamed_outer_values(tmp_path: Path) -> None:
    old = BRANCHES.replace("y = If(c)", "v = Sin(x) y = If(c)").replace("Neg(x)", "Neg(v)")
    result = compare(tmp_path, old, old.replace("v = Sin", "w = Sin").replace("Neg(v)", "Neg(w)"))
    assert [change.fields for change in result.ops] == [(Change("outputs[0]", "v", "w"),)]


def test_names_of_inner_outputs_are_nobodys_business(tmp_path: Path) -> None:
    renamed = BRANCHES.replace("float[2] a", "float[2] other").replace("a = Neg", "other = Neg")
    result = compare(tmp_path, BRANCHES, renamed)
    assert result.model == ()
    assert [(change.graph, change.fields) for change in result.ops] == [
        ("(y)/then_branch", (Change("outputs[0]", "a", "other"),))
    ]


def test_local_functions(tmp_path: Path) -> None:
    def model(op: str) -> onnx.ModelProto:
        text = f"""<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) {{ y = my.f(x) }}
        <domain: "my", opset_import: ["": 17]> f (a) => (b) {{ b = {op}(a) }}"""
        return onnx.parser.parse_model(text)

    assert compare(tmp_path, model("Neg"), model("Neg")).equal
    kinds = {(change.kind, change.graph, change.type) for change in compare(tmp_path, model("Neg"), model("Abs")).ops}
    assert kinds == {("added", "function my::f", "Abs"), ("removed", "function my::f", "Neg")}


def quantized(zero: int = 0, code: int = 3, scale: float = 0.5) -> onnx.ModelProto:
    text = f"""g (float[2,4] x) => (float[2,4] y) <int8[4,4] q = {{{", ".join(["1"] * 15 + [str(code)])}}},
    float[4] s = {{1.0, 1.0, 1.0, {scale}}}, int8[4] z = {{0, 0, 0, {zero}}}>
    {{ w = DequantizeLinear<axis = 1>(q, s, z) y = MatMul(x, w) }}"""
    return parse(text).materialized()


def test_quantized_weights_by_codes_and_by_what_they_stand_for(tmp_path: Path) -> None:
    (weight,) = compare(tmp_path, quantized(), quantized(code=5)).weights
    array = weight.array
    assert array is not None
    assert (weight.name, array.codes, array.changed, array.largest) == ("q", 1, 1, 1.0)
    assert array.relative == pytest.approx(1.0 / np.sqrt(12 + 3 * 0.25 + 2.25))
    assert array.old.quantization == "8-bit, per channel, symmetric, float scales"


def test_a_zero_point_that_makes_it_asymmetric(tmp_path: Path) -> None:
    q, z = sorted(compare(tmp_path, quantized(), quantized(zero=1)).weights, key=lambda weight: weight.name)
    assert (q.name, z.name) == ("q", "z")
    assert q.array is not None
    assert (q.array.codes, q.array.changed, q.array.largest) == (0, 4, 0.5)


def test_optimized_against_original_lists_fused_nodes(tmp_path: Path) -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] y)
    <float[2,3,1,1] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, float[2] a = {1.0, 2.0}, float[2] b = {1.0, 1.0},
     float[2] m = {0.5, 0.5}, float[2] v = {1.0, 4.0}>
    { c = Conv(x, w) n = BatchNormalization(c, a, b, m, v) y = Relu(n) }"""
    model = parse(text)
    model.save(tmp_path / "a.onnx")
    optimize(model, "fuse-conv-bn,cleanup").model.save(tmp_path / "b.onnx")
    result = diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    by_kind = {kind: sorted(op.type for op in result.ops if op.kind == kind) for kind in ("added", "removed")}
    assert "BatchNormalization" in by_kind["removed"]
    assert all("Relu" not in kinds for kinds in by_kind.values())
    assert {weight.name for weight in result.weights if weight.kind == "removed"} >= {"a", "b", "m", "v"}


@pytest.mark.parametrize("size", [20_000])
def test_large_graphs_are_matched_in_seconds(tmp_path: Path, size: int) -> None:
    import time

    def chain(prefix: str, names: bool) -> onnx.ModelProto:
        values = ["x", *(f"{prefix}{k}" for k in range(size - 1)), "y"]
        kinds = ("Relu", "Neg", "Abs")
        nodes = [
            helper.make_node(kinds[k % 3], [values[k]], [values[k + 1]], name=f"{prefix}n{k}" if names else "")
            for k in range(size)
        ]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    start = time.process_time()
    result = compare(tmp_path, chain("a", True), chain("b", False))
    assert {change.kind for change in result.ops} == {"changed"}
    assert len(result.ops) == size
    assert all(change.field.startswith("outputs") for op in result.ops for change in op.fields)
    assert time.process_time() - start < 20


@pytest.mark.parametrize("where", ["node", "value", "weight", "input", "producer", "metadata", "op_type"])
def test_names_that_are_no_utf8(tmp_path: Path, where: str) -> None:
    from graphkit.report.inspection import inspect

    proto = parse(TEXT.replace("x", "NAME") if where == "input" else TEXT).materialized()
    node = proto.graph.node[0]
    if where in ("node", "op_type"):
        setattr(node, "name" if where == "node" else where, "NAME")
    elif where == "value":
        node.output[0] = proto.graph.node[1].input[0] = "NAME"
    elif where == "weight":
        proto.graph.initializer[0].name = node.input[1] = "NAME"
    elif where == "producer":
        proto.producer_name = "NAME"
    elif where == "metadata":
        proto.metadata_props.add(key="NAME", value="NAME")
    (tmp_path / "a.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "b.onnx").write_bytes(proto.SerializeToString().replace(b"NAME", b"\xff\xfeME"))
    data = diff(tmp_path / "a.onnx", tmp_path / "b.onnx").to_dict()
    assert r"\xff\xfeME" in str(data).replace("\\\\", "\\")
    assert inspect(tmp_path / "b.onnx")["nodes"] == 4


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_bad_files(tmp_path: Path, content: bytes | None) -> None:
    parse(TEXT).save(tmp_path / "good.onnx")
    if content is not None:
        (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="bad"):
        diff(tmp_path / "good.onnx", tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match="bad"):
        diff(tmp_path / "bad.onnx", tmp_path / "good.onnx")
