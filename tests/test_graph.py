"""The graph: what it knows about values and nodes, and what each change does."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from graphkit import shapes
from graphkit.errors import GraphkitError, ModelError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import TensorType, make_info, type_of_info
from graphkit.testing import graph_of, parse, run

BRANCHES = """g (float[2] x, bool c) => (float[2] y) {
    a = Relu(x)
    b = Neg(a)
    y = If (c) <then_branch = t () => (float[2] p) { s = Abs(a) p = Add(s, a) },
                else_branch = e () => (float[2] q) { q = Mul(b, w) }>
}"""


def branches() -> Graph:
    """A graph with an If whose branches capture `a` (twice), `b` and the weight `w`."""
    proto = parse(BRANCHES).materialized()
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    return Graph.of(Model.from_proto(proto))


def refused(text: str, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        Graph.of(parse(text))


# -- reading ----------------------------------------------------------------------------------------------


def test_lookups() -> None:
    graph = branches()
    holder = graph.by_op("If")[0]
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "If"]
    assert (graph.inputs, graph.outputs, len(graph)) == (["x", "c"], ["y"], 3)
    assert graph.producer("b") is graph.by_op("Neg", "ai.onnx")[0]
    assert graph.producer("x") is None
    assert graph.consumers("a") == [graph.producer("b"), holder]
    assert (graph.use_count("a"), graph.use_count("y"), graph.use_count("none")) == (3, 1, 0)
    assert graph.consumers("w") == [holder]
    assert graph.sole_consumer("b") is holder
    assert graph.sole_consumer("a") is None
    assert graph.sole_consumer("y") is None
    assert graph.values_used_by(holder) == {"a", "b", "c", "w"}
    assert graph.op_counts() == {"Relu": 1, "Neg": 1, "If": 1}
    assert [g.name for g in graph.walk()] == ["g", "t", "e"]
    inner = holder.subgraphs["else_branch"]
    assert (inner.parent, inner.owner, inner.root) == (graph, holder, graph)
    assert inner.captures() == {"b": 1, "w": 1}
    assert (graph.opset(), graph.opset("local"), inner.opset()) == (18, 0, 18)


def test_constants_are_seen_from_inside() -> None:
    graph = branches()
    inner = graph.by_op("If")[0].subgraphs["else_branch"]
    for one in (graph, inner):
        assert one.is_constant("w")
        assert one.weight("w") is not None
        assert one.constant("w").tolist() == [2, 3]  # type: ignore[union-attr]
        assert one.type("w") == TensorType(TensorProto.FLOAT, (2,))
    assert not inner.is_constant("b")
    assert inner.constant("b") is None
    assert inner.type("b") is None


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("value = float[1] {2}", 2.0),
        ("value_float = 2.0", 2.0),
        ("value_int = 2", 2.0),
        ("value_floats = [2.0]", 2.0),
        ("value_ints = [2, 3]", None),
        ('value_string = "2"', None),
    ],
)
def test_every_form_of_constant_node(attribute: str, value: float | None) -> None:
    graph = graph_of(f"g (float[2] x) => (float[2] y) {{ k = Constant <{attribute}> () y = Relu(x) }}")
    assert graph.is_constant("k")
    assert graph.constant("k") is not None
    assert graph.scalar("k") == value
    assert graph.weight("k") is None


def test_a_weight_that_an_input_can_override_is_not_constant() -> None:
    proto = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }").materialized()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    graph = Graph.of(Model.from_proto(proto))
    assert not graph.is_constant("w")
    assert graph.constant("w") is None
    graph.remove_input("w")
    assert graph.is_constant("w")
    assert graph.inputs == ["x"]


def test_types() -> None:
    graph = graph_of("g (float[N,2] x) => (float[N,2] y) { a = Shape(x) b = Relu(x) y = Relu(b) }")
    assert graph.type("x") == TensorType(TensorProto.FLOAT, ("N", 2))
    assert (graph.shape("b"), graph.rank("b"), graph.dtype("b")) == (("N", 2), 2, 1)
    assert (graph.shape("?"), graph.rank("?"), graph.dtype("?")) == (None, None, 0)
    assert graph.type("a") == TensorType(TensorProto.INT64, (2,))
    graph.set_input_type("x", TensorType(1, (4, 2)))
    assert (graph.shape("x"), graph.shape("b")) == ((4, 2), None)
    shapes.infer(graph)
    assert graph.shape("b") == (4, 2)
    graph.set_type("b", TensorType(1, (4, None)))
    assert graph.shape("b") == (4, None)
    assert str(TensorType(1, ("N", 2, None))) == "float[N,2,?]"
    assert str(TensorType(0, None)) == "?[…]"
    assert TensorType(1, (1, 2)).static
    assert not TensorType(1, ("N",)).static
    info = make_info("v", TensorType(1, ("N", None, 3)))
    assert type_of_info(info) == TensorType(1, ("N", None, 3))


def test_node_attributes() -> None:
    node = helper.make_node("Op", ["a"], ["b"], domain="my", i=1, f=0.5, s="t", b=b"\xff", ints=[1], ss=["u"])
    proto = parse("g (float[2] a) => (float[2] y) { y = Relu(a) }").materialized()
    proto.graph.node.append(node)
    found = Graph.of(Model.from_proto(proto)).by_op("Op", "my")[0]
    assert found.attrs == {"i": 1, "f": 0.5, "s": "t", "b": b"\xff", "ints": [1], "ss": ["u"]}
    assert found.attr("i") == 1
    assert found.attr("none", 7) == 7
    assert (found.op, found.label, found.input(0), found.input(5)) == ("my::Op", "b", "a", "")
    assert "my::Op" in repr(found)


def test_nodes_out_of_order_are_sorted_in_every_graph() -> None:
    graph = Graph.of(
        parse(
            """g (float[2] x, bool c) => (float[2] y) {
                y = Neg(b)
                b = If (c) <then_branch = t () => (float[2] p) { p = Neg(s) s = Abs(a) },
                            else_branch = e () => (float[2] q) { q = Abs(x) }>
                a = Relu(x)
            }"""
        )
    )
    assert [node.op for node in graph.nodes] == ["Relu", "If", "Neg"]
    assert [n.op for n in graph.by_op("If")[0].subgraphs["then_branch"].nodes] == ["Abs", "Neg"]
    graph.check()


def test_invalid_graphs_are_model_errors() -> None:
    refused("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Relu(a) y = Neg(b) }", "has a cycle")
    refused("g (float[2] x) => (float[2] y) { y = Add(x, y) }", "has a cycle")
    refused("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }", "'y' is defined twice")
    refused("g (float[2] x) => (float[2] y) { y, y = Split(x) }", "'y' is defined twice")
    refused("g (float[2] x) => (float[2] y) { x = Relu(x) y = Neg(x) }", "'x' is defined twice")
    refused("g (float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }", "input 'x' is listed twice")
    refused("g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }", "output 'y' is listed twice")
    refused("g (float[2] x) => (float[2] y) { y = Relu(z) }", "reads value 'z', which is not defined")
    refused("g (float[2] x) => (float[2] z) { y = Relu(x) }", "output 'z' is not made")
    refused(BRANCHES, "a subgraph of node 'y' reads value 'w', which is not defined there")


def test_names_that_are_not_text_are_model_errors() -> None:
    for name in (b"xxxx", b"aaaa", b"yyyy"):
        model = parse("g (float[2] xxxx) => (float[2] yyyy) { aaaa = Relu(xxxx) yyyy = Neg(aaaa) }")
        data = model.proto.SerializeToString().replace(name, b"\xff\xfe\xff\xfe")
        with pytest.raises(ModelError, match="not valid UTF-8"):
            Graph.of(Model.from_proto(onnx.ModelProto.FromString(data)))


def test_repeated_initializers_are_a_model_error() -> None:
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").materialized()
    proto.graph.initializer.extend([numpy_helper.from_array(np.zeros(2, np.float32), "w")] * 2)
    with pytest.raises(ModelError, match="initializer 'w' is listed twice"):
        Graph.of(Model.from_proto(proto))


def test_a_branch_may_return_one_value_twice() -> None:
    text = """g (float[2] x, bool c) => (float[2] y, float[2] z) {
        y, z = If (c) <then_branch = t () => (float[2] p, float[2] p) { p = Abs(x) },
                       else_branch = e () => (float[2] q, float[2] r) { q = Neg(x) r = Relu(x) }>
    }"""
    graph = Graph.of(parse(text))
    feeds = {"x": np.array([-1, 2], np.float32), "c": np.array(True)}
    assert [v.tolist() for v in run(graph.to_model(), feeds).values()] == [[1, 2], [1, 2]]


def test_names_that_hide_outer_ones_are_renamed() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        a = Relu(x)
        b = If (c) <then_branch = t () => (float[2] y) { a1 = Abs(a) y = Neg(a1) },
                    else_branch = e () => (float[2] b) { b = Neg(a) }>
        y = Add(a, b)
    }"""
    graph = Graph.of(parse(text))
    inner = [name for sub in list(graph.walk())[1:] for name in sub._producer]
    assert not set(inner) & {"a", "b", "x", "y"}
    graph.check()
    feeds = {"x": np.array([-1, 2], np.float32), "c": np.array(False)}
    assert run(graph.to_model(), feeds)["y"].tolist() == [0, 0]


