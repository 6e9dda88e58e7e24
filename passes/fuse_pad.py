"""Pad in front of a convolution or pool → the pads of that node, where the border means the same there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, apply_rules, rule

_NAME = "pad"
_NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Softplus")


@dataclass(frozen=True)
class FusePad:
    """Move a constant Pad of spatial axes into the `pads` of the Conv or pool behind it.

    Rewrites Pad by zero before Conv; before AveragePool, which then counts the border as it did
    (`count_include_pad`); and before MaxPool when the border cannot win: padded by −∞, or by zero where the
    input cannot be negative (behind Relu and the like). Pads as attribute or input, `axes` included.

    Refuses pads that are not constant, negative, or of batch and channel axes, other modes and values,
    `auto_pad` SAME, pools with `ceil_mode`, with pads as large as the kernel or with their indices in use, an
    AveragePool that has own pads it does not count, and one with uneven pads, which MNN 3.6 computes wrongly.
    """

    name: ClassVar[str] = "fuse-pad"
    summary: ClassVar[str] = "constant Pad goes into the pads of Conv, AveragePool and MaxPool"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, (_pad,))


@rule("Conv", "AveragePool", "MaxPool", name=_NAME)
def _pad(graph: Graph, node: Node) -> Outcome:
    pad = _match.made_by(graph, node.inputs[0], "Pad")
    if pad is None:
        return None
    rank = graph.rank(pad.inputs[0]) or graph.rank(node.inputs[1] if node.op_type == "Conv" else pad.outputs[0])
    pads = None if rank is None else _pads_of(graph, pad, rank)
    if pads is None or rank is None:
        return Refusal(_NAME, node.label, f"the pads of '{pad.label}' or the rank are not known")
    spatial = [*pads[2:rank], *pads[rank + 2 :]]
    reason = _why_not_pad(graph, pad, node, pads, spatial) or _WHY_NOT[node.op_type](graph, node, pad, spatial)
    if reason is not None:
        return Refusal(_NAME, node.label, reason)
    own = _own_pads(node, len(spatial))
    attrs = {key: value for key, value in node.attrs.items() if key != "auto_pad"}
    attrs["pads"] = [a + b for a, b in zip(own, spatial, strict=True)]
    if node.op_type == "AveragePool":
        attrs["count_include_pad"] = 1
    build = Builder(graph, node)
    y = build.op(node.op_type, pad.inputs[0], *node.inputs[1:], **attrs)
    return build.rewrite({node.outputs[0]: y}, f"Pad into {node.op_type}")


def _pads_of(graph: Graph, pad: Node, rank: int) -> list[int] | None:
    """Pads of all axes, begins then ends; None when they are not constant."""
    given = pad.attr("pads")
    if given is None:
        array = graph.constant(pad.input(1))
        given = None if array is None else array.reshape(-1).tolist()
    axes: Sequence[int] = range(rank)
    if pad.input(3):
        listed = graph.constant(pad.input(3))
        axes = [] if listed is None else [int(axis) % rank for axis in listed.reshape(-1)]
    if given is None or len(given) != 2 * len(axes) or not axes:
        return None
    pads = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        pads[axis], pads[axis + rank] = int(given[index]), int(given[index + len(axes)])
    return pads


def _border(graph: Graph, pad: Node) -> float | None:
    """The number that a Pad fills with; None when it is not constant."""
    if pad.attr("value") is not None:
        return float(pad.attr("value"))
    return graph.scalar(pad.input(2)) if pad.input(2) else 0.0


def _own_pads(node: Node, count: int) -> list[int]:
    return [0] * count if node.attr("auto_pad", "NOTSET") == "VALID" else node.attr("pads", [0] * count)


def _why_not_pad(graph: Graph, pad: Node, node: Node, pads: Sequence[int], spatial: Sequence[int]) -> str | None:
    """What about the Pad, or the node's way of padding, stands in the way."""
    if pad.attr("mode", "constant") != "constant":
        return f"'{pad.label}' pads in mode {pad.attr('mode')}"
    if min(pads) < 0:
        return f"'{pad.label}' crops (negative pads)"
    if sum(pads) != sum(spatial):
        return f"'{pad.label}' pads the batch or channel axis"
    if _border(graph, pad) is None:
        return f"the value that '{pad.label}' fills with is not constant"
    auto = node.attr("auto_pad", "NOTSET")
    return f"its auto_pad is {auto}" if auto.startswith("SAME") else None


def _why_not_conv(graph: Graph, node: Node, pad: Node, spatial: Sequence[int]) -> str | None:
    border = _border(graph, pad)
    return f"'{pad.label}' fills with {border:g}, Conv with zero" if border else None


def _why_not_pool(node: Node, spatial: Sequence[int]) -> str | None:
    kernel = node.attr("kernel_shape", [])
    if node.attr("ceil_mode", 0):
        return "with ceil_mode the output's size would change"
    if any(dilation != 1 for dilation in node.attr("dilations", [])):
        return "it is dilated"
    total = [a + b for a, b in zip(spatial, _own_pads(node, len(spatial)), strict=True)]
    if any(size >= kernel[index % len(kernel)] for index, size in enumerate(total)):
        return "the pads would be as large as the kernel"
    return None


def _why_not_average(graph: Graph, node: Node, pad: Node, spatial: Sequence[int]) -> str | None:
    own, half = _own_pads(node, len(spatial)), len(spatial) // 2
    total = [a + b for a, b in zip(spatial, own, strict=True)]
    if _border(graph, pad):
        return f"'{pad.label}' fills with something other than zero"
    if any(own) and not node.attr("count_include_pad", 0):
        return "it has pads of its own that it does not count"
    if total[:half] != total[half:]:
        return "MNN computes AveragePool with uneven counted pads wrongly"
    return _why_not_pool(node, spatial)


def _why_not_max(graph: Graph, node: Node, pad: Node, spatial: Sequence[int]) -> str | None:
    border = _border(graph, pad)
    lowest = border is not None and border <= np.finfo(np.float32).min
    above = graph.producer(pad.inputs[0])
    if not lowest and not (border == 0 and _match.is_op(above, *_NOT_NEGATIVE)):
        return f"the border of {border:g} could be the maximum"
    if len(node.outputs) > 1:
        return "its indices count the padded axes"
    return _why_not_pool(node, spatial)


_WHY_NOT = {"Conv": _why_not_conv, "AveragePool": _why_not_average, "MaxPool": _why_not_max}
