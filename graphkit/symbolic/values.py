"""Transfer functions of elementwise operators: shapes by broadcasting, elements by arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from graphkit.node import Dim, Node
from graphkit.symbolic.state import (
    INT_TYPES,
    ITEM_TYPES,
    Element,
    State,
    aligned,
    fits,
)
from graphkit.symbolic.symbols import Size, Symbols

Transfer = Callable[[Node, list[State], Symbols], tuple[State, ...] | None]
Binary = Callable[[Symbols, Element, Element], Element]

# Results have the type and shape of the first input, and elements that are not tracked.
SAME_AS_INPUT = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh"),
    *("Ceil", "Clip", "CumSum", "Erf", "Exp", "Floor", "Log", "Reciprocal", "Round", "Sign", "Sqrt", "Trilu"),
    *("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu"),
    *("Sigmoid", "Softplus", "Softsign", "ThresholdedRelu", "Hardmax", "LogSoftmax", "Softmax"),
    *("GroupNormalization", "InstanceNormalization", "LpNormalization", "LRN", "MeanVarianceNormalization"),
)


def broadcast_dim(symbols: Symbols, a: Dim, b: Dim) -> Dim:
    """Size of an axis after broadcasting, None when it may be either."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    if a is None or b is None:
        return None
    if symbols.is_minimum(b, a):
        return a
    return b if symbols.is_minimum(a, b) else None