def test_the_collector_is_on_again_after_reading() -> None:
    assert gc.isenabled()
    branches()
    assert gc.isenabled()
    with pytest.raises(ModelError):
        Graph.of(parse(BRANCHES))
    assert gc.isenabled()
    gc.disable()
    try:
        branches()
        assert not gc.isenabled()
    finally:
        gc.enable()


# -- changing ---------------------------------------------------------------------------------------------


def test_insert_and_remove() -> None:
    graph = branches()
    neg = graph.producer("b")
    node = graph.insert(helper.make_node("Exp", ["a"], ["e"]), before=neg)
    assert [n.op for n in graph.nodes] == ["Relu", "Exp", "Neg", "If"]
    assert graph.consumers("a")[-1] is node
    graph.remove(node)
    assert not graph.contains(node)
    for action in (
        lambda: graph.remove(node),
        lambda: graph.insert(helper.make_node("Exp", ["a"], ["f"]), before=node),
        lambda: graph.set_input(node, 0, "x"),
        lambda: graph.insert(helper.make_node("Exp", ["a"], ["b"])),
        lambda: graph.insert(helper.make_node("Split", ["a"], ["f", "f"])),
        lambda: graph.by_op("If")[0].subgraphs["then_branch"].insert(helper.make_node("Exp", ["a"], ["b"])),
        lambda: graph.replace_node(graph.by_op("Relu")[0], helper.make_node("Exp", ["x"], ["b"])),
    ):
        with pytest.raises(GraphkitError):
            action()  # type: ignore[no-untyped-call]
    assert [n.op for n in graph.nodes] == ["Relu", "Neg", "If"]


