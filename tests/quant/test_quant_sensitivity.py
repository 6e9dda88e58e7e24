"""Sensitivity: the same numbers as quantizing by hand, wherever the trials run, and found again in the cache."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searched_models import constants, halves, hidden, mixed, tied

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant._quantizer import Quantizer
from graphkit.quant._trial_model import overridable
from graphkit.quant.cache import Cache
from graphkit.quant.codes import Codes
from graphkit.quant.layers import Layer, find_layers
from graphkit.quant.metric import Metric, relative_l2
from graphkit.quant.sensitivity import Sensitivity, measure, settings_for
from graphkit.quant.setting import FLOAT, Setting
from graphkit.runtime import Session

Sample = Mapping[str, Any]
TWO, FOUR, BLOCKS = Setting(2), Setting(4), Setting(4, 16)


def _layers(model: Model) -> list[Layer]:
    return find_layers(Graph.of(model))[0]


def _by_hand(model: Model, layer: Layer, samples: Sequence[Sample], codes: Codes, metric: Metric) -> float:
    """The error with a layer's weight replaced in the graph, each in a session of its own."""
    graph = Graph.of(model)
    graph.set_initializer(layer.weight, layer.restore(codes.values()))
    with Session(model) as session:
        expected = [session.run(sample) for sample in samples]
    with Session(graph.to_model()) as session:
        return metric.distance(expected, [session.run(sample) for sample in samples])


@pytest.mark.parametrize("metric", ["relative-l2", "cosine", "cosine:y"])
@pytest.mark.parametrize("method", ["rtn", "mse"])
def test_as_by_hand(metric: str, method: str) -> None:
    model, samples = mixed()
    layers = _layers(model)
    found = measure(model, layers, samples, [TWO, BLOCKS, FLOAT], method=method, metric=metric, executor="threads:2")
    assert [layer.name for layer in layers] == list(found.errors) == ["conv", "gemm", "product"]
    assert (found.trials, found.cached, found.samples, found.metric) == (6, 0, 3, metric)
    for layer in layers:
        assert list(found.errors[layer.name]) == [TWO, BLOCKS, FLOAT]
        matrix = layer.matrix(Graph.of(model).initializers[layer.weight].array())
        for setting in (TWO, BLOCKS):
            codes = Quantizer(method)(layer, matrix, setting, None)  # type: ignore[arg-type]
            error = _by_hand(model, layer, samples, codes, Metric.parse(metric))
            assert found.errors[layer.name][setting] == pytest.approx(error, rel=1e-3, abs=1e-12)
        assert found.errors[layer.name][FLOAT] == 0
    assert found.errors["conv"][TWO] > found.errors["conv"][BLOCKS] > 0
    if metric == "cosine:y":
        assert found.errors["product"][TWO] == 0  # it comes after y


def _reordered(layers: Sequence[Layer]) -> Iterator[tuple[Layer, Any]]:
    yield from ((layer, np.eye(layer.columns, dtype=np.float32)) for layer in reversed(layers[1:]))


@dataclass(frozen=True)
class _Telling:
    """Two bits for layers that a Hessian came for; the type and size of the Hessian are checked."""

    def __call__(self, layer: Layer, matrix: Any, setting: Setting, hessian: Any) -> Codes:
        if hessian is not None:
            assert hessian.shape == (layer.columns, layer.columns)
        return Quantizer("rtn")(layer, matrix, Setting(8) if hessian is None else TWO, None)


def test_hessians_from_a_mapping_and_from_a_function() -> None:
    model, samples = mixed()
    layers = _layers(model)
    mapping = {"gemm": np.eye(32, dtype=np.float32)}
    one = measure(model, layers, samples, [FOUR], method=_Telling(), hessians=mapping, executor="threads")
    two = measure(model, layers, samples, [FOUR], method=_Telling(), hessians=_reordered, executor="threads")
    plain = measure(model, layers, samples, [TWO, Setting(8)], executor="threads")
    low, high = ({name: of[setting] for name, of in plain.errors.items()} for setting in (TWO, Setting(8)))
    assert {n: of[FOUR] for n, of in one.errors.items()} == {**high, "gemm": low["gemm"]}
    assert {n: of[FOUR] for n, of in two.errors.items()} == {**low, "conv": high["conv"]}


