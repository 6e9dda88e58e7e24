"""What readers of calibration data share: what a model takes, and a random choice of samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from graphkit.errors import ModelError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import InputSpec

T = TypeVar("T")
Array = npt.NDArray[Any]
Sample = dict[str, Array]
Found = tuple[list[tuple[Path, Sample]], str]  # samples, each with the file it came from, and a note


def input_specs(model: Model) -> tuple[InputSpec, ...]:
    """The inputs that must be fed. Raises ModelError for an input that is no tensor or has no rank."""
    graph = Graph.of(model)
    specs = []
    for name in graph.inputs:
        if name in graph.initializers:
            continue
        found = graph.type(name)
        if found is None or not found.dtype or found.shape is None:
            raise ModelError(f"input '{name}' is no tensor of a known type and rank", file=model.path)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(found.dtype))
        specs.append(InputSpec(name, dtype, found.shape))
    if not specs:
        raise ModelError("has no inputs, so nothing can be calibrated", file=model.path)
    return tuple(specs)


def choose(items: Sequence[T], choice: tuple[int | None, int]) -> list[T]:
    """At most `limit` items, at random by `seed`, in their order; `choice` is (limit, seed)."""
    limit, seed = choice
    if limit is None or len(items) <= limit:
        return list(items)
    picked = np.random.default_rng(seed).permutation(len(items))[:limit]
    return [items[i] for i in sorted(picked.tolist())]
