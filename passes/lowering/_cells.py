"""One step of RNN, GRU and LSTM in elementwise operators, as ONNX Operators defines them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from graphkit.passes._emit import Emit

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# Operators of the activations, and which of alpha and beta each takes, with ONNX's defaults (None: must be given).
_PARAMETERS: dict[str, dict[str, float | None]] = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softsign": {},
    "Softplus": {},
    "Elu": {"alpha": 1.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Affine": {"alpha": None, "beta": None},
    "ScaledTanh": {"alpha": None, "beta": None},
}
_BY_NAME = {name.lower(): name for name in _PARAMETERS}


@dataclass(frozen=True)
class Activation:
    """An activation function by ONNX's name, with its parameters (only those that it takes)."""

    name: str
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Cell:
    """What one direction computes at each step; weights are names of values.

    `recurrent` is Rᵀ [hidden, gates·hidden] (GRU: of z and r only, `candidate` is Rᵀ of h [hidden, hidden]),
    `candidate_bias` [hidden] stands inside the reset when a GRU has linear_before_reset, `peepholes` are those of
    i, o and f, each [hidden]. `clip` bounds what goes into activations, 0 means no bound.
    """

    kind: str
    hidden: int
    dtype: int
    recurrent: str
    activations: tuple[Activation, ...]
    clip: float = 0.0
    candidate: str = ""
    candidate_bias: str = ""
    reset_after: bool = False
    peepholes: tuple[str, ...] = ()
    coupled: bool = False


def read_activations(
    kind: str, names: list[str] | None, alphas: list[float], betas: list[float], directions: int
) -> list[tuple[Activation, ...]] | str:
    """The activations of each direction, or what is wrong with them.

    Parameters are consumed in the order of the functions that take them, as onnxruntime does.
    """
    per_direction = len(DEFAULTS[kind])
    given = list(names or DEFAULTS[kind] * directions)
    if len(given) != per_direction * directions:
        return f"{len(given)} activations for {directions} directions"
    lists = {"alpha": list(alphas), "beta": list(betas)}
    read = []
    for text in given:
        name = _BY_NAME.get(text.lower())
        if name is None:
            return f"ONNX has no activation '{text}'"
        parameters = {key: lists[key].pop(0) if lists[key] else default for key, default in _PARAMETERS[name].items()}
        if None in parameters.values():
            return f"activation '{name}' needs alpha and beta"
        read.append(Activation(name, tuple((key, float(value or 0)) for key, value in parameters.items())))
    return [tuple(read[i : i + per_direction]) for i in range(0, len(read), per_direction)]


def step(emit: Emit, cell: Cell, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
    """Add one step; `gates` [batch, gates·hidden] is x·Wᵀ + bias, `state` (h,) or (h, c), each [batch, hidden]."""
    return {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[cell.kind](emit, cell, gates, state)


def _rnn(emit: Emit, cell: Cell, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
    total = emit.op("Add", gates, emit.op("MatMul", state[0], cell.recurrent))
    return (_activate(emit, cell, 0, total),)


def _gru(emit: Emit, cell: Cell, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
    """z, r = f(·); h̃ = g(·) with the reset before or after the product; h = (1 − z)·h̃ + z·h."""
    h = state[0]
    both, x = emit.split(gates, 1, [2 * cell.hidden, cell.hidden])
    total = emit.op("Add", both, emit.op("MatMul", h, cell.recurrent))
    z, r = emit.split(_activate(emit, cell, 0, total), 1, [cell.hidden] * 2)
    if cell.reset_after:
        product = emit.op("MatMul", h, cell.candidate)
        product = emit.op("Add", product, cell.candidate_bias) if cell.candidate_bias else product
        product = emit.op("Mul", r, product)
    else:
        product = emit.op("MatMul", emit.op("Mul", r, h), cell.candidate)
    new = _activate(emit, cell, 1, emit.op("Add", x, product))
    # Not h̃ + z·(h − h̃): where a state is infinite that gives NaN.
    kept = emit.op("Mul", z, h)
    return (emit.op("Add", emit.op("Mul", emit.op("Sub", emit.number(1, cell.dtype), z), new), kept),)


def _lstm(emit: Emit, cell: Cell, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
    """i, f, o = f(·), c = f·c + i·g(·), h = o·h(c); gates stand in the order i, o, f, c."""
    h, c = state
    total = emit.op("Add", gates, emit.op("MatMul", h, cell.recurrent))
    sums, candidate = emit.split(total, 1, [3 * cell.hidden, cell.hidden])
    if cell.peepholes:
        i, o, f = emit.split(sums, 1, [cell.hidden] * 3)
        i = _activate(emit, cell, 0, _peep(emit, cell, 0, i, c))
        f = _activate(emit, cell, 0, _peep(emit, cell, 2, f, c))
    else:
        i, o, f = emit.split(_activate(emit, cell, 0, sums), 1, [cell.hidden] * 3)
    f = emit.op("Sub", emit.number(1, cell.dtype), i) if cell.coupled else f
    new = emit.op("Mul", i, _activate(emit, cell, 1, candidate))
    c = emit.op("Add", emit.op("Mul", f, c), new)
    if cell.peepholes:
        o = _activate(emit, cell, 0, _peep(emit, cell, 1, o, c))
    # The standard's text would clip c here too; onnxruntime, which is what models are compared with, does not.
    return emit.op("Mul", o, _activate(emit, replace(cell, clip=0.0), 2, c)), c


def _peep(emit: Emit, cell: Cell, gate: int, total: str, c: str) -> str:
    return emit.op("Add", total, emit.op("Mul", c, cell.peepholes[gate]))


def _activate(emit: Emit, cell: Cell, index: int, x: str) -> str:
    if cell.clip:
        x = emit.clip(x, emit.number(-cell.clip, cell.dtype), emit.number(cell.clip, cell.dtype))
    function = cell.activations[index]
    parameters = dict(function.parameters)
    if function.name == "Affine":
        scaled = emit.op("Mul", x, emit.number(parameters["alpha"], cell.dtype))
        return emit.op("Add", scaled, emit.number(parameters["beta"], cell.dtype))
    if function.name == "ScaledTanh":
        inner = emit.op("Tanh", emit.op("Mul", x, emit.number(parameters["beta"], cell.dtype)))
        return emit.op("Mul", inner, emit.number(parameters["alpha"], cell.dtype))
    attributes: dict[str, Any] = dict(parameters)
    return emit.op(function.name, x, **attributes)