def test_a_removed_node_no_longer_speaks_for_its_subgraphs() -> None:
    graph = branches()
    holder = graph.by_op("If")[0]
    graph.remove(holder)
    assert graph.consumers("w") == []
    inner = holder.subgraphs["else_branch"]
    inner.replace_all_uses("b", "a")
    assert graph.use_count("a") == 1
    assert [g.name for g in graph.walk()] == ["g"]


def test_set_input_fills_up_omitted_inputs() -> None:
    graph = Graph.of(parse("g (float[2] x) => (float[2] y) { y = Clip(x) }"))
    node = graph.by_op("Clip")[0]
    graph.set_input(node, 2, "x")
    assert node.inputs == ("x", "", "x")
    assert list(node.proto.input) == ["x", "", "x"]
    assert graph.use_count("x") == 2


def test_replace_all_uses_reaches_into_subgraphs() -> None:
    graph = branches()
    graph.replace_all_uses("a", "x")
    assert graph.use_count("a") == 0
    assert graph.by_op("If")[0].subgraphs["then_branch"].captures() == {"x": 2}


def test_replace_all_uses_is_not_caught_by_an_inner_name() -> None:
    graph = branches()
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    graph.insert(helper.make_node("Exp", ["x"], ["s"]), before=graph.by_op("If")[0])  # `s` is inner too
    graph.replace_all_uses("a", "s")
    assert inner.captures() == {"s": 2}
    x = np.array([0, 1], np.float32)
    got = run(graph.to_model(), {"x": x, "c": np.array(True)})["y"]
    np.testing.assert_allclose(got, 2 * np.exp(x), rtol=1e-6)


