"""What is in a .mnn file, in JSON's types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphkit.mnn.document.summary import Size, Summary


def inspect_mnn(path: Path) -> dict[str, Any]:
    """Describe a .mnn file, with what is wrong with it. Raises ModelError when it cannot be read."""
    from graphkit.mnn.document.files import read
    from graphkit.mnn.document.summary import summarize
    from graphkit.mnn.document.validate import validate

    doc = read(path)
    found = summarize(doc)
    size = path.stat().st_size
    arrays = found.arrays
    return {
        "file": str(path),
        "format": "mnn",
        "version": found.version,
        "bytes": size,
        "settings": dict(found.settings),
        "inputs": [
            {
                "name": item.name,
                "dtype": item.dtype,
                "shape": [None if dim < 0 else dim for dim in item.shape],
                "layout": item.layout,
            }
            for item in found.inputs
        ],
        "outputs": [{"name": name} for name in found.outputs],
        "nodes": found.op_total,
        "ops": dict(found.ops),
        "subgraphs": dict(found.subgraphs),
        "weights": {
            "tensors": arrays.arrays,
            "bytes": arrays.nbytes,
            "by_kind": _sizes(found.by_kind),
            "by_dtype": _sizes(found.by_dtype),
            "by_operator": _sizes(found.by_operator),
        },
        "names": {"bytes": found.texts},
        "structure": {"bytes": max(0, size - found.texts - (arrays.nbytes - found.external))},
        "quantized": [asdict(layer) for layer in found.quantized],
        "external": _external(path, found),
        "unknown": list(found.unknown),
        "problems": [asdict(problem) for problem in validate(doc)],
    }


def _sizes(sizes: Mapping[str, Size]) -> dict[str, dict[str, int]]:
    return {name: {"tensors": size.arrays, "bytes": size.nbytes} for name, size in sizes.items()}


def _external(path: Path, found: Summary) -> list[dict[str, Any]]:
    """The file of weights by its place beside the model; `bytes` is None when it is missing."""
    if found.weights is not None:
        name = os.path.relpath(found.weights.absolute(), path.absolute().parent)
        return [{"file": name, "bytes": found.weights.stat().st_size, "used": found.external}]
    if found.external:
        return [{"file": f"{path.name}.weight", "bytes": None, "used": found.external}]
    return []
