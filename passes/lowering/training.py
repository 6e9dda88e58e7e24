"""The optimizers of ai.onnx.preview.training in plain arithmetic, by the formulas of their schemas (ONNX Operators)."""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, rule

_DOMAIN = "ai.onnx.preview.training"
_SINCE = 9  # Where


class _Step:
    """Arithmetic on float32 values for one optimizer node."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.emit, self.node = Emit(graph, node), node
        self.rate, self.count = node.inputs[0], self.emit.cast(node.inputs[1], TensorProto.FLOAT)
        self.outputs: dict[str, str] = {}

    def attr(self, name: str, default: float) -> float:
        return float(self.node.attr(name, default))

    def mul(self, a: str, b: str | float) -> str:
        return self.emit.op("Mul", a, b if isinstance(b, str) else self.emit.number(b))

    def add(self, a: str, b: str | float) -> str:
        return self.emit.op("Add", a, b if isinstance(b, str) else self.emit.number(b))

    def regularized(self, x: str, gradient: str) -> str:
        """The gradient with the derivative of norm_coefficient · ‖x‖² / 2."""
        norm = self.attr("norm_coefficient", 0)
        return self.add(self.mul(x, norm), gradient) if norm else gradient

    def groups(self, kinds: int) -> list[tuple[str, ...]]:
        """Tensors by optimized one: x, its gradient, its states; the inputs hold all x first, and so on."""
        rest = self.node.inputs[2:]
        count = len(rest) // kinds
        return [rest[k::count] for k in range(count)]

    def put(self, index: int, kind: int, count: int, value: str) -> None:
        """Make a value the output of one kind for one tensor."""
        name = self.node.outputs[kind * count + index] if kind * count + index < len(self.node.outputs) else ""
        if name:
            self.outputs[name] = value


def _ready(graph: Graph, node: Node) -> bool:
    """True when there are ONNX's operators to compute with, and all tensors are float32."""
    floats = all(graph.dtype(value) == TensorProto.FLOAT for value in (node.inputs[0], *node.inputs[2:]))
    return floats and graph.opset() >= _SINCE


@rule(f"{_DOMAIN}::Adagrad", name="adagrad")
def adagrad(graph: Graph, node: Node) -> Outcome:
    """Adagrad: H + G², and x − r · G / (√H + ε)."""
    if not _ready(graph, node):
        return Refusal(
            "adagrad", node.label, "its tensors are not float32, or the model does not import ONNX's own operators"
        )
    step = _Step(graph, node)
    emit = step.emit
    decay = step.add(step.mul(step.count, step.attr("decay_factor", 0)), 1.0)
    rate, groups = emit.op("Div", step.rate, decay), step.groups(3)
    for index, (x, gradient, squares) in enumerate(groups):
        g = step.regularized(x, gradient)
        new = emit.op("Add", squares, emit.op("Mul", g, g))
        size = step.add(emit.op("Sqrt", new), step.attr("epsilon", 0))
        step.put(index, 0, len(groups), emit.op("Sub", x, emit.op("Div", emit.op("Mul", rate, g), size)))
        step.put(index, 1, len(groups), new)
    return emit.rewrite(step.outputs, "Adagrad by its formula")


@rule(f"{_DOMAIN}::Adam", name="adam")
def adam(graph: Graph, node: Node) -> Outcome:
    """Adam: moments V and H, and x − r · V / (√H + ε), its rate corrected for their start from the second step on."""
    if not _ready(graph, node):
        return Refusal(
            "adam", node.label, "its tensors are not float32, or the model does not import ONNX's own operators"
        )
    step = _Step(graph, node)
    emit, alpha, beta = step.emit, step.attr("alpha", 0.9), step.attr("beta", 0.999)
    rate, groups = _adam_rate(step, alpha, beta), step.groups(4)
    post = step.attr("norm_coefficient_post", 0)
    for index, (x, gradient, mean, square) in enumerate(groups):
        g = step.regularized(x, gradient)
        v = step.add(step.mul(mean, alpha), step.mul(g, 1 - alpha))
        h = step.add(step.mul(square, beta), step.mul(emit.op("Mul", g, g), 1 - beta))
        size = step.add(emit.op("Sqrt", h), step.attr("epsilon", 0))
        y = emit.op("Sub", x, emit.op("Div", emit.op("Mul", rate, v), size))
        y = step.mul(y, 1 - post) if post else y
        for kind, value in enumerate((y, v, h)):
            step.put(index, kind, len(groups), value)
    return emit.rewrite(step.outputs, "Adam by its formula")


def _adam_rate(step: _Step, alpha: float, beta: float) -> str:
    """r · √(1 − βᵗ) / (1 − αᵗ) for t > 0, else r."""
    emit, one = step.emit, step.emit.number(1)
    started = emit.op("Greater", step.count, emit.number(0))
    safe = emit.op("Max", step.count, one)
    above = emit.op("Sqrt", emit.op("Sub", one, emit.op("Pow", emit.number(beta), safe)))
    below = emit.op("Sub", one, emit.op("Pow", emit.number(alpha), safe))
    return emit.op("Where", started, emit.op("Mul", step.rate, emit.op("Div", above, below)), step.rate)


@rule(f"{_DOMAIN}::Momentum", name="momentum")
def momentum(graph: Graph, node: Node) -> Outcome:
    """Momentum: V = α · V + β · G, with β = 1 in the first step; x − r · V, or x − r · (G + α · V) by Nesterov."""
    if not _ready(graph, node):
        return Refusal(
            "momentum", node.label, "its tensors are not float32, or the model does not import ONNX's own operators"
        )
    step = _Step(graph, node)
    emit, alpha, groups = step.emit, step.attr("alpha", 0), step.groups(3)
    started = emit.op("Greater", step.count, emit.number(0))
    beta = emit.op("Where", started, emit.number(step.attr("beta", 0)), emit.number(1))
    nesterov = node.attr("mode") == "nesterov"
    for index, (x, gradient, velocity) in enumerate(groups):
        g = step.regularized(x, gradient)
        v = emit.op("Add", step.mul(velocity, alpha), emit.op("Mul", beta, g))
        move = step.add(g, step.mul(v, alpha)) if nesterov else v
        step.put(index, 0, len(groups), emit.op("Sub", x, emit.op("Mul", step.rate, move)))
        step.put(index, 1, len(groups), v)
    return emit.rewrite(step.outputs, "Momentum by its formula")


RULES = (adagrad, adam, momentum)