def test_replacing_by_a_value_that_is_an_output_already_keeps_both_outputs() -> None:
    text = """g (float[2] x, bool c) => (float[2] y, float[2] z) {
        a = Relu(x)
        y, z = If (c) <then_branch = t () => (float[2] a, float[2] x) { b = Neg(a) },
                       else_branch = e () => (float[2] q, float[2] r) { q = Abs(a) r = Abs(x) }>
    }"""
    graph = Graph.of(parse(text))
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    assert inner.outputs == ["a", "x"]
    graph.replace_all_uses("a", "x")
    first, second = inner.outputs
    assert second == "x"
    assert inner.producer(first).inputs == ("x",)  # type: ignore[union-attr]
    assert (graph.use_count("a"), inner.captures()["x"]) == (0, 3)


def test_rename() -> None:
    graph = branches()
    graph.rename("a", "new")
    graph.rename("w", "weight")
    then, other = graph.by_op("If")[0].subgraphs.values()
    assert then.captures() == {"new": 2}
    assert other.captures() == {"b": 1, "weight": 1}
    assert graph.weight("weight").name == "weight"  # type: ignore[union-attr]
    graph.check()
    for old, new in (("new", "b"), ("x", "z"), ("y", "z"), ("nothing", "z")):
        with pytest.raises(GraphkitError, match="cannot rename"):
            graph.rename(old, new)
    with pytest.raises(GraphkitError, match="taken"):
        then.rename("s", "b")


def test_new_names_are_new_in_every_graph() -> None:
    graph = branches()
    assert graph.new_name("fresh") == "fresh"
    assert graph.new_name("fresh") == "fresh_1"
    assert graph.new_name("s") != "s"  # of an inner graph
    assert graph.new_name("w") != "w"
    graph.insert(helper.make_node("Exp", ["x"], ["mine"], name="also mine"))
    assert graph.new_name("mine") != "mine"


def test_constants_are_initializers_outside_and_nodes_inside() -> None:
    graph = branches()
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    big = np.arange(5000, dtype=np.float32)
    assert graph.add_constant(big, "k") in graph.initializers
    name = inner.add_constant(big, "k")
    assert inner.producer(name) is next(inner.nodes)
    np.testing.assert_array_equal(inner.constant(name), big)
    again = Graph.of(graph.to_model())
    np.testing.assert_array_equal(again.by_op("If")[0].subgraphs["then_branch"].constant(name), big)
    with pytest.raises(GraphkitError, match="twice"):
        graph.set_initializer("a", big)


def test_bypass_keeps_the_names_of_outputs() -> None:
    graph = Graph.of(parse("g (float[2] x) => (float[2] y) { a = Relu(x) y = Identity(a) b = Neg(a) }"))
    graph.remove(graph.by_op("Identity")[0])
    graph.bypass("y", "a")
    assert graph.by_op("Relu")[0].outputs == ("y",)
    assert graph.by_op("Neg")[0].inputs == ("y",)
    graph.check()


def test_bypass_to_an_input_constant_or_other_output_keeps_an_identity() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { z = Relu(x) y = Dropout(%s) }"
    for source in ("x", "z"):
        graph = Graph.of(parse(text % source))
        graph.remove(graph.by_op("Dropout")[0])
        graph.bypass("y", source)
        assert graph.producer("y").op_type == "Identity"  # type: ignore[union-attr]
        assert graph.outputs == ["y", "z"]
        graph.check()


def test_remove_dead_takes_what_only_dead_nodes_used() -> None:
    graph = Graph.of(parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) c = Abs(b) y = Exp(a) }"))
    gone = graph.remove_dead(graph.nodes)
    assert sorted(node.op for node in gone) == ["Abs", "Neg"]
    assert [node.op for node in graph.nodes] == ["Relu", "Exp"]
    assert graph.remove_dead(gone) == []


def test_iterating_while_removing() -> None:
    graph = branches()
    seen = []
    for node in graph.nodes:
        seen.append(node.op)
        if node.op == "Relu":
            graph.remove(graph.by_op("Neg")[0])
    assert seen == ["Relu", "If"]


def test_check_names_what_is_wrong() -> None:
    graph = branches()
    graph.remove(graph.by_op("Relu")[0])
    with pytest.raises(GraphkitError, match="node 'b' reads value 'a', which is not defined"):
        graph.check()


# -- as a whole -------------------------------------------------------------------------------------------