def test_a_shared_table_is_two_layers() -> None:
    """The table of the Gather is quantized alone, and so is the product's."""
    model, samples = tied()
    layers = _layers(model)
    assert [(layer.name, layer.weight) for layer in layers] == [("look", "table"), ("inner", "w"), ("head", "table")]
    errors = measure(model, layers, samples, [FOUR], executor="threads:1").errors
    assert list(errors["look"]) == [Setting(8)]
    both, names = overridable(model, layers)
    table, w = (Graph.of(model).initializers[name].array() for name in ("table", "w"))
    with Session(both) as session:
        expected = [session.run(sample) for sample in samples]
        for layer, setting in ((layers[0], Setting(8)), (layers[2], FOUR)):
            values = layer.restore(Quantizer()(layer, layer.matrix(table), setting, None).values())
            read, multiplied = (values if layer.name == name else table for name in ("look", "head"))
            right = [{"logits": read[sample["ids"]] @ w @ multiplied.T} for sample in samples]
            for sample, logits in zip(samples, right, strict=True):
                found = session.run({**sample, names[layer.name]: values})
                np.testing.assert_allclose(found["logits"], logits["logits"], rtol=1e-4, atol=1e-5)
            assert errors[layer.name][setting] == pytest.approx(Metric().distance(expected, right), rel=1e-3)


def test_weights_that_are_shared_or_read_in_branches() -> None:
    model, samples = hidden()
    layers = _layers(model)
    assert [(layer.name, layer.nodes) for layer in layers] == [
        ("first", ("first", "second")),
        ("captured", ("captured",)),
    ]
    found = measure(model, layers, samples, [TWO], executor="threads:1").errors
    for layer in layers:
        matrix = layer.matrix(Graph.of(model).initializers[layer.weight].array())
        error = _by_hand(model, layer, samples, Quantizer()(layer, matrix, TWO, None), Metric())
        assert found[layer.name][TWO] == pytest.approx(error, rel=1e-4)


def test_float16_weights() -> None:
    model, samples = halves()
    layers = _layers(model)
    assert [layer.name for layer in layers] == ["one", "two"]
    found = measure(model, layers, samples, [FOUR], executor="threads:1").errors
    for layer in layers:
        array = Graph.of(model).initializers[layer.weight].array()
        values = layer.restore(Quantizer()(layer, layer.matrix(array), FOUR, None).values()).astype(np.float16)
        graph = Graph.of(model)
        graph.set_initializer(layer.weight, values)
        with Session(model) as one, Session(graph.to_model()) as two:
            error = Metric().distance([one.run(samples[0])], [two.run(samples[0])])
        assert found[layer.name][FOUR] == pytest.approx(error, rel=1e-2)


def test_weights_made_by_constant_nodes() -> None:
    model, samples = constants()
    layers = _layers(model)
    assert {layer.name: layer.weight for layer in layers} == {"first": "g_w", "second": "shared", "captured": "t_w"}
    found = measure(model, layers, samples, [TWO], executor="threads:1").errors
    both, names = overridable(model, layers)
    for layer in layers:
        matrix = layer.matrix(Graph.of(both).initializers[names[layer.name]].array())
        values = layer.restore(Quantizer()(layer, matrix, TWO, None).values())
        graph = Graph.of(both)
        graph.set_initializer(names[layer.name], values)
        with Session(model) as one, Session(graph.to_model()) as two:
            error = Metric().distance([one.run(samples[0])], [two.run(samples[0])])
        assert found[layer.name][TWO] == pytest.approx(error, rel=1e-3)
        assert error > 0.1


def test_the_model_is_left_as_it_was() -> None:
    model, samples = tied()
    before = model.materialized().SerializeToString(deterministic=True)
    measure(model, _layers(model), samples, [FOUR], executor="threads:1")
    assert model.materialized().SerializeToString(deterministic=True) == before


def _cluster_text() -> Any:
    return pytest.importorskip("distributed").LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )


