"""Convolutions: sizes of weights and biases against kernels, groups and channels."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.mnn.document._valid_external import Outside, reads_outside
from graphkit.mnn.document._valid_problem import Problem, error, warning
from graphkit.mnn.document._valid_quantized import Shape, check_quantized
from graphkit.mnn.document.tree import Table

_DEPTHWISE = ("ConvolutionDepthwise", "DeconvolutionDepthwise")
_WEIGHTED = ("Convolution", "Deconvolution", *_DEPTHWISE)
_POSITIVE = ("kernelX", "kernelY", "strideX", "strideY", "dilateX", "dilateY", "group")


def check_convolution(where: str, kind: str, inputs: int, conv: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of a Convolution2D.

    where: its path. kind: the operator's type. inputs: how many tensors the operator reads; with more than one its
    weights are tensors too.
    """
    common = conv["common"]
    if common is None:
        yield error(f"{where}.common", "is missing: MNN crashes", "give it kernelX, kernelY, outputCount, …")
        return
    problems = list(_common(f"{where}.common", common, kind, inputs))
    yield from problems
    if not problems and inputs == 1 and kind in _WEIGHTED:
        yield from _weights(where, conv, _shape(kind, common), outside)


def _common(where: str, common: Table, kind: str, inputs: int) -> Iterator[Problem]:
    for field in _POSITIVE:
        if common[field] < 1:
            yield error(f"{where}.{field}", f"{common[field]} is not possible", "it is 1 or more")
    if kind in _WEIGHTED and inputs == 1 and common["outputCount"] < 1:
        yield error(f"{where}.outputCount", f"{common['outputCount']} is not possible", "it is the number of biases")
    if common["group"] > 1 and common["outputCount"] % common["group"]:
        message = f"{common['group']} does not divide outputCount {common['outputCount']}"
        yield error(f"{where}.group", message, "every group computes as many channels")
    if common["inputCount"] < 0:
        yield error(f"{where}.inputCount", f"{common['inputCount']} is not possible", "it counts the channels read")
    pads = common["pads"]
    if pads is not None and 0 < len(pads) < (2 if kind.startswith("Deconvolution") else 4):
        yield error(f"{where}.pads", f"has {len(pads)} numbers", "it holds top, left, bottom and right")


def _shape(kind: str, common: Table) -> Shape:
    """How many weights the convolution can have.

    A grouped convolution counts in inputCount either all channels or (from TensorFlow) those of one group: MNN
    decides by the input. An inputCount of 0 leaves it open.
    """
    outputs, channels, group = int(common["outputCount"]), int(common["inputCount"]), int(common["group"])
    kernel = int(common["kernelX"]) * int(common["kernelY"])
    if kind in _DEPTHWISE:
        return Shape(outputs, outputs * kernel, frozenset((outputs * kernel,)))
    whole = outputs * channels * kernel
    return Shape(outputs, outputs * kernel, frozenset((whole, whole // group)) if channels else frozenset())


def _weights(where: str, conv: Table, shape: Shape, outside: Outside) -> Iterator[Problem]:
    yield from _grouped(where, conv, shape)
    if conv["quanParameter"] is not None:
        yield from check_quantized(where, conv, shape, outside)
    elif reads_outside(conv):
        yield from _outside(where, conv, shape, outside)
    elif conv["symmetricQuan"] is None or conv["symmetricQuan"]["weight"] is None:
        yield from _array(where, conv, shape)
    if not reads_outside(conv):
        yield from _bias(where, conv, shape)


def _grouped(where: str, conv: Table, shape: Shape) -> Iterator[Problem]:
    """Which of the two meanings of inputCount holds is told by the input alone; converters write the first."""
    common, weight = conv["common"], conv["weight"]
    if weight is not None and len(shape.counts) == 2 and len(weight) == max(shape.counts):
        group, channels = common["group"], common["inputCount"]
        message = f"is {group} with weights for {group} × {channels} channels"
        hint = f"if it reads {channels} channels, its weights are {group} times as many as it has"
        yield warning(f"{where}.common.group", message, hint)


def _outside(where: str, conv: Table, shape: Shape, outside: Outside) -> Iterator[Problem]:
    yield from outside.sizes(where, conv, {2: 4 * shape.outputs})
    size = conv.ints("external")[1]
    if size >= 0 and not shape.fits(size // 4):
        message = f"says {size} bytes of weights where common asks for {shape.words(4)}"
        yield error(f"{where}.external[1]", message, "correct common or the size")


def _array(where: str, conv: Table, shape: Shape) -> Iterator[Problem]:
    weight = conv["weight"]
    if weight is None:
        yield error(f"{where}.weight", "is missing: MNN refuses the convolution or crashes", "give it weights")
    elif not shape.fits(len(weight)):
        message = f"holds {len(weight)} elements where common asks for {shape.words()}"
        yield error(f"{where}.weight", message, "correct kernelX, kernelY, group, inputCount or outputCount")


def _bias(where: str, conv: Table, shape: Shape) -> Iterator[Problem]:
    bias = conv["bias"]
    if bias is None and conv["symmetricQuan"] is None:
        message = "is missing: MNN reads one for each output channel without looking"
        yield error(f"{where}.bias", message, f"give it {shape.outputs} zeros")
    elif bias is not None and len(bias) != shape.outputs:
        message = f"holds {len(bias)} elements where outputCount is {shape.outputs}"
        yield error(f"{where}.bias", message, "MNN takes the number of output channels from it: make them equal")


def check_convolution3d(where: str, inputs: int, conv: Table) -> Iterator[Problem]:
    """Problems of a Convolution3D: its sizes come by threes. `inputs` as in `check_convolution`."""
    common = conv["common"]
    if common is None:
        yield error(f"{where}.common", "is missing: MNN crashes", "give it kernels, strides, outputCount, …")
        return
    for field in ("kernels", "strides", "dilates"):
        sizes = common.ints(field)
        if len(sizes) != 3 or min(sizes) < 1:
            yield error(f"{where}.common.{field}", f"is {list(sizes)}", "it holds depth, height and width, from 1 up")
    outputs, bias = int(common["outputCount"]), conv["bias"]
    if inputs == 1 and bias is not None and len(bias) != outputs:
        yield error(f"{where}.bias", f"holds {len(bias)} elements where outputCount is {outputs}", "make them equal")