def test_snapshots_bring_back_types_weights_and_header() -> None:
    graph = branches()
    shapes.infer(graph)
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    assert inner.shape("s") == (2,)
    state = graph.snapshot()
    graph.opsets[""] = 99
    graph.set_initializer("w", np.zeros(7, np.float32))
    graph.replace_with(parse("other (float[3] i) => (float[3] o) { o = Relu(i) }"))
    assert graph.outputs == ["o"]
    old = list(graph.nodes)
    graph.restore(state)
    assert (graph.name, graph.opset(), graph.outputs) == ("g", 18, ["y"])
    assert graph.constant("w").tolist() == [2, 3]  # type: ignore[union-attr]
    assert graph.by_op("If")[0].subgraphs["then_branch"].shape("s") == (2,)
    assert graph.new_name("o") == "o"
    assert not any(graph.contains(node) for node in old)


def test_the_header_survives() -> None:
    proto = branches().to_model().materialized()
    proto.producer_name, proto.doc_string, proto.graph.doc_string = "somebody", "about", "inside"
    proto.metadata_props.add(key="k", value="v")
    proto.opset_import.add(domain="other", version=3)
    proto.graph.quantization_annotation.add(tensor_name="a")
    proto.graph.quantization_annotation.add(tensor_name="gone")
    again = Graph.of(Model.from_proto(proto)).to_model().materialized()
    del proto.graph.quantization_annotation[1]
    assert again == proto


def test_functions_are_graphs_of_their_own() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "local": 1]>
    g (float[2] x) => (float[2] y) { y = local.F(x) }
    <domain: "local", opset_import: ["": 17]> F (i) => (o) { o = Neg(t) t = Relu(i) }"""
    graph = Graph.of(parse(text))
    function = graph.functions["local", "F", ""]
    assert [node.op for node in function.nodes] == ["Relu", "Neg"]
    assert (function.inputs, function.outputs, function.opset()) == (["i"], ["o"], 17)
    function.replace_node(function.by_op("Neg")[0], NodeProto(op_type="Abs", input=["t"], output=["o"]))
    name = function.add_constant(np.ones(2, np.float32))
    function.insert(helper.make_node("Exp", [name], ["unused"]))
    function.opsets[""] = 18
    x = np.array([-1, 2], np.float32)
    assert run(graph.to_model(), {"x": x})["y"].tolist() == [0, 2]
    assert Graph.of(graph.to_model()).functions["local", "F", ""].opset() == 18
    with pytest.raises(GraphkitError, match="cannot have an initializer"):
        function.set_initializer("w", x)


def test_the_gate_of_the_root_is_asked_from_inside() -> None:
    graph = branches()
    asked: list[tuple[str, str]] = []

    def gate(node: str, what: str) -> bool:
        asked.append((node, what))
        return False

    graph.gate = gate
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    assert not inner.allows(inner.by_op("Abs")[0], "shrink it")
    assert asked == [("s", "shrink it")]


def test_the_gate_of_the_root_is_asked_from_functions() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "local": 1]>
    g (float[2] x) => (float[2] y) { y = local.F(x) }
    <domain: "local", opset_import: ["": 18]> F (i) => (o) { o = Neg(i) }"""
    graph = Graph.of(parse(text))
    graph.gate = lambda node, what: False
    function = graph.functions["local", "F", ""]
    assert not function.allows(function.by_op("Neg")[0], "shrink it")


def test_the_source_model_is_not_changed() -> None:
    model = branches().to_model()
    before = model.proto.SerializeToString()
    graph = Graph.of(model)
    graph.rename("a", "z")
    graph.set_initializer("w", np.zeros(2, np.float32))
    graph.remove_dead(graph.nodes)
    graph.set_input_type("x", TensorType(1, (9,)))
    assert model.proto.SerializeToString() == before


def test_names_that_would_break_the_line_are_escaped() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(zzzz) }")
    data = model.proto.SerializeToString().replace(b"zzzz", b"a\nb\x1b")
    with pytest.raises(ModelError) as caught:
        Graph.of(Model.from_proto(onnx.ModelProto.FromString(data)))
    assert "'a\\nb\\x1b'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_that_is_not_text_does_not_keep_a_model_from_working() -> None:
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").materialized()
    proto.producer_name = proto.doc_string = proto.graph.doc_string = "qqqq"
    data = proto.SerializeToString().replace(b"qqqq", b"M\xfcsl")
    again = Graph.of(Model.from_proto(onnx.ModelProto.FromString(data))).to_model().proto
    assert again.producer_name == again.doc_string == again.graph.doc_string == "M\ufffdsl"
