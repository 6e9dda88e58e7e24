"""Property: whatever abstract evaluation says about a shape program is what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.fold_constants import FoldConstants
from graphkit.passes.fold_shapes import FoldShapes
from graphkit.symbolic.evaluate import Evaluator
from graphkit.symbolic.slices import _picked
from graphkit.symbolic.state import State
from graphkit.testing import assert_equal_outputs, run

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


class Program:
    """A growing graph over input x[a, b, 3]; `vectors` (with lengths) and `scalars` are its int64 values."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.vectors: dict[str, int] = {}
        self.scalars: list[str] = []
        self.outputs: list[str] = []

    def const(self, value: Any, dtype: type = np.int64) -> str:
        """A constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node with one output, which is a graph output too."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attrs))
        self.outputs.append(name)
        return name

    def vector(self) -> str:
        """One of the vectors there are."""
        return str(self.draw(st.sampled_from(sorted(self.vectors))))

    def scalar(self) -> str:
        """One of the scalars there are, or a constant."""
        return str(self.draw(st.sampled_from([*self.scalars, self.const(self.draw(st.integers(-3, 6)))])))

    def model(self) -> Model:
        """All of it as a model whose outputs are all its values."""
        infos = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", 3])
        graph = helper.make_graph(self.nodes, "g", [x], infos, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return Model.from_proto(proto)


def pick(program: Program) -> None:
    """Gather a scalar or a vector out of a vector."""
    vector = program.vector()
    length = program.vectors[vector]
    if length == 0:
        return
    index = st.integers(-length, length - 1)
    if program.draw(st.booleans()):
        program.scalars.append(program.op("Gather", vector, program.const(program.draw(index)), axis=0))
    else:
        chosen = program.draw(st.lists(index, max_size=4))
        program.vectors[program.op("Gather", vector, program.const(chosen), axis=0)] = len(chosen)


def cut(program: Program) -> None:
    """Slice a vector."""
    vector, bound = program.vector(), st.integers(-5, 5)
    start, end = program.draw(bound), program.draw(bound)
    step = program.draw(st.sampled_from([1, 1, 2, -1, -2]))
    inputs = [program.const([number]) for number in (start, end, 0, step)]
    name = program.op("Slice", vector, *inputs)
    picked = _picked(program.vectors[vector], start, end, step)
    program.vectors[name] = len(picked) if picked is not None else 0


def join(program: Program) -> None:
    """Concat two vectors."""
    first, second = program.vector(), program.vector()
    if program.vectors[first] + program.vectors[second] <= 8:
        total = program.vectors[first] + program.vectors[second]
        program.vectors[program.op("Concat", first, second, axis=0)] = total


def compute(program: Program) -> None:
    """Arithmetic with a scalar, or of two scalars."""
    op = program.draw(st.sampled_from(["Add", "Sub", "Mul", "Min", "Max", "Div", "Mod"]))
    divisor = program.const(program.draw(st.integers(1, 5)))
    other = divisor if op in ("Div", "Mod") else program.scalar()
    if program.draw(st.booleans()):
        vector = program.vector()
        program.vectors[program.op(op, vector, other)] = program.vectors[vector]
    else:
        program.scalars.append(program.op(op, program.scalar(), other))


def reduce(program: Program) -> None:
    """The product, sum, minimum or maximum of a vector."""
    vector = program.vector()
    if program.vectors[vector]:
        op = program.draw(st.sampled_from(["ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax"]))
        program.scalars.append(program.op(op, vector, keepdims=0))


def wrap(program: Program) -> None:
    """A scalar as a vector, or a vector through another type."""
    if program.draw(st.booleans()):
        name = program.op("Unsqueeze", program.scalar(), program.const([0]))
        program.vectors[name] = 1
    else:
        vector = program.vector()
        narrow = program.op("Cast", vector, to=TensorProto.INT32)
        program.vectors[program.op("Cast", narrow, to=INT64)] = program.vectors[vector]


def choose(program: Program) -> None:
    """Where with a comparison of a vector and a scalar."""
    vector, scalar = program.vector(), program.scalar()
    op = program.draw(st.sampled_from(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]))
    condition = program.op(op, vector, scalar)
    if program.draw(st.booleans()):
        condition = program.op("Not", condition)
    program.vectors[program.op("Where", condition, program.scalar(), vector)] = program.vectors[vector]


def use(program: Program) -> None:
    """Put a vector to use as a shape of something of many sizes."""
    vector = program.vector()
    length = program.vectors[vector]
    bounded = program.op("Min", program.op("Max", vector, program.const(0)), program.const(6))
    program.vectors[bounded] = length
    if program.draw(st.booleans()):
        filled = program.op("ConstantOfShape", bounded)
    else:
        shape = [1] * program.draw(st.integers(0, length))
        filled = program.op("Expand", program.const(np.zeros(shape), np.float32), bounded)
    program.vectors[program.op("Shape", filled)] = length


def count(program: Program) -> None:
    """A Range up to a scalar, and its length."""
    limit = program.op("Min", program.scalar(), program.const(9))
    start, step = program.draw(st.integers(-2, 2)), program.draw(st.sampled_from([1, 1, 2, -1]))
    values = program.op("Range", program.const(start), limit, program.const(step))
    program.scalars.append(program.op("Size", values))


@st.composite
def programs(draw: Any) -> Model:
    """Random shape programs."""
    program = Program(draw)
    program.vectors[program.op("Shape", "x")] = 3
    steps = st.sampled_from([pick, cut, join, compute, reduce, wrap, choose, use, count])
    for step in draw(st.lists(steps, min_size=1, max_size=9)):
        step(program)
    return program.model()


def check(evaluator: Evaluator, state: State, array: np.ndarray, sizes: dict[str, int]) -> None:
    """Compare what is known about a value with what it is for these sizes."""

    def number(size: Any) -> int | None:
        try:
            return None if size is None else evaluator.symbols.value(size, sizes)
        except KeyError:  # a size that depends on data
            return None

    assert state.dtype == helper.np_dtype_to_tensor_dtype(array.dtype)
    assert state.shape is not None
    assert len(state.shape) == array.ndim
    for dim, actual in zip(map(number, state.shape), array.shape, strict=True):
        assert dim in (None, actual)
    for item, actual in zip(map(number, state.items or ()), array.reshape(-1).tolist(), strict=False):
        assert item in (None, actual)


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 4), st.integers(0, 4))
def test_abstract_evaluation_agrees_with_onnxruntime(model: Model, a: int, b: int) -> None:
    evaluator = Evaluator(Graph.of(model))
    scope = evaluator.run()
    values = run(model, {"x": np.zeros((a, b, 3), np.float32)})
    for name, array in values.items():
        check(evaluator, scope[name], array, {"a": a, "b": b})


@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(0, 4), st.integers(0, 4))
def test_folding_keeps_what_onnxruntime_computes(model: Model, a: int, b: int) -> None:
    graph = Graph.of(model)
    for _ in range(3):
        FoldShapes().run(graph)
        FoldConstants().run(graph)
        graph.check()
    assert not FoldShapes().run(graph).modified
    assert_equal_outputs(model, graph.to_model(), inputs={"x": np.zeros((a, b, 3), np.float32)})
