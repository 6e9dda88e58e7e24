"""Files that were given: what a fresh conversion, with our passes or without, tells of what was changed in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from planted import Plant, constant_scaled, converted, op_named, planted, unary

from graphkit import shapes
from graphkit.compare import Tolerance
from graphkit.errors import MnnError
from graphkit.graph import Graph
from graphkit.mnn.document import Document
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.proof import Evidence
from graphkit.testing import parse
from graphkit.verification.bisect import _failing
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect._lab import Lab
from graphkit.verification.bisect.answer import BisectResult
from graphkit.verification.bisect.folder import Request, layer_repro
from graphkit.verification.bisect.locate_faults import bisect_layers

BRANCHES = """g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y, float[1,4,2] m) <int64[2,2] i = {0, 1, 2, 3}> {
    a = Relu(x) s = ScatterND(a, i, u) t = Softplus(s) y = Neg(t) c = Concat<axis=0>(x, a)
    m = ReduceMean<axes=[0], keepdims=1>(c) }"""


def bisected(text: str, folder: Path, *plants: Plant) -> BisectResult:
    """A model in text against its conversion by `convert`, with faults planted."""
    model = parse(text, opset=17)
    made = folder / "good.mnn"
    convert(model, made)
    return bisect_layers(model, planted(made, folder / "bad.mnn", *plants), suggestions=False)


def summed(document: Document) -> None:
    """The mean is a sum."""
    main = op_named(document, "m")["main"]
    main.fields["operation"] = document.schema.enums["ReductionType"].numbers["SUM"]


def test_operators_that_passes_changed_are_not_blamed(tmp_path: Path) -> None:
    result = bisected(BRANCHES, tmp_path, summed)
    assert [(fault.node, fault.op, fault.kind) for fault in result.faults] == [("m", "ReduceMean", "file")]
    assert "main.operation is SUM where MEAN was converted" in result.faults[0].found.reason


def test_a_part_that_passes_made_of_a_node_is_told(tmp_path: Path) -> None:
    result = bisected(BRANCHES, tmp_path, unary("t/Softplus_out", "ABS"))
    assert [(fault.node, fault.kind) for fault in result.faults] == [("t", "file")]
    assert "'t/Softplus_out' (UnaryOp): main.opType is ABS where LOG was converted" in result.faults[0].found.reason


def test_a_change_without_effect_is_not_named_beside_one_that_has_some(tmp_path: Path) -> None:
    def idle(document: Document) -> None:
        op_named(document, "c").fields["defaultDimentionFormat"] = 1

    result = bisected(BRANCHES, tmp_path, summed, idle)
    assert [fault.node for fault in result.faults] == ["m"]


def test_a_changed_constant_that_two_nodes_read_is_one_fault(tmp_path: Path) -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) <float[3] k = {1, 2, 4}>
        { a = Relu(x) y = Mul(a, k) b = Abs(x) c = Add(b, k) z = Sqrt(c) }"""
    result = bisected(text, tmp_path, constant_scaled("k", 1.5))
    assert [(fault.node, fault.kind) for fault in result.faults] == [("y", "file")]
    assert set(result.faults[0].tensors) == {"y", "c"}


def test_the_nearer_conversion_is_held_against_a_plain_file_too(tmp_path: Path) -> None:

    model, made = converted(parse(BRANCHES.replace("s = ScatterND(a, i, u)", "s = Abs(a)"), opset=17), tmp_path)
    result = bisect_layers(model, planted(made, tmp_path / "bad.mnn", summed), suggestions=False)
    assert [fault.node for fault in result.faults] == ["m"]
    assert np.isfinite(result.worst)


CHAIN = """g (float[2,8,12] x) => (float[2,8,12] y) {
    a = Relu(x) b = Neg(a) c = Tanh(b) d = Abs(c) e = Sigmoid(d) y = Softmax<axis=-1>(e) }"""


def unknown(document: Document) -> None:
    """An operation that MNN does not have."""
    op_named(document, "c")["main"].fields["opType"] = 99


