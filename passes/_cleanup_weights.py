"""Removal of unused and of equal initializers, and of graph inputs that only exist for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from graphkit._body import FREE_INITIALIZERS
from graphkit.graph import Graph
from graphkit.rewrite import Change
from graphkit.weights import Weight

_SAMPLE = 4096  # bytes at each end that are compared before a weight is read whole
_CHUNK = 1 << 24


def free_initializers(graph: Graph, *, all_versions: bool) -> list[Change]:
    """Take initializers out of the graph inputs, where the old format put them; they become constants."""
    old = graph.model.proto.ir_version < FREE_INITIALIZERS
    if not (old or all_versions):
        return []
    changes: list[Change] = []
    what = "make the default value of an input a constant"
    for name in [name for name in graph.initializers if name in graph.input_infos]:
        if not graph.root.gate(name, what):
            break
        graph.remove_input(name)
        changes.append(Change(name, what))
    return changes


def remove_unused_initializers(graph: Graph) -> list[Change]:
    """Remove initializers that nobody uses and no input shares its name with."""
    changes: list[Change] = []
    what = "remove unused initializer"
    for inner in graph.walk():
        for name in list(inner.initializers):
            if inner.is_used(name) or name in inner.input_infos:
                continue
            if not graph.root.gate(name, what):
                return changes
            inner.remove_initializer(name)
            changes.append(Change(name, what))
    return changes


def remove_unused_inputs(graph: Graph) -> list[Change]:
    """Remove inputs of the model that nobody uses, and their default values."""
    changes: list[Change] = []
    for name in list(graph.input_infos):
        if graph.is_used(name):
            continue
        if not graph.root.gate(name, "remove unused input"):
            break
        graph.remove_input(name)
        if name in graph.initializers:
            graph.remove_initializer(name)
        changes.append(Change(name, "remove unused input"))
    return changes


def merge_initializers(graph: Graph) -> list[Change]:
    """Let one of several equal initializers (type, shape, bytes) stand for all, in each graph."""
    changes: list[Change] = []
    for inner in graph.walk():
        for group in _equal_groups(inner):
            keep = next((w for w in group if inner.is_output(w.name)), group[0])
            for weight in group:
                if weight is keep or inner.is_output(weight.name):
                    continue
                what = f"use the equal initializer '{keep.name}' instead"
                if not graph.root.gate(weight.name, what):
                    return changes
                inner.replace_all_uses(weight.name, keep.name)
                inner.remove_initializer(weight.name)
                changes.append(Change(weight.name, what))
    return changes


def _equal_groups(graph: Graph) -> Iterator[list[Weight]]:
    """Groups of equal weights. Weights are read only as far as they look equal."""
    names = [name for name in graph.initializers if name not in graph.input_infos]
    weights = [graph.initializers[name] for name in names]
    small = [weight for weight in weights if weight.proto.raw_data]
    yield from _group(small, lambda w: (w.data_type, w.dims, w.proto.raw_data))
    large = [weight for weight in weights if not weight.proto.raw_data]
    for typed in _group(large, lambda w: (w.data_type, w.dims)):
        for sampled in _group(typed, _sample):
            for hashed in _group(sampled, _digest):
                yield from _verified(hashed)


def _group(weights: list[Weight], key: Callable[[Weight], Hashable]) -> list[list[Weight]]:
    groups: dict[Hashable, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(key(weight), []).append(weight)
    return [group for group in groups.values() if len(group) > 1]


def _bytes(weight: Weight) -> memoryview:
    if weight.ref is not None:
        return weight.store.read(weight.ref)
    array = weight.array()
    if array.dtype.kind in "OUS":
        return memoryview(repr(array.tolist()).encode())
    return memoryview(array.tobytes())


def _sample(weight: Weight) -> bytes:
    data = _bytes(weight)
    return bytes(data[:_SAMPLE]) + bytes(data[-_SAMPLE:])


def _digest(weight: Weight) -> bytes:
    data, digest = _bytes(weight), hashlib.blake2b()
    for start in range(0, len(data), _CHUNK):
        digest.update(data[start : start + _CHUNK])
    return digest.digest()


def _verified(weights: list[Weight]) -> Iterator[list[Weight]]:
    """Equal digests are believed only when the bytes agree."""
    first = weights[0]
    same = [weight for weight in weights[1:] if _equal(first, weight)]
    if same:
        yield [first, *same]


def _equal(first: Weight, second: Weight) -> bool:
    if first.ref is not None and first.ref == second.ref:
        return True
    one, two = np.frombuffer(_bytes(first), np.uint8), np.frombuffer(_bytes(second), np.uint8)
    return bool(np.array_equal(one, two))
