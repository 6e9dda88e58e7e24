"""Ensembles of decision trees as matrix products (the GEMM strategy of Nakandala et al., Hummingbird, OSDI 2020).

All comparisons of all trees are made at once; a leaf is reached when the answers on its path are the right ones,
which a product with the matrix of paths counts exactly. MNN 3.6 has no operator for trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_LARGEST = 1 << 24  # elements of the matrix of paths


@dataclass(frozen=True)
class _Test:
    """One inner node: the feature, how it is compared, and with what (several numbers for MEMBER)."""

    feature: int
    mode: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class _Leaf:
    """A leaf: the tests on its path with the answer each must give, and (target, weight) pairs."""

    path: tuple[tuple[int, bool], ...]
    weights: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Forest:
    tests: tuple[_Test, ...]
    leaves: tuple[_Leaf, ...]
    trees: int
    targets: int


@rule("ai.onnx.ml::TreeEnsemble", name="tree-ensemble")
def tree_ensemble(graph: Graph, node: Node) -> Outcome:
    """TreeEnsemble (ai.onnx.ml 5) with sums or averages as comparisons and two products."""
    problem = _problem(graph, node)
    if problem:
        return Refusal("tree-ensemble", node.label, problem)
    forest = _read(node)
    if len(forest.tests) * len(forest.leaves) > _LARGEST or not forest.tests:
        return Refusal("tree-ensemble", node.label, "its matrix of paths would be too large, or no node tests anything")
    weights = _weights(forest)
    if not np.isfinite(weights).all():
        return Refusal("tree-ensemble", node.label, "a weight is not finite")
    emit = Emit(graph, node)
    y = _write(emit, forest, weights if node.attr("aggregate_function", 1) else weights / forest.trees)
    return emit.rewrite({node.outputs[0]: y}, f"{forest.trees} trees as matrix products")


def _problem(graph: Graph, node: Node) -> str | None:
    if graph.dtype(node.inputs[0]) != TensorProto.FLOAT or graph.opset() < 12:
        return "its input is not float32, or the model's opset is below 12"
    if node.attr("aggregate_function", 1) not in (0, 1) or node.attr("post_transform", 0):
        return "it takes a minimum or maximum over trees, or transforms its scores"
    if any(node.attr("nodes_missing_value_tracks_true") or ()):
        return "a missing value may take the true branch"
    return None


def _read(node: Node) -> _Forest:
    modes = onnx.numpy_helper.to_array(node.attr("nodes_modes")).tolist()
    splits = onnx.numpy_helper.to_array(node.attr("nodes_splits")).tolist()
    sets = _member_sets(node)
    tests = tuple(
        _Test(feature, _MODES[mode], next(sets) if _MODES[mode] == "MEMBER" else (split,))
        for feature, mode, split in zip(node.attr("nodes_featureids"), modes, splits, strict=True)
    )
    roots = node.attr("tree_roots")
    leaves = tuple(leaf for root in roots for leaf in _leaves(node, int(root)))
    return _Forest(tests, leaves, len(roots), int(node.attr("n_targets", 1)))


def _member_sets(node: Node) -> Iterator[tuple[float, ...]]:
    """The sets of MEMBER tests, in the order of their nodes; a NaN ends each."""
    tensor = node.attr("membership_values")
    found: list[float] = []
    for value in onnx.numpy_helper.to_array(tensor).tolist() if tensor is not None else ():
        if np.isnan(value):
            yield tuple(found)
            found = []
        else:
            found.append(value)


def _leaves(node: Node, root: int) -> Iterator[_Leaf]:
    """All leaves of the tree whose first node is `root`; a tree that is one leaf has both branches end in it."""
    targets = node.attr("leaf_targetids")
    weights = onnx.numpy_helper.to_array(node.attr("leaf_weights")).tolist()
    sides = [
        (True, node.attr("nodes_truenodeids"), node.attr("nodes_trueleafs")),
        (False, node.attr("nodes_falsenodeids"), node.attr("nodes_falseleafs")),
    ]
    open_: list[tuple[int, tuple[tuple[int, bool], ...]]] = [(root, ())]
    while open_:
        at, path = open_.pop()
        for answer, children, is_leaf in sides:
            longer = (*path, (at, answer))
            child = children[at]
            if is_leaf[at]:
                yield _Leaf(longer, ((targets[child], weights[child]),))
            else:
                open_.append((child, longer))


def _weights(forest: _Forest) -> np.ndarray:
    """[leaves, targets], float32."""
    weights = np.zeros((len(forest.leaves), forest.targets), np.float32)
    for row, leaf in enumerate(forest.leaves):
        for target, weight in leaf.weights:
            weights[row, target] += weight
    return weights


def _write(emit: Emit, forest: _Forest, weights: np.ndarray) -> str:
    """Scores [batch, targets] of X [batch, features]."""
    order: list[int] = []
    answers = [
        _answers(emit, forest, [i for i, test in enumerate(forest.tests) if test.mode == mode], order)
        for mode in _MODES
        if any(test.mode == mode for test in forest.tests)
    ]
    answer = answers[0] if len(answers) == 1 else emit.op("Concat", *answers, axis=1)
    place = {test: position for position, test in enumerate(order)}
    paths = np.zeros((len(order), len(forest.leaves)), np.float32)
    needed = np.zeros(len(forest.leaves), np.float32)
    for column, leaf in enumerate(forest.leaves):
        for test, wanted in leaf.path:
            paths[place[test], column] = 1 if wanted else -1
            needed[column] += wanted
    count = emit.op("MatMul", answer, emit.const(paths, "paths"))
    reached = emit.cast(emit.op("Equal", count, emit.const(needed, "needed")), TensorProto.FLOAT)
    return emit.op("MatMul", reached, emit.const(weights.astype(np.float32), "weights"))


def _answers(emit: Emit, forest: _Forest, indices: Sequence[int], order: list[int]) -> str:
    """1 or 0 for each of these tests, which all compare in the same way: [batch, tests]."""
    order.extend(indices)
    tests, x = [forest.tests[index] for index in indices], emit.near.inputs[0]
    if tests[0].mode == "MEMBER":
        found = [_member(emit, x, test) for test in tests]
        return found[0] if len(found) == 1 else emit.op("Concat", *found, axis=1)
    features = emit.op("Gather", x, emit.ints(*(test.feature for test in tests)), axis=1)
    split = emit.const(np.array([test.values[0] for test in tests], np.float32), "splits")
    pairs = {
        "LEQ": ("GreaterOrEqual", split, features),
        "LT": ("Greater", split, features),
        "GTE": ("GreaterOrEqual", features, split),
        "GT": ("Greater", features, split),
    }
    op, left, right = pairs.get(tests[0].mode, ("Equal", features, split))
    answer = emit.op(op, left, right)
    return emit.cast(emit.op("Not", answer) if tests[0].mode == "NEQ" else answer, TensorProto.FLOAT)


def _member(emit: Emit, x: str, test: _Test) -> str:
    """1 where the feature is one of the values: [batch, 1]."""
    feature = emit.op("Gather", x, emit.ints(test.feature), axis=1)
    equal = emit.op("Equal", feature, emit.const(np.array(test.values, np.float32), "members"))
    return emit.reduce("ReduceMax", emit.cast(equal, TensorProto.FLOAT), [1])


RULES: tuple[Rule, ...] = (tree_ensemble,)