def test_a_file_that_mnn_cannot_run_is_held_against_a_fresh_one(tmp_path: Path) -> None:
    result = bisected(CHAIN, tmp_path, unknown)
    assert [(fault.node, fault.op, fault.kind) for fault in result.faults] == [("c", "Tanh", "file")]
    assert "main.opType is ?99 where TANH was converted" in result.faults[0].found.reason


def test_the_folder_of_a_file_that_mnn_cannot_run_promises_the_right_exit_code(tmp_path: Path) -> None:
    result = bisected(CHAIN, tmp_path, unknown)
    model = parse(CHAIN, opset=17)
    written = layer_repro(result, Request(tmp_path / "out"), whole=lambda: (model, Evidence.gather(model)))
    assert written.repro is not None
    assert written.repro.reproduced
    assert "exit code 3" in (tmp_path / "out" / "README.md").read_text()


def test_nothing_is_blamed_for_a_failure_that_does_not_come_again(tmp_path: Path) -> None:
    model = parse(CHAIN, opset=17)
    graph = Graph.of(model)
    shapes.infer(graph)
    case = Case(model, graph, Evidence.gather(model), Lab(), Tolerance(), 1 << 30, lambda step: None)
    result = _failing.runtime(case, MnnError("MNN crashed"))
    assert (result.faults, result.wrong, result.ok) == ((), "MNN crashed", False)
    assert "does not fail" in result.note


def test_a_budget_that_is_used_up_is_no_refusal() -> None:
    model = parse("""g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}>
        { a = Relu(x) s = ScatterND(a, i, u) y = Neg(s) }""")
    result = bisect_layers(model, seconds=1e-3, suggestions=False)
    assert [(fault.node, fault.kind, fault.found.alone) for fault in result.faults] == [
        ("s", "unexplained", "not tried")
    ]
    assert "used up" in result.note


def test_a_search_without_budget_blames_no_node() -> None:
    model = parse(CHAIN, opset=17)
    graph = Graph.of(model)
    shapes.infer(graph)
    lab = Lab(seconds=0.0)
    case = Case(model, graph, Evidence.gather(model), lab, Tolerance(), 1 << 30, lambda step: None)
    result = _failing.runtime(case, MnnError("MNN crashed"))
    assert result.faults == ()
    assert result.answer == "no layer was named: MNN crashed"
    converter = _failing.converter(case, MnnError("MNN crashed"))
    assert converter.faults == ()


def test_a_change_inside_a_loop_is_named(tmp_path: Path) -> None:
    text = """g (float[2,3,4,4] x, float[3,3,1,1] w) => (float[2,3,4,4] y) <int64 n = {3}, bool go = {1}> {
        a = Conv(x, w) l = Loop(n, go, a) <body = b (int64 i, bool c, float[2,3,4,4] s) => (bool d, float[2,3,4,4] t)
        { d = Identity(c) k = Tanh(s) [turn] t = Sub(k, s) }> y = Relu(l) }"""

    def added(document: Document) -> None:
        main = op_named(document, "t")["main"]
        main.fields["opType"] = document.schema.enums["BinaryOpOperation"].numbers["ADD"]

    result = bisected(text, tmp_path, added)
    assert [(fault.node, fault.op, fault.kind) for fault in result.faults] == [("turn", "Sub", "file")]
    assert "main.opType is ADD where SUB was converted" in result.faults[0].found.reason