@pytest.fixture(params=["threads:2", "processes:2", "pool", "own threads", "dask"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Executor | str]:
    """Each kind of executor."""
    if request.param == "pool":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield pool
    elif request.param == "own threads":
        with ThreadPoolExecutor(3) as threads:
            yield threads
    elif request.param == "dask":
        with _cluster_text() as cluster:
            yield cluster.scheduler_address
    else:
        yield request.param


def test_the_same_wherever_it_runs(anywhere: Executor | str) -> None:
    model, samples = mixed()
    told: list[tuple[int, int, str]] = []
    expected = measure(model, _layers(model), samples, [TWO, FOUR], executor="threads:1")
    found = measure(
        model, _layers(model), samples, [TWO, FOUR], executor=anywhere, progress=lambda *step: told.append(step)
    )
    assert list(found.errors) == list(expected.errors)
    for name, of in expected.errors.items():
        assert found.errors[name] == pytest.approx(of, rel=1e-4)
    assert [step[0] for step in told] == [0, 2, 4, 6]
    assert {step[1] for step in told} == {6}
    assert {step[2] for step in told} == {"", "conv", "gemm", "product"}


def test_errors_of_workers_arrive(anywhere: Executor | str) -> None:
    model, samples = mixed()
    graph = Graph.of(model)
    broken = graph.initializers["wg"].array().copy()
    broken[3, 3] = np.nan
    graph.set_initializer("wg", broken)
    with pytest.raises(ModelError, match="NaN") as caught:
        measure(graph.to_model(), _layers(model), samples, [FOUR], executor=anywhere)
    assert caught.value.node == "gemm"


def test_found_in_the_cache(tmp_path: Path) -> None:
    model, samples = mixed()
    layers = _layers(model)

    def again(**changes: Any) -> tuple[int, int]:
        given: dict[str, Any] = {"method": "rtn", "executor": "threads:1", "cache": Cache(tmp_path), **changes}
        found = measure(
            given.pop("model", model), layers, given.pop("samples", samples), given.pop("tried", [TWO, FOUR]), **given
        )
        assert all(math.isfinite(error) for of in found.errors.values() for error in of.values())
        return found.trials, found.cached

    assert again() == (6, 0)
    assert again() == (0, 6)
    assert again(executor="no executor is needed") == (0, 6)
    assert again(tried=[FOUR, Setting(3), FLOAT]) == (3, 3)
    model.save(tmp_path / "saved.onnx")
    assert again(model=Model.load(tmp_path / "saved.onnx")) == (0, 6)
    assert again(method="mse") == (6, 0)
    assert again(method=Quantizer("rtn")) == (0, 6)
    assert again(metric="cosine") == (6, 0)
    assert again(samples=samples[:2]) == (6, 0)
    changed = [{"image": sample["image"] + np.float32(1e-6)} for sample in samples]
    assert again(samples=changed) == (6, 0)
    graph = Graph.of(model)
    graph.set_initializer("bg", np.zeros(64, np.float32))
    assert again(model=graph.to_model()) == (6, 0)
    eye = {"gemm": np.eye(32, dtype=np.float32)}
    assert again(method=_Telling(), hessians=eye) == (6, 0)
    assert again(method=_Telling(), hessians=eye) == (0, 6)
    assert again(method=_Telling(), hessians={"gemm": eye["gemm"] * 2}) == (2, 4)


def test_what_was_done_before_a_failure_is_kept(tmp_path: Path) -> None:
    model, samples = mixed()

    def interrupt(done: int, total: int, layer: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(
            model, _layers(model), samples, [TWO, FOUR], cache=Cache(tmp_path), executor="threads:1", progress=interrupt
        )
    found = measure(model, _layers(model), samples, [TWO, FOUR], cache=Cache(tmp_path), executor="threads:1")
    assert (found.trials, found.cached) == (2, 4)


def test_methods_that_cannot_be_told_apart_are_not_cached(tmp_path: Path) -> None:
    model, samples = mixed()
    names: dict[str, Any] = {"quantize": Quantizer(), "__name__": "nowhere"}
    exec("def method(layer, matrix, setting, hessian): return quantize(layer, matrix, setting, hessian)", names)
    for _ in range(2):
        found = measure(
            model, _layers(model), samples, [TWO], method=names["method"], cache=Cache(tmp_path), executor="threads:1"
        )
        assert (found.trials, found.cached) == (3, 0)


def test_data_that_a_method_does_not_tell_of_are_not_cached(tmp_path: Path) -> None:
    model, samples = mixed()
    for _ in range(2):
        found = measure(
            model, _layers(model), samples, [TWO], hessians=_reordered, cache=Cache(tmp_path), executor="threads:1"
        )
        assert (found.trials, found.cached) == (3, 0)


def test_settings_for_layers() -> None:
    model, _ = tied()
    look, inner, head = _layers(model)
    candidates = [Setting(4, 32), Setting(4, 16), Setting(4, 64), Setting(4), FLOAT]
    assert settings_for([look, inner, head], candidates) == {
        "look": [Setting(8), FLOAT],
        "inner": [Setting(4, 32), Setting(4, 16), Setting(4), FLOAT],
        "head": [Setting(4, 32), Setting(4, 16), Setting(4), FLOAT],
    }
    assert settings_for([look], [Setting(4, 0, False)]) == {"look": [Setting(8, 0, False)]}
    assert settings_for([look, inner], {"look": [FLOAT], "inner": [FOUR]}) == {"look": [FLOAT], "inner": [FOUR]}
    with pytest.raises(UsageError, match="no setting to try for layer 'inner'"):
        settings_for([look, inner], {"look": [FLOAT]})
    with pytest.raises(UsageError, match="no layer is called 'outer'"):
        settings_for([inner], {"outer": [FOUR]})
    with pytest.raises(UsageError, match="no setting to try"):
        settings_for([inner], [])


def test_bad_input() -> None:
    model, samples = mixed()
    layers = _layers(model)
    with pytest.raises(UsageError, match="there are none"):
        measure(model, layers, [], [FOUR])
    with pytest.raises(UsageError, match="method is one of"):
        measure(model, layers, samples, [FOUR], method="awq")
    with pytest.raises(UsageError, match="is no metric"):
        measure(model, layers, samples, [FOUR], metric="awful")
    with pytest.raises(UsageError, match="no output 'x'"):
        measure(model, layers, samples, [FOUR], metric="cosine:x", executor="threads:1")
    with pytest.raises(UsageError, match="is not an executor"):
        measure(model, layers, samples, [FOUR], executor="gpu")
    with pytest.raises(GraphkitError, match="image"):
        measure(model, layers, [{"image": np.zeros((1, 3, 6, 6), np.float32)}], [FOUR], executor="threads:1")


def _my_metric(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    return relative_l2(expected["z"], actual["z"]) * 10


def test_a_metric_of_ones_own() -> None:
    model, samples = mixed()
    layers = _layers(model)
    mine = measure(model, layers, samples[:1], [TWO], metric=_my_metric, executor="processes:1")
    plain = measure(model, layers, samples[:1], [TWO], metric="relative-l2:z", executor="threads:1")
    assert (mine.metric, mine.power) == ("_my_metric", 1)
    for name, of in plain.errors.items():
        assert mine.errors[name][TWO] == pytest.approx(10 * of[TWO], rel=1e-4)


def test_json() -> None:
    record = Sensitivity("cosine", 1, 3, {"a": {FOUR: 0.25, FLOAT: 0.0}, "b": {BLOCKS: math.inf}}, 2, 1, 0.5)
    data = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert data["errors"] == {"a": {str(FOUR): 0.25, "float": 0.0}, "b": {str(BLOCKS): "inf"}}


def test_squares_are_added_for_relative_l2() -> None:
    errors = {"a": {TWO: 3.0, FOUR: 0.0}, "b": {TWO: 4.0, FOUR: 1.0}}
    costs = {name: {TWO: 1, FOUR: 2} for name in errors}
    assert Sensitivity("relative-l2", 2, 1, errors).solve(costs, budget=2).error == pytest.approx(5)
    assert Sensitivity("cosine", 1, 1, errors).solve(costs, budget=2).error == pytest.approx(7)
    found = Sensitivity("relative-l2", 2, 1, errors).solve(costs, max_error=3.2)
    assert found.choice == {"a": TWO, "b": FOUR}
    assert (found.bytes, found.bound) == (3, 3)
    assert found.error == pytest.approx(math.sqrt(10))
    errors["b"][FOUR] = 2.0
    with pytest.raises(UsageError, match=r"error at 0\.5: the smallest possible is 2$"):
        Sensitivity("relative-l2", 2, 1, errors).solve(costs, max_error=0.5)