def broadcast(symbols: Symbols, *shapes: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """Shape after numpy-style broadcasting, None when a rank is unknown."""
    result: tuple[Dim, ...] = ()
    for shape in shapes:
        if shape is None:
            return None
        if shape == result:
            continue
        rank = max(len(result), len(shape))
        left, right = ((1,) * (rank - len(s)) + s for s in (result, shape))
        result = tuple(broadcast_dim(symbols, a, b) for a, b in zip(left, right, strict=True))
    return result


def _both(compute: Callable[[Symbols, Size, Size], Element]) -> Binary:
    return lambda symbols, a, b: None if a is None or b is None else compute(symbols, a, b)


def _mul(symbols: Symbols, a: Element, b: Element) -> Element:
    if a == 0 or b == 0:
        return 0
    return None if a is None or b is None else symbols.mul(a, b)


def _mod(symbols: Symbols, a: Size, b: Size) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else None
    quotient = symbols.div(a, b) if symbols.nonnegative(a) and symbols.positive(b) else None
    return None if quotient is None else symbols.sub(a, symbols.mul(quotient, b))


def _pow(symbols: Symbols, a: Size, b: Size) -> Element:
    if not isinstance(b, int) or not 0 <= b <= 4:
        return None
    return symbols.product([a] * b)


def _truth(value: bool | None) -> Element:
    return None if value is None else int(value)


def _negated(value: bool | None) -> Element:
    return None if value is None else int(not value)


ARITHMETIC: dict[str, Binary] = {
    "Add": _both(Symbols.add),
    "Sub": _both(Symbols.sub),
    "Mul": _mul,
    "Div": _both(Symbols.div),
    "Mod": _both(_mod),
    "Pow": _both(_pow),
    "Min": _both(Symbols.minimum),
    "Max": _both(Symbols.maximum),
}
COMPARISON: dict[str, Binary] = {
    "Equal": _both(lambda s, a, b: _truth(s.equal(a, b))),
    "Less": _both(lambda s, a, b: _truth(s.less(a, b))),
    "Greater": _both(lambda s, a, b: _truth(s.less(b, a))),
    "LessOrEqual": _both(lambda s, a, b: _negated(s.less(b, a))),
    "GreaterOrEqual": _both(lambda s, a, b: _negated(s.less(a, b))),
    "And": lambda s, a, b: 0 if a == 0 or b == 0 else (1 if a == b == 1 else None),
    "Or": lambda s, a, b: 1 if a == 1 or b == 1 else (0 if a == b == 0 else None),
    "Xor": lambda s, a, b: None if a is None or b is None else int(a != b),
}


def _zip(compute: Binary, symbols: Symbols, a: State, b: State, dtype: int) -> State:
    """Apply `compute` to the elements of two broadcast states."""
    shape = broadcast(symbols, a.shape, b.shape)
    rows = aligned(a, b) if dtype in ITEM_TYPES else None
    if rows is None:
        return State(dtype, shape)
    return State(dtype, shape, tuple(fits(dtype, compute(symbols, u, v)) for u, v in zip(*rows, strict=True)))


def arithmetic(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Add, Sub, Mul, Div, Mod, Pow, Min, Max (the last two of any number of inputs)."""
    if node.proto.attribute:  # fmod, or the explicit broadcasting of old operator sets
        return None
    total = ins[0]
    for other in ins[1:]:
        total = _zip(ARITHMETIC[node.op_type], symbols, total, other, ins[0].dtype)
    return (total,)


def comparison(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Equal, Less, Greater, their variants, And, Or, Xor."""
    if node.proto.attribute:
        return None
    return (_zip(COMPARISON[node.op_type], symbols, ins[0], ins[1], TensorProto.BOOL),)


def where(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...]:
    """Where: elements that both sides agree on need no condition."""
    condition, x, y = ins
    shape = broadcast(symbols, condition.shape, x.shape, y.shape)
    dtype = x.dtype or y.dtype
    rows = aligned(*ins) if dtype in ITEM_TYPES else None
    if rows is None:
        return (State(dtype, shape),)
    chosen = (u if p == 1 or u == v else (v if p == 0 else None) for p, u, v in zip(*rows, strict=True))
    return (State(dtype, shape, tuple(chosen)),)


def cast(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...]:
    """Cast between integers and bool; other casts lose the elements."""
    source, dtype = ins[0], ins[1].dtype if node.op_type == "CastLike" else int(node.attr("to", 0))
    if source.items is None or dtype not in ITEM_TYPES:
        return (State(dtype, source.shape),)
    if dtype == TensorProto.BOOL:
        zero = (symbols.equal(item, 0) if item is not None else None for item in source.items)
        return (State(dtype, source.shape, tuple(_negated(is_zero) for is_zero in zero)),)
    return (State(dtype, source.shape, tuple(fits(dtype, item) for item in source.items)),)


def unary(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...]:
    """Neg, Not, Identity and Abs on elements."""
    source = ins[0]
    if source.items is None:
        return (source,)
    if node.op_type == "Neg":
        items = tuple(None if i is None else fits(source.dtype, symbols.sub(0, i)) for i in source.items)
        return (source._replace(items=items),)
    if node.op_type == "Not":
        return (source._replace(items=tuple(None if i is None else 1 - int(i) for i in source.items)),)
    if node.op_type == "Abs":
        keeps = (i if i is not None and symbols.nonnegative(i) else None for i in source.items)
        items = tuple(abs(i) if isinstance(i, int) else k for i, k in zip(source.items, keeps, strict=True))
        return (source._replace(items=tuple(fits(source.dtype, i) for i in items)),)
    return (source,)


def same_as_input(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...]:
    """Operators whose result has the type and shape of their first input."""
    return (State(ins[0].dtype, ins[0].shape),)


def reduction(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """ReduceProd, ReduceSum, ReduceMin and ReduceMax over all elements of a vector of sizes."""
    source = ins[0]
    axes = ins[1].ints() if node.input(1) else node.attr("axes")
    if node.input(1) and axes is None:
        return None
    if source.dtype not in INT_TYPES or not source.items or None in source.items or len(source.shape or ()) != 1:
        return None
    if axes not in (None, [0], [-1]) or (not axes and node.attr("noop_with_empty_axes", 0)):
        return None
    compute = {"ReduceProd": _mul, "ReduceSum": ARITHMETIC["Add"], "ReduceMin": ARITHMETIC["Min"]}.get(
        node.op_type, ARITHMETIC["Max"]
    )
    total = source.items[0]
    for item in source.items[1:]:
        total = compute(symbols, total, item)
    return (State(source.dtype, (1,) if node.attr("keepdims", 1) else (), (fits(source.dtype, total),)),)