def test_the_branch_of_an_if_is_blamed_and_not_what_reads_it(tmp_path: Path) -> None:
    text = """g (bool c, float[2,3,4] x) => (float[2,4,3] y) { f = If (c) <then_branch = t () => (float[2,3,4] a)
        { [inner] k = Sigmoid(x) a = Abs(k) }, else_branch = e () => (float[2,3,4] b) { b = Tanh(x) }>
        y = Transpose<perm=[0,2,1]>(f) }"""
    model = parse(text, opset=17)
    convert(model, tmp_path / "good.mnn")
    bad = planted(tmp_path / "good.mnn", tmp_path / "bad.mnn", unary("k", "COS"))
    feeds = {"c": np.array(True), "x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    result = bisect_layers(model, bad, inputs=[feeds], suggestions=False)
    assert [fault.node for fault in result.faults] == ["inner"]


QUANTIZED = """g (float[2,16] x) => (float[2,16] y, float[1,16] m) <float[16,16] w> {
    h = MatMul(x, w) a = Tanh(h) y = Sigmoid(a) c = Concat<axis=0>(a, a) m = ReduceMean<axes=[0], keepdims=1>(c) }"""


def quantized(folder: Path, *plants: Plant) -> BisectResult:
    """A model with 8 bits: a tolerance under what the codes cost, so that outputs are wrong by themselves."""
    rng = np.random.default_rng(0)
    text = QUANTIZED.replace("float[2,16] x)", "float[2,16] x, float[16,16] w)").replace(" <float[16,16] w>", "")
    proto = parse(text, opset=17).proto
    proto.graph.input.pop()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal((16, 16), np.float32) / 4, "w"))
    model = Model.from_proto(proto)
    options = ConverterOptions.of(weightQuantBits=8)
    convert(model, folder / "good.mnn", options=options, tolerance=Tolerance(0.5))
    return bisect_layers(model, planted(folder / "good.mnn", folder / "bad.mnn", *plants), suggestions=False)


def test_what_codes_cost_is_no_fault(tmp_path: Path) -> None:
    result = quantized(tmp_path)
    assert result.ok, result.lines()
    assert "quantization alone" in result.note


def test_codes_do_not_excuse_what_no_row_shows(tmp_path: Path) -> None:
    result = quantized(tmp_path, summed)
    assert [(fault.node, fault.kind) for fault in result.faults] == [("m", "file")]


def test_a_hidden_fault_beside_one_that_a_row_shows(tmp_path: Path) -> None:
    result = bisected(BRANCHES, tmp_path, summed, unary("y", "ABS"))
    assert [fault.node for fault in result.faults] == ["y", "m"]


def test_an_answer_without_layers_says_so() -> None:
    assert BisectResult().answer == "no mismatch: the outputs agree; no value on the way could be compared"


def test_what_codes_cost_on_the_way_to_a_row_is_allowed_there(tmp_path: Path) -> None:
    """A mean of a quantized convolution that MNN holds by channels is judged from in front of the convolution."""
    rng = np.random.default_rng(0)
    proto = parse(
        """g (float[1,8,6,6] x, float[8,8,3,3] w) => (float[1,8,6,6] y, float[1,6,1] z) {
        a = Relu(x) c = Conv<pads=[1,1,1,1]>(a, w) y = Neg(c) r = ReduceMean<axes=[1], keepdims=0>(c)
        t = ReduceMean<axes=[2], keepdims=1>(r) z = Abs(t) }""",
        opset=17,
    ).proto
    proto.graph.input.pop()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3), np.float32), "w"))
    model, made = converted(Model.from_proto(proto), tmp_path, weightQuantBits=8)
    result = bisect_layers(model, planted(made, tmp_path / "bad.mnn", unary("z", "NEG")), suggestions=False)
    assert [fault.node for fault in result.faults] == ["z"]


def test_a_right_output_is_not_taken_for_all(tmp_path: Path) -> None:
    """The row's fault put right leaves an output wrong that no session shows."""
    result = bisected(BRANCHES, tmp_path, summed, unary("t/Softplus_out", "ABS"))
    assert {fault.node for fault in result.faults} == {"t", "m"}


def test_two_changes_of_one_node_are_one_fault_that_tells_both(tmp_path: Path) -> None:
    result = bisected(
        CHAIN.replace("c = Tanh(b)", "c = Softplus(b)"),
        tmp_path,
        *(unknown_part(name) for name in ("c/Softplus_out", "c/Min_out")),
    )
    assert [fault.node for fault in result.faults] == ["c"]
    assert all(name in result.faults[0].found.reason for name in ("c/Softplus_out", "c/Min_out"))


def unknown_part(name: str) -> Plant:
    """An operation that MNN does not have."""

    def plant(document: Document) -> None:
        op_named(document, name)["main"].fields["opType"] = 99

    return plant
