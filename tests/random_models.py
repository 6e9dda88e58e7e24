"""Random small models for property tests: nested If and Loop, captured and hidden names, functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

SHAPE = (2, 2)  # of every float value
Draw = Callable[[st.SearchStrategy[int]], int]


class Maker:
    """Draws one graph after another; every float value has the same shape, so that anything fits anywhere."""

    def __init__(self, draw: Draw, *, shadow: bool) -> None:
        self.draw = draw
        self.shadow = shadow
        self.count = 0

    def pick(self, items: list[str]) -> str:
        """One of the items."""
        return items[self.draw(st.integers(0, len(items) - 1))]

    def own_names(self, seen: list[str]) -> tuple[list[str], list[str]]:
        """Names that this graph may define though others do, and what it then sees of the outer graphs."""
        own = [f"v{i}" for i in range(6) if self.shadow and self.draw(st.booleans())]
        return own, [value for value in seen if value not in own]

    def name(self, own: list[str]) -> str:
        """A new value name; taken from `own` as long as there are some."""
        if own:
            return own.pop()
        self.count += 1
        return f"t{self.count}"

    def nodes(self, seen: list[str], own: list[str], size: int, depth: int) -> tuple[list[NodeProto], list[str]]:
        """Nodes that read what is `seen`, and the values they make."""
        nodes: list[NodeProto] = []
        made: list[str] = []
        for _ in range(size):
            readable = seen + made
            inputs = [self.pick(readable), self.pick(readable)]
            outputs = [self.name(own), self.name(own)]
            kind = self.draw(st.integers(0, 8 if depth else 5))
            nodes.append(self.node(kind, inputs, outputs, readable, depth))
            made += nodes[-1].output
        return nodes, made

    def node(self, kind: int, inputs: list[str], outputs: list[str], seen: list[str], depth: int) -> NodeProto:
        """One node of a kind."""
        if kind <= 2:
            return helper.make_node(("Add", "Mul", "Sub")[kind], inputs, outputs[:1])
        if kind == 3:
            return helper.make_node("Pair", inputs, outputs, name=f"n_{outputs[0]}", domain="local")
        if kind == 4:
            return helper.make_node("Clip", [inputs[0], "", "limit"], outputs[:1])
        if kind == 5:
            value = helper.make_tensor("k", TensorProto.FLOAT, SHAPE, [1.0, -2.0, 3.0, 0.5])
            return helper.make_node("Constant", [], outputs[:1], value=value)
        if kind == 8:
            return helper.make_node("Loop", ["n", "", inputs[0]], outputs[:1], body=self.body(seen, depth - 1))
        branches = [self.graph(seen, depth - 1, outputs=2) for _ in range(2)]
        return helper.make_node("If", ["c"], outputs, then_branch=branches[0], else_branch=branches[1])

    def graph(self, seen: list[str], depth: int, *, outputs: int) -> GraphProto:
        """A branch that captures some of what is `seen`."""
        own, seen = self.own_names(seen)
        nodes, made = self.nodes(seen, own, self.draw(st.integers(2, 3)), depth)
        return helper.make_graph(nodes, "inner", [], [_info(v) for v in made[-outputs:]])

    def body(self, seen: list[str], depth: int) -> GraphProto:
        """A Loop body with one carried value."""
        own, seen = self.own_names(seen)
        state = self.name(own)
        nodes, made = self.nodes([*seen, state], own, 2, depth)
        count, going, more = ("iter", "cond_in", "cond_out") if self.shadow else map(self.name, ([], [], []))
        inputs = [
            helper.make_tensor_value_info(count, TensorProto.INT64, ()),
            helper.make_tensor_value_info(going, TensorProto.BOOL, ()),
            _info(state),
        ]
        nodes.append(helper.make_node("Identity", [going], [more]))
        outputs = [helper.make_tensor_value_info(more, TensorProto.BOOL, ()), _info(made[-1])]
        return helper.make_graph(nodes, "body", inputs, outputs)


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def pair_function() -> FunctionProto:
    """`local::Pair(a, b) = (a + b, a - b)`."""
    nodes = [helper.make_node("Add", ["a", "b"], ["p"]), helper.make_node("Sub", ["a", "b"], ["q"])]
    return helper.make_function("local", "Pair", ["a", "b"], ["p", "q"], nodes, [helper.make_opsetid("", 18)])


@st.composite
def models(draw: Draw, *, shadow: bool = True, most: int = 6) -> ModelProto:
    """A valid model: inputs x0, x1 (float) and c (bool), two weights, one to three outputs."""
    maker = Maker(draw, shadow=shadow)
    seen = ["x0", "x1", "w0", "w1"]
    own, _ = maker.own_names(seen)
    nodes, made = maker.nodes(seen, own, draw(st.integers(1, most)), depth=2)
    weights = [
        onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32).reshape(SHAPE) - 1, "w0"),
        onnx.numpy_helper.from_array(np.full(SHAPE, 0.5, np.float32), "w1"),
        onnx.numpy_helper.from_array(np.array(2, np.float32), "limit"),
        onnx.numpy_helper.from_array(np.array(2, np.int64), "n"),
    ]
    inputs = [_info("x0"), _info("x1"), helper.make_tensor_value_info("c", TensorProto.BOOL, ())]
    outputs = [_info(v) for v in made[-draw(st.integers(1, 3)) :]]
    graph = helper.make_graph(nodes, "random", inputs, outputs, weights)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[pair_function()], ir_version=8)


def feeds(flag: bool) -> dict[str, np.ndarray]:
    """Inputs of such a model; `flag` chooses the branch of every If."""
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x0", "x1")}
    return {**values, "c": np.array(flag)}
