"""Einsum in the forms that MNN 3.6 takes: two operands, an explicit result, no index twice in one operand.

Method: ONNX Operators, Einsum (numpy's rules). What MNN runs right stays as it is.
"""

from __future__ import annotations

import re

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS
from graphkit.passes.lowering._tools import transpose
from graphkit.rewrite import Outcome, Refusal, rule

_NAME = "einsum-for-mnn"
_ALL = "..."


def _terms(equation: str) -> tuple[list[str], str]:
    """The operands' indices and the result's, which is made when it is not given."""
    text = equation.replace(" ", "")
    if "->" in text:
        left, right = text.split("->")
        return left.split(","), right
    letters = re.findall("[A-Za-z]", text)
    once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return text.split(","), (_ALL if _ALL in text else "") + once


def _letters(term: str) -> list[str]:
    return re.findall(r"\.\.\.|[A-Za-z]", term)


def _repeated(term: str) -> str | None:
    """An index that comes twice in a term."""
    letters = _letters(term)
    return next((letter for letter in letters if letters.count(letter) > 1), None)


@rule("Einsum", name=_NAME)
def einsum(graph: Graph, node: Node) -> Outcome:
    """Einsum with an implied or scalar result, three or more operands, or diagonals."""
    equation = str(node.attr("equation"))
    terms, result = _terms(equation)
    values = list(node.inputs)
    odd = len(terms) > 2 or "->" not in equation or any(map(_repeated, terms)) or _is_summed_alone(terms, result)
    odd = odd or (len(terms) == 2 and not result)
    if not odd:
        return None
    if graph.dtype(values[0]) not in FLOATS:
        return Refusal(_NAME, node.label, "MNN has Einsum of floats only")
    emit = Emit(graph, node)
    for place, term in enumerate(terms):
        while (letter := _repeated(term)) is not None:
            cut = _diagonal(emit, values[place], term, letter, node.inputs[place])
            if cut is None:
                return Refusal(_NAME, node.label, f"a diagonal over '{letter}', whose size or place is unknown")
            values[place], term = cut
        terms[place] = term
    _sum_alone(emit, values, terms, result)
    while len(terms) > 2:
        _join(emit, values, terms, result)
    y = _final(emit, values, terms, result)
    return emit.rewrite({node.outputs[0]: y}, f"Einsum '{equation}' in forms that MNN has")


def _alone(terms: list[str], result: str, place: int) -> list[str]:
    """Indices of one operand that neither the others nor the result have."""
    others = set(result).union(*(terms[:place] + terms[place + 1 :]))
    return [letter for letter in _letters(terms[place]) if letter != _ALL and letter not in others]


def _is_summed_alone(terms: list[str], result: str) -> bool:
    """True when an index of one of several operands is summed for itself, which MNN does not do."""
    return len(terms) > 1 and any(_alone(terms, result, place) for place in range(len(terms)))


def _sum_alone(emit: Emit, values: list[str], terms: list[str], result: str) -> None:
    """Sum operands over indices that nothing else has; one that would lose all of them keeps its last."""
    for place in range(len(terms) if len(terms) > 1 else 0):
        letters, gone = _letters(terms[place]), _alone(terms, result, place)
        gone = gone[:-1] if len(gone) == len(letters) else gone
        if not gone:
            continue
        after = letters.index(_ALL) if _ALL in letters else len(letters)
        axes = [at if at < after else at - len(letters) for at, letter in enumerate(letters) if letter in gone]
        values[place] = emit.reduce("ReduceSum", values[place], axes, keepdims=False)
        terms[place] = "".join(letter for letter in letters if letter not in gone)


def _diagonal(emit: Emit, x: str, term: str, letter: str, source: str) -> tuple[str, str] | None:
    """Take the diagonal over the first two places of an index: what is off it becomes 0, then one axis is summed."""
    shape, letters = emit.graph.shape(source), _letters(term)
    if shape is None:
        return None
    rank = len(shape) - sum(letter != _ALL for letter in _letters(term)) if x == source else None
    if rank is None or (_ALL not in letters and rank):
        return None
    axes = _axes(letters, letter, rank)
    size = shape[axes[0]]
    if not isinstance(size, int) or len(axes) != 2:
        return None
    eye_shape = [size if axis in axes else 1 for axis in range(len(shape))]
    eye = emit.const(np.eye(size, dtype=np.bool_).reshape(eye_shape), "diagonal")
    kept = emit.op("Where", eye, x, emit.number(0, emit.graph.dtype(source) or TensorProto.FLOAT))
    at = letters.index(letter, letters.index(letter) + 1)
    letters.pop(at)
    return emit.reduce("ReduceSum", kept, [axes[1]], keepdims=False), "".join(letters)


def _axes(letters: list[str], letter: str, spread: int) -> list[int]:
    """The axes of an index; `...` stands for `spread` of them."""
    axes, axis = [], 0
    for item in letters:
        if item == letter:
            axes.append(axis)
        axis += spread if item == _ALL else 1
    return axes


def _join(emit: Emit, values: list[str], terms: list[str], result: str) -> None:
    """Contract the first two operands to one that keeps what others need."""
    needed = set(_letters(result)).union(*(_letters(term) for term in terms[2:]))
    order = dict.fromkeys(_letters(terms[0]) + _letters(terms[1]))
    kept = "".join(letter for letter in order if letter in needed)
    values[:2] = [emit.op("Einsum", *values[:2], equation=f"{terms[0]},{terms[1]}->{kept}")]
    terms[:2] = [kept]


def _final(emit: Emit, values: list[str], terms: list[str], result: str) -> str:
    """The last contraction; a scalar is the sum over what a matrix product leaves."""
    if len(terms) == 1 and terms[0] == result:
        return emit.op("Identity", values[0])
    if result:
        return emit.op("Einsum", *values, equation=f"{','.join(terms)}->{result}")
    if len(terms) == 2:
        alone = [letter for place in range(2) for letter in _alone(terms, result, place)]
        kept = "".join(alone) or terms[0]
        values = [emit.op("Einsum", *values, equation=f"{','.join(terms)}->{kept}")]
    return emit.op("ReduceSum", values[0], keepdims=0)


@rule("Einsum", name="einsum-batches")
def einsum_batches(graph: Graph, node: Node) -> Outcome:
    """Two or more batch indices that do not lead both operands in one order: Transpose until they do."""
    equation = str(node.attr("equation")).replace(" ", "")
    terms, result = _terms(equation)
    if len(terms) != 2 or "->" not in equation or _ALL in equation or any(map(_repeated, terms)):
        return None
    batch = [letter for letter in result if letter in terms[0] and letter in terms[1]]
    leading = [set(term[: len(batch)]) == set(batch) and term[: len(batch)] == terms[0][: len(batch)] for term in terms]
    if len(batch) < 2 or all(leading):
        return None
    emit, values, turned = Emit(graph, node), [], []
    for value, term in zip(node.inputs, terms, strict=True):
        rest = [letter for letter in term if letter not in batch]
        order = [*batch, *sorted(rest, key=lambda letter: letter not in result)]
        turned.append("".join(order))
        values.append(transpose(emit, value, [term.index(letter) for letter in order]))
    y = emit.op("Einsum", *values, equation=f"{','.join(turned)}->{result}")
    return emit.rewrite({node.outputs[0]: y}, f"Einsum '{equation}' with its batch first")


RULES = (einsum, einsum_batches)
