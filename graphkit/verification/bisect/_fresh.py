"""Other numbers of the same kind: for weights and inputs that a fault does not depend on.

A drawn array has the shape and type of the old one, about its mean and spread, and stays between its smallest and
largest value, so that a variance stays positive and a code stays a code. Nothing else of the old values is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from graphkit._measure import kind_of
from graphkit.model import Model, tensors
from graphkit.proof import Feeds
from graphkit.verification.bisect._values import Array
from graphkit.weights import Weight, make_weight

_SUMMED = 1e150  # larger numbers, squared, are infinite
_CODES = frozenset(["int8", "uint8", "int4", "uint4", "int2", "uint2"])


def drawn(array: Array, rng: np.random.Generator) -> Array:
    """Random numbers like those of an array (floats, or codes of at most 8 bits)."""
    made = _normal(array, rng) if kind_of(array) == "float" else _uniform(array, rng)
    return made.astype(array.dtype).reshape(array.shape)


def _normal(array: Array, rng: np.random.Generator) -> Array:
    """As many floats about the mean; spread and mean are those of the array over its largest value, which may be too
    large to be summed."""
    values = np.asarray(array, np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    low, high = finite.min(), finite.max()
    size = max(abs(low), abs(high)) if max(abs(low), abs(high)) > _SUMMED else 1.0
    finite = finite / size
    made = rng.normal(finite.mean(), finite.std(), array.shape)
    return np.asarray(np.clip(np.clip(made, low / size, high / size) * size, low, high))


def _uniform(array: Array, rng: np.random.Generator) -> Array:
    """As many integers, in a type that holds them: float64 does not hold those of 64 bits."""
    if not array.size:
        return array
    wide: Any = np.uint64 if array.dtype == np.uint64 else np.int64
    values = array.astype(wide)
    return np.asarray(rng.integers(values.min(), values.max(), array.shape, dtype=wide, endpoint=True))


def is_data(array: Array) -> bool:
    """True for what may be drawn: more than one float or 8-bit code. Single numbers are parameters of operators, wider
    integers are shapes and indices."""
    return array.size > 1 and (kind_of(array) == "float" or array.dtype.name in _CODES)


def data_names(model: Model) -> list[str]:
    """Names of the weights that may be drawn, subgraphs and Constant nodes included.

    Where a name is empty or taken (in Constant nodes), the number among all tensors makes it one of its own.
    """
    return [name for name, weight in _weights(model) if is_data(weight.array())]


def with_fresh_weights(model: Model, keep: Collection[str] = (), seed: int = 0) -> Model:
    """The model with all data drawn anew, except for the weights of these names (see `data_names`)."""
    rng = np.random.default_rng(seed)
    made = {
        name: drawn(weight.array(), rng)
        for name, weight in _weights(model)
        if name not in keep and is_data(weight.array())
    }
    return replaced(model, lambda name, array: made.get(name))


def replaced(model: Model, change: Callable[[str, Array], Array | None]) -> Model:
    """The model with other values for some tensors; `change` says for a name and its values which (None: as it is)."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    other = Model(proto, model.store)
    for tensor, (name, weight) in zip(tensors(proto), _weights(other), strict=True):
        if tensor.data_type == TensorProto.STRING:
            continue
        array = change(name, weight.array())
        if array is not None:
            tensor.CopyFrom(make_weight(tensor.name, array, model.store).proto)
    return other


def _weights(model: Model) -> list[tuple[str, Weight]]:
    found: dict[str, Weight] = {}
    for number, tensor in enumerate(tensors(model.proto)):
        name = tensor.name if tensor.name and tensor.name not in found else f"{tensor.name}#{number}"
        found[name] = Weight(tensor, model.store)
    return list(found.items())


def fresh_feeds(feeds: Feeds, seed: int = 0, *, integers: bool = False) -> dict[str, Array]:
    """Inputs drawn anew: floats, and with `integers` also those, between their smallest and largest."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, array in feeds.items():
        array = np.asarray(array)
        floats = kind_of(array) == "float"
        wide = integers and array.dtype.kind in "iu" and array.size > 0
        made[name] = drawn(array, rng) if (floats and array.size) or wide else array
    return made
