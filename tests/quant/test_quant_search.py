"""Mixed precision: what is found keeps its aim, and the engine carries out what was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_layers import options_of
from searched_models import Sample, mixed, tied

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant.budget import Budget, parse_budget
from graphkit.quant.cache import Cache
from graphkit.quant.calibration import Calibration
from graphkit.quant.engine import plan_of, quantize
from graphkit.quant.metric import Metric
from graphkit.quant.plan import Plan
from graphkit.quant.search import Search
from graphkit.quant.sensitivity import measure
from graphkit.quant.setting import FLOAT, Setting
from graphkit.quant.together import Together
from graphkit.runtime import Session


def _plan(model: Model, texts: Sequence[str] = (), **options: Any) -> Plan:
    return plan_of(Graph.of(model), options_of(*texts, **options))


def _data(samples: Sequence[Sample], count: int = 8) -> Calibration:
    """More samples like these."""
    rng = np.random.default_rng(5)
    made = []
    for number in range(count):
        like = samples[number % len(samples)]
        made.append(
            {
                n: rng.normal(size=a.shape).astype(a.dtype) if a.dtype.kind == "f" else rng.permutation(a)
                for n, a in like.items()
            }
        )
    return Calibration(made)


def _error(model: Model, quantized: Model, samples: Sequence[Sample], metric: str = "relative-l2") -> float:
    with Session(model) as one, Session(quantized) as two:
        return Metric.parse(metric).distance([one.run(s) for s in samples], [two.run(s) for s in samples])


def _search(**options: Any) -> Search:
    return Search(**{"executor": "threads:2", **options})


def _settings(plan: Plan) -> dict[str, Setting]:
    return {entry.layer.name: entry.setting for entry in plan.layers}


def test_a_budget_is_kept_and_what_was_measured_is_what_the_engine_makes() -> None:
    model, samples = mixed()
    plan, data = _plan(model), _data(samples)
    search = _search(budget=parse_budget("17%"))
    found = search.find(model, plan, data)
    assert found.bytes <= 0.17 * found.sizes.float_bytes
    assert len(set(_settings(found.plan).values())) > 1
    held = data.split(search.held_share)[1].samples
    done = quantize(model, found.plan, calibration=data)
    assert _error(model, done.model, held) == pytest.approx(found.measured, rel=1e-3)
    assert found.bytes == done.nbytes + 64 * 4  # the bias stays float
    assert found.uniform is not None
    assert found.measured <= found.uniform[1]
    for entry in found.plan.layers:
        assert entry.why == "search"
        assert entry.sensitivity == found.sensitivity.errors[entry.layer.name][entry.setting]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["measured"] == found.measured


def test_the_engine_searches() -> None:
    model, samples = mixed()
    search = _search(budget=parse_budget("17%"))
    plan, data = _plan(model), _data(samples)
    done = quantize(model, plan, calibration=data, search=search)
    assert _settings(done.plan) == _settings(search.find(model, plan, data).plan)


def test_the_uniform_choice_is_taken_when_it_measures_better(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = mixed()
    real = Together.error
    monkeypatch.setattr(Together, "error", lambda self, choice: real(self, choice) + (len(set(choice.values())) > 1))
    found = _search(budget=parse_budget("17%")).find(model, _plan(model), _data(samples))
    assert set(_settings(found.plan).values()) == {Setting(4)}
    assert found.uniform == (Setting(4), found.measured)


@pytest.mark.parametrize("aim", [{"max_error": 0.05}, {"min_metric": 0.999, "metric": "cosine"}, {"max_error": 0.9}])
def test_an_error_is_kept_in_few_bytes(aim: dict[str, Any]) -> None:
    model, samples = mixed()
    plan, data = _plan(model), _data(samples)
    search = _search(**aim)
    found = search.find(model, plan, data)
    assert search.allowed is not None
    held = data.split(search.held_share)[1].samples
    done = quantize(model, found.plan, calibration=data)
    error = _error(model, done.model, held, aim.get("metric", "relative-l2"))
    assert error == pytest.approx(found.measured, rel=1e-2, abs=1e-9)
    assert error <= search.allowed
    assert error >= search.allowed * 0.7 or set(_settings(found.plan).values()) == {Setting(3)}
    assert found.bytes < found.sizes.w8_bytes
    if aim == {"max_error": 0.9}:
        assert set(_settings(found.plan).values()) == {Setting(3)}


@pytest.mark.parametrize("scales", ["float32", "float16"])
def test_what_is_written_for_an_error_is_what_was_measured(scales: str) -> None:
    model, samples = mixed()
    plan, data = _plan(model, method="gptq", scales=scales), _data(samples, 10)
    search = _search(max_error=0.05)
    found = search.find(model, plan, data)
    done = quantize(model, plan, calibration=data, search=search)
    held = data.split(search.held_share)[1].samples
    assert _error(model, done.model, held) == pytest.approx(found.measured, rel=1e-5)
    assert found.measured <= 0.05
    assert done.note == found.note
    assert done.note.startswith("relative-l2 error 0.0")
    assert done.note.endswith(", 0.05 allowed, on 3 samples that the codes were not made from")
    assert {record.method for record in done.records if not record.setting.is_float} == {"gptq"}


def test_a_budgets_codes_are_made_of_all_data_and_that_is_said() -> None:
    model, samples = mixed()
    search = _search(budget=parse_budget("17%"))
    for count, end in (
        (10, "on 3 samples that the codes were not made from; those written are made from these, too"),
        (1, "on 1 sample that the codes were made from"),
    ):
        note = search.find(model, _plan(model, method="gptq"), _data(samples, count)).note
        assert note.endswith(end)


def test_an_error_that_no_bits_keep_leaves_layers_float() -> None:
    model, samples = mixed()
    found = _search(max_error=1e-5).find(model, _plan(model), _data(samples))
    assert set(_settings(found.plan).values()) == {FLOAT}
    assert found.measured == 0
    with pytest.raises(UsageError, match=r"error at 1e-05: the smallest possible is 0\.0\d+"):
        _search(max_error=1e-5).find(model, _plan(model, ["gemm=8"]), _data(samples))


def test_settled_layers_stay_and_count() -> None:
    model, samples = mixed()
    plan = _plan(model, ["conv=2", "product=float"])
    found = _search(max_error=0.9).find(model, plan, _data(samples))
    assert _settings(found.plan) == {"conv": Setting(2), "gemm": Setting(3), "product": FLOAT}
    assert list(found.sensitivity.errors) == ["gemm"]
    assert found.measured > 1.3 * found.forecast  # which knows nothing of the convolution's two bits
    assert found.sizes.fixed == 64 * 4 + 64 * 48 * 4 + plan.layers[0].nbytes
    with pytest.raises(UsageError, match="nothing to search"):
        _search(max_error=0.9).find(model, _plan(model, ["*=4"]), _data(samples))


def test_tables() -> None:
    model, samples = tied()
    found = _search(max_error=0.1).find(model, _plan(model), _data(samples))
    settings = _settings(found.plan)
    assert settings["look"] in (Setting(8), FLOAT)
    assert settings["inner"].bits < 8
    quantize(model, found.plan, calibration=_data(samples))


def test_settings_of_ones_own() -> None:
    model, samples = mixed()
    own = (Setting(4, 16), Setting(8), Setting(6, 32, False))
    found = _search(budget=Budget(40_000), settings=own).find(model, _plan(model), _data(samples))
    assert set(_settings(found.plan).values()) <= {*own, Setting(6, 0, False)}


def test_blocks_to_choose_from() -> None:
    model, samples = mixed()

    def tried(search: Search, **options: Any) -> list[str]:
        errors = search.find(model, _plan(model, **options), _data(samples)).sensitivity.errors
        return [str(setting) for setting in errors["product"]]

    aim = {"budget": parse_budget("90%"), "bits": (4, 8)}
    assert tried(_search(**aim)) == ["4", "8"]
    assert tried(_search(**aim), block=32) == ["4", "4b32", "8"]  # 128 does not divide 64 channels
    assert tried(_search(**aim, blocks=(16, 32))) == ["4b16", "4b32", "8b32"]
    assert tried(_search(**aim, blocks=(16, 0)), symmetric=False) == ["4b16a", "4a", "8a"]
    with pytest.raises(UsageError, match="multiple of 16, not 8"):
        _search(**aim, blocks=(8,))


def test_impossible_budget_before_anything_is_measured() -> None:
    model, samples = mixed()
    with pytest.raises(UsageError, match=r"1 KB is impossible: the smallest possible is [\d.]+ KB") as caught:
        _search(budget=parse_budget("1KB"), executor="no executor is needed").find(model, _plan(model), _data(samples))
    assert "256 B stay float" in str(caught.value)


def test_found_again_without_hessians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = mixed()
    plan = _plan(model, method="mse")
    search = _search(budget=parse_budget("17%"), cache=Cache(tmp_path))
    first = search.find(model, plan, _data(samples))
    second = replace(search, cache=Cache(tmp_path)).find(model, plan, _data(samples))
    assert (first.sensitivity.trials, second.sensitivity.trials) == (15, 0)
    assert second.plan == first.plan


@pytest.mark.parametrize("method", ["mse", "gptq"])
def test_methods_with_data(method: str, tmp_path: Path) -> None:
    model, samples = mixed()
    plan, data = _plan(model, method=method, block=16), _data(samples, 20)
    search = _search(budget=parse_budget("17%"), blocks=(16,), cache=Cache(tmp_path))
    found = search.find(model, plan, data)
    assert found.bytes <= 0.17 * found.sizes.float_bytes
    rtn = search.find(model, _plan(model, block=16), data)
    assert found.measured < rtn.measured
    # Other calibration data make other codes with gptq, and the same with mse.
    held = {id(sample) for sample in data.split(search.held_share)[1].samples}
    other = [s if id(s) in held else {"image": s["image"] * 2} for s in data.samples]
    again = search.find(model, plan, Calibration(other)).sensitivity
    assert (again.trials, again.cached) == ((15, 0) if method == "gptq" else (0, 15))


def test_asymmetric_codes() -> None:
    model, samples = mixed()
    found = _search(max_error=0.05).find(model, _plan(model, symmetric=False), _data(samples))
    assert not any(entry.setting.symmetric for entry in found.plan.layers if not entry.setting.is_float)
    layers = [entry.layer for entry in _plan(model).layers]
    for method in ("mse", "gptq"):
        with pytest.raises(UsageError, match="makes symmetric codes only"):
            measure(model, layers, samples, [Setting(4, 0, False)], method=method, executor="threads:1")


def test_bad_searches() -> None:
    model, _ = mixed()
    for options in ({}, {"budget": Budget(1), "max_error": 1.0}, {"max_error": 1.0, "min_metric": 0.9}):
        with pytest.raises(UsageError, match="one aim"):
            Search(**options)  # type: ignore[arg-type]
    for bad in ({"max_error": -1.0}, {"min_metric": 1.5}, {"max_error": float("nan")}):
        with pytest.raises(UsageError, match="0 or more"):
            Search(**bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="2 to 8 bits, not 9"):
        Search(max_error=1.0, bits=(4, 9))
    with pytest.raises(UsageError, match="bits to choose from"):
        Search(max_error=1.0, bits=())
    for nothing in (None, Calibration([])):
        with pytest.raises(UsageError, match="there are none"):
            _search(max_error=1.0).find(model, _plan(model), nothing)


def test_together_measures_any_choice() -> None:
    model, samples = mixed()
    layers = [entry.layer for entry in _plan(model).layers]
    told: list[tuple[int, int, str]] = []
    with Together(model, layers, samples, executor="threads:2", progress=lambda *step: told.append(step)) as whole:
        assert whole.error({}) == whole.error({"conv": FLOAT}) == 0
        some = whole.error({"conv": Setting(4), "gemm": Setting(3)})
        assert [step[:2] for step in told] == [(1, 2), (2, 2)]
        assert whole.error({"conv": Setting(4), "gemm": Setting(3), "product": Setting(2)}) > some
        assert told[2:] == [(1, 1, "product")]
        assert whole.error({"conv": Setting(4), "gemm": Setting(3)}) == some
        with pytest.raises(UsageError, match="no layer is called 'cnv'"):
            whole.error({"cnv": FLOAT})
    done = quantize(model, _plan(model, ["conv=4", "gemm=3", "product=float"]))
    assert _error(model, done.model, samples) == pytest.approx(some, rel=1e-3)
    with pytest.raises(UsageError, match="there are none"):
        Together(model, layers, [])
