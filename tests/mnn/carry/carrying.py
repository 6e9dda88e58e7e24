"""Models with quantized weights, and the codes that a .mnn file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from graphkit.mnn.document import read
from graphkit.mnn.document.quantized import decode, scheme_of
from graphkit.mnn.document.tree import Table
from graphkit.model import Model
from graphkit.testing import parse

Array = npt.NDArray[Any]


def model(text: str, constants: Mapping[str, Any], *, opset: int = 21) -> Model:
    """A model in ONNX's text form with constants by name."""
    proto = parse(text, opset=opset, ir_version=10, imports={"com.microsoft": 1}).proto
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return Model.from_proto(proto)


def codes(*shape: int, dtype: Any = np.int8, seed: int = 0) -> Array:
    """Random codes over the whole range of a type, also of 4 and 2 bits."""
    kind = np.dtype(dtype)
    bits = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}.get(kind.name, kind.itemsize * 8)
    low = 0 if "uint" in kind.name else -(1 << (bits - 1))
    return np.random.default_rng(seed).integers(low, low + (1 << bits), shape).astype(kind)


def scales(*shape: int, seed: int = 1) -> Array:
    """Random positive scales, float32."""
    return (np.random.default_rng(seed).random(shape) * 0.01 + 0.001).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Held:
    """What a layer of a .mnn file holds: codes int8 and weights float32 in the file's order, scales, the table."""

    codes: Array
    values: Array
    scale: Array
    bits: int
    table: Table


def held(path: Path) -> dict[str, Held]:
    """The quantized layers of a .mnn file by name, decoded by the reader of documents."""
    found = {}
    for graph in read(path).graphs():
        for op in graph.ops:
            main = op["main"]
            if not isinstance(main, Table) or main.type.name != "Convolution2D" or main["quanParameter"] is None:
                continue
            quan, common = main["quanParameter"], main["common"]
            half = quan.label("scaleStorage") == "FP16"
            alpha = quan["alphaFp16"].view("<f2") if half else quan["alpha"]
            scheme = scheme_of(quan, alpha.size, common["outputCount"], common["inputCount"])
            assert scheme is not None
            decoded = decode(quan, scheme, quan["buffer"], alpha)
            assert decoded is not None
            count = decoded.count
            found[op["name"]] = Held(
                decoded.codes(0, count), decoded.values(0, count), decoded.scale, scheme.bits, quan
            )
    return found
