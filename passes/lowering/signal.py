"""DFT, STFT and window functions, which MNN 3.6 does not have: products with constant matrices, or formulas.

Methods: ONNX Operators, DFT, STFT, HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, np_dtype
from graphkit.rewrite import Outcome, Refusal, rule

_LONGEST = 4096  # points; the matrices have the square of it
_MOST_FRAMES = 1 << 20  # gathered samples of an STFT
_WINDOWS = {  # coefficients of cos 0, cos 2πn/N, cos 4πn/N
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@dataclass(frozen=True)
class _Transform:
    """A Fourier transform of `size` points that are there, zeros up to `points`, `kept` of the results."""

    size: int
    points: int
    kept: int
    inverse: bool
    to_real: bool = False  # an inverse of the half spectrum of a real signal

    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """Real and imaginary part, size × kept, for a row of samples from the left."""
        n, k = np.arange(self.size)[:, None], np.arange(self.kept)[None, :]
        angle = (2 if self.inverse else -2) * np.pi * ((n * k) % self.points) / self.points
        scale = 1 / self.points if self.inverse else 1.0
        weight: np.ndarray = np.ones((self.size, 1))
        if self.to_real:  # the other half of the spectrum is the conjugate of this one
            mirrored = (np.arange(self.size) > 0) & (2 * np.arange(self.size) < self.points)
            weight = 1.0 + mirrored[:, None]
        return np.cos(angle) * scale * weight, np.sin(angle) * scale * weight


def _matrix(given: _Transform, complex_input: bool) -> np.ndarray:
    """One matrix from samples (of 1 or 2 parts, the part last) to results (of 1 or 2 parts)."""
    real, imaginary = given.matrices()
    rows = [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][: 1 + complex_input]
    table = np.stack(rows, 1)  # size, part in, kept, part out
    if given.to_real:
        table = table[..., :1]
    return table.reshape(table.shape[0] * table.shape[1], -1)


@rule("DFT", name="dft")
def dft(graph: Graph, node: Node) -> Outcome:
    """DFT of a known length as one product with a constant matrix."""
    x, shape, dtype = node.inputs[0], graph.shape(node.inputs[0]), graph.dtype(node.inputs[0])
    axis = _dft_axis(graph, node)
    if shape is None or dtype not in FLOATS or axis is None or shape[-1] not in (1, 2):
        return Refusal("dft", node.label, "its axis or the shape of its input is unknown")
    axis = axis % len(shape)
    size, points = shape[axis], graph.scalar(node.input(1)) if node.input(1) else shape[axis]
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    to_real = inverse and onesided
    if to_real and not node.input(1) and isinstance(size, int):
        points = 2 * (size - 1)
    if not isinstance(size, int) or points is None or not isinstance(points, int | float) or points > _LONGEST:
        return Refusal("dft", node.label, f"the length is not known, or over {_LONGEST}")
    points = int(points)
    size = min(size, points // 2 + 1 if to_real else points)
    kept = points // 2 + 1 if onesided and not inverse else points
    given = _Transform(size, points, kept, inverse, to_real)
    emit = Emit(graph, node)
    y = _transformed(emit, x, (axis, len(shape)), given, shape[-1] == 2, dtype)
    return emit.rewrite({node.outputs[0]: y}, "DFT as a product with a constant matrix")


def _dft_axis(graph: Graph, node: Node) -> int | None:
    """The axis: an attribute below opset 20, an input from there on."""
    if graph.opset() < 20:
        return int(node.attr("axis", 1))
    if not node.input(2):
        return -2
    value = graph.scalar(node.input(2))
    return None if value is None else int(value)


def _transformed(emit: Emit, x: str, place: tuple[int, int], given: _Transform, complex_input: bool, dtype: int) -> str:
    """Transform along one axis of a value of this rank, whose last axis holds the parts of a number."""
    axis, rank = place
    order = [*(dim for dim in range(rank - 1) if dim != axis), axis, rank - 1]
    moved = order != list(range(rank))
    x = emit.slice(x, axis, 0, given.size)
    x = emit.op("Transpose", x, perm=order) if moved else x
    table = _matrix(given, complex_input)
    x = emit.op("Reshape", x, emit.ints(*[0] * (rank - 2), table.shape[0]))
    y = emit.op("MatMul", x, emit.const(table.astype(np_dtype(dtype)), "fourier"))
    y = emit.op("Reshape", y, emit.ints(*[0] * (rank - 2), given.kept, 1 if given.to_real else 2))
    return emit.op("Transpose", y, perm=[order.index(dim) for dim in range(rank)]) if moved else y


@rule("STFT", name="stft")
def stft(graph: Graph, node: Node) -> Outcome:
    """STFT of a signal of known length: frames are gathered, the window is in the matrix when it is constant."""
    signal, step, window = node.inputs[0], graph.scalar(node.inputs[1]), node.input(2)
    shape, dtype = graph.shape(signal), graph.dtype(signal)
    frame = graph.scalar(node.input(3)) if node.input(3) else None
    if frame is None and window:
        sizes = graph.shape(window)
        frame = sizes[0] if sizes and isinstance(sizes[0], int) else None
    if shape is None or dtype not in FLOATS or step is None or frame is None or not isinstance(shape[1], int):
        return Refusal("stft", node.label, "the length of the signal, the frame or the step is unknown")
    parts = shape[2] if len(shape) == 3 else 1
    frame, step = int(frame), int(step)
    count = 1 + (shape[1] - frame) // step
    if frame > _LONGEST or count < 1 or count * frame > _MOST_FRAMES or parts not in (1, 2):
        return Refusal("stft", node.label, f"{count} frames of {frame} samples")
    emit = Emit(graph, node)
    starts = np.arange(count)[:, None] * step + np.arange(frame)[None, :]
    frames = emit.op("Gather", signal, emit.const(starts.astype(np.int64), "frames"), axis=1)
    kept = frame // 2 + 1 if node.attr("onesided", 1) else frame
    table = _matrix(_Transform(frame, frame, kept, False), parts == 2)
    frames = emit.op("Reshape", frames, emit.ints(0, count, frame * parts))
    weights = graph.constant(window) if window else None
    if weights is not None:
        table = table * np.repeat(weights.astype(np.float64), parts)[:, None]
    elif window:
        frames = emit.op("Mul", frames, _repeated(emit, window, parts, frame))
    y = emit.op("MatMul", frames, emit.const(table.astype(np_dtype(dtype)), "fourier"))
    y = emit.op("Reshape", y, emit.ints(0, count, kept, 2))
    return emit.rewrite({node.outputs[0]: y}, "STFT as a product with a constant matrix")


def _repeated(emit: Emit, window: str, parts: int, frame: int) -> str:
    """The window for each part of a number."""
    if parts == 1:
        return window
    twice = emit.op("Concat", *[emit.unsqueeze(window, 1)] * parts, axis=1)
    return emit.op("Reshape", twice, emit.ints(frame * parts))


@rule(*_WINDOWS, name="window")
def window(graph: Graph, node: Node) -> Outcome:
    """A window of constant size is a constant; else its sum of cosines over Range."""
    size, periodic = graph.scalar(node.inputs[0]), bool(node.attr("periodic", 1))
    dtype = int(node.attr("output_datatype", TensorProto.FLOAT))
    if dtype not in FLOATS:
        return Refusal("window", node.label, "windows are of floats")
    emit, terms = Emit(graph, node), _WINDOWS[node.op]
    if size is not None:
        length = max(size if periodic else size - 1, 1)
        angle = 2 * np.pi * np.arange(int(size)) / length
        values = sum(term * np.cos(k * angle) for k, term in enumerate(terms))
        y = emit.op("Identity", emit.const(np.asarray(values, np_dtype(dtype)), "window"))
    else:
        y = _window_formula(emit, node, terms, periodic)
        y = emit.cast(y, dtype) if dtype != TensorProto.FLOAT else y
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} by its formula")


def _window_formula(emit: Emit, node: Node, terms: tuple[float, float, float], periodic: bool) -> str:
    """The window in float32 for a size that is computed."""
    rank = emit.graph.rank(node.inputs[0])
    size = node.inputs[0] if rank == 0 else emit.op("Reshape", node.inputs[0], emit.const(np.zeros(0, np.int64)))
    size = emit.cast(size, TensorProto.FLOAT)
    numbers = emit.op("Range", emit.number(0), size, emit.number(1))
    length = size if periodic else emit.op("Sub", size, emit.number(1))
    turn = emit.op("Mul", emit.op("Div", numbers, length), emit.number(2 * np.pi))
    total = emit.op("Add", emit.op("Mul", emit.op("Cos", turn), emit.number(terms[1])), emit.number(terms[0]))
    if not terms[2]:
        return total
    second = emit.op("Cos", emit.op("Mul", turn, emit.number(2)))
    return emit.op("Add", total, emit.op("Mul", second, emit.number(terms[2])))


@rule("MelWeightMatrix", name="mel-weights")
def mel_weights(graph: Graph, node: Node) -> Outcome:
    """MelWeightMatrix of constants is a constant, as ONNX's reference evaluator computes it."""
    arrays = [graph.constant(value) for value in node.inputs]
    if any(array is None for array in arrays):
        return Refusal("mel-weights", node.label, "its inputs are not constant, and MNN has no such operator")
    names = [f"i{k}" for k in range(len(arrays))]
    alone = onnx.helper.make_node("MelWeightMatrix", names, ["y"], **node.attrs)
    dtype = int(node.attr("output_datatype", TensorProto.FLOAT))
    inputs = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    result = onnx.helper.make_tensor_value_info("y", dtype, None)
    body = onnx.helper.make_graph([alone], "mel", inputs, [result])
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", graph.opset())])
    (value,) = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    emit = Emit(graph, node)
    y = emit.op("Identity", emit.const(np.asarray(value, np_dtype(dtype)), "mel"))
    return emit.rewrite({node.outputs[0]: y}, "MelWeightMatrix of constants")


RULES = (dft, stft, window, mel_weights)
