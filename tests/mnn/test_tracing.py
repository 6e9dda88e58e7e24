"""One run of MNN with a look at every value, and the reference written over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from planted import converted, planted, scaled

from graphkit.errors import ModelError, UsageError
from graphkit.mnn import _child_trace
from graphkit.mnn.tracing import OpTrace, Target, trace
from graphkit.mnn.worker import RunError
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.verification.bisect.references import References, gather

CHAIN = """g (float[N,3,8,8] x) => (float[N,4,8,8] y)
<float[4,3,1,1] w = {1.0,-2.0,0.5,1.5,1.0,1.0,-1.0,0.25,2.0,1.0,-0.5,0.75}, float[4,4,1,1] v = {1.0,0.5,0.0,-1.0,0.25,
1.0,0.5,0.5,-1.0,1.0,1.0,0.0,2.0,0.0,0.5,1.0}> { a = Conv(x, w) s = Sigmoid(a) y = Conv(s, v) }"""
IMAGE = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
PLAN = [Target("a", 0, ("a",)), Target("s", 0, ("s",)), Target("y", 0, ("y",))]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """Convolution, activation, convolution; converted."""
    return converted(parse(CHAIN), tmp_path_factory.mktemp("tracing"))


def traced(
    model: Model, path: Path, feeds: Mapping[str, np.ndarray], plan: Sequence[Target], *, force: bool = True
) -> dict[str, OpTrace]:
    """The traces by tensor."""
    with gather(model, feeds) as references:
        return {found.tensor or found.op: found for found in trace(path, feeds, references, plan, force=force)}


def test_a_right_file_agrees_everywhere(chain: tuple[Model, Path]) -> None:
    found = traced(*chain, {"x": IMAGE}, PLAN)
    assert {"a", "s", "y"} <= set(found)
    assert all(found[name].error < 1e-6 for name in "asy")
    assert found["a"].shape == (2, 4, 8, 8)
    assert found["a"].type == "Convolution"
    assert all(found[name].forced for name in "asy")


def test_a_fault_shows_once_when_the_reference_is_written_behind_it(chain: tuple[Model, Path], tmp_path: Path) -> None:
    broken = planted(chain[1], tmp_path / "broken.mnn", scaled("a", "weight", 1.1))
    found = traced(chain[0], broken, {"x": IMAGE}, PLAN)
    assert found["a"].error == pytest.approx(0.1, rel=1e-3)
    assert found["s"].error < 1e-6
    assert found["y"].error < 1e-6


def test_the_accumulated_error_is_told_beside_it(chain: tuple[Model, Path], tmp_path: Path) -> None:
    broken = planted(chain[1], tmp_path / "broken.mnn", scaled("a", "weight", 1.1))
    found = traced(chain[0], broken, {"x": IMAGE}, PLAN)
    assert found["y"].accumulated is not None
    assert found["y"].accumulated > 1e-3
    plain = traced(chain[0], broken, {"x": IMAGE}, PLAN, force=False)
    assert plain["y"].error == pytest.approx(found["y"].accumulated, rel=1e-3)
    assert not plain["y"].forced


def test_a_target_that_is_only_looked_at_is_not_put_right(chain: tuple[Model, Path], tmp_path: Path) -> None:
    broken = planted(chain[1], tmp_path / "broken.mnn", scaled("a", "weight", 1.1))
    plan = [Target("a", 0, ("a",), write=False), *PLAN[1:]]
    found = traced(chain[0], broken, {"x": IMAGE}, plan)
    assert not found["a"].forced
    assert found["s"].error > 1e-3
    assert found["y"].error < 1e-6


def test_of_unsure_tensors_the_nearest_is_taken(chain: tuple[Model, Path]) -> None:
    found = traced(*chain, {"x": IMAGE}, [Target("s", 0, ("a", "s"), sure=False)])
    assert found["s"].error < 1e-6


def test_an_unsure_tensor_that_is_far_off_is_not_written(chain: tuple[Model, Path]) -> None:
    found = traced(*chain, {"x": IMAGE}, [Target("s", 0, ("a",), sure=False), PLAN[2]])
    assert found["a"].error > 0.1
    assert not found["a"].forced
    assert found["y"].error < 1e-6


def test_a_sure_tensor_is_held_against_the_value_and_the_nearer_one_is_named(chain: tuple[Model, Path]) -> None:
    found = traced(*chain, {"x": IMAGE}, [Target("s", 0, ("a", "s"))])
    assert found["a"].error > 0.1
    assert found["a"].nearest == "s"


def test_a_tensor_of_another_size_is_passed_over(chain: tuple[Model, Path]) -> None:
    found = traced(*chain, {"x": IMAGE}, [Target("s", 0, ("x", "s"))])
    assert found["s"].error < 1e-6
    alone = traced(*chain, {"x": IMAGE}, [Target("s", 0, ("x",))])
    assert alone["s"].tensor is None
    assert alone["s"].note == "no reference of this size"


def test_integers_and_booleans_are_compared(tmp_path: Path) -> None:
    model, path = converted(
        parse("""g (int32[N] i, float[N] x) => (int32[N] k, float[N] z)
        <int32[1] two = {2}, float[1] h = {0.5}> { j = Mul(i, two) k = Add(j, i) b = Greater(x, h) c = Not(b)
        z = Where(c, x, h) }"""),
        tmp_path,
    )
    feeds = {"i": np.array([3, -4, 5], np.int32), "x": np.array([0.1, 0.9, 0.5], np.float32)}
    plan = [Target(name, 0, (name,)) for name in ("j", "k", "b", "c", "z")]
    found = traced(model, path, feeds, plan)
    assert found["j"].stats.differing == found["k"].stats.differing == found["b"].stats.differing == 0
    assert found["z"].error == 0


def test_a_missing_reference_is_an_error(chain: tuple[Model, Path]) -> None:
    with References({"x": IMAGE}) as references, pytest.raises(UsageError, match="no reference for tensor 'a'"):
        trace(chain[1], {"x": IMAGE}, references, PLAN)


def test_a_missing_input_is_an_error(chain: tuple[Model, Path]) -> None:
    with pytest.raises(UsageError, match="no value for input 'x'"):
        trace(chain[1], {}, {}, [])


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    tmp_path.joinpath("no.mnn").write_bytes(b"no model")
    with pytest.raises(ModelError):
        trace(tmp_path / "no.mnn", {}, {}, [])


def test_a_session_cannot_run_branches(tmp_path: Path) -> None:
    _, path = converted(
        parse("""g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b)
            { b = Abs(x) }> }"""),
        tmp_path,
    )
    with pytest.raises(RunError, match="cannot run this model"):
        trace(path, {"c": np.array(True), "x": np.ones(2, np.float32)}, {}, [])


def test_a_run_that_takes_too_long_is_ended(chain: tuple[Model, Path]) -> None:
    with pytest.raises(RunError, match="did not finish") as caught:
        trace(chain[1], {"x": IMAGE}, {}, [], timeout=0.01)
    assert caught.value.timed_out


@pytest.mark.parametrize(
    ("expected", "actual", "nan", "infinite", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0, 0, 0.25),
        ([np.nan, 2.0], [np.nan, 2.0], 0, 0, 0.0),
        ([np.nan, 2.0], [1.0, 2.0], 1, 0, 0.0),
        ([np.inf, 2.0], [-np.inf, 2.0], 0, 1, 0.0),
        ([np.inf, 2.0], [3.4028234663852886e38, 2.0], 0, 0, 0.0),
        ([0.0, 0.0], [0.0, 0.0], 0, 0, 0.0),
    ],
)
def test_figures(expected: list[float], actual: list[float], nan: int, infinite: int, error: float) -> None:
    found = _child_trace.measure(np.array(expected, np.float32), np.array(actual, np.float32))
    assert (found["nan_mismatch"], found["inf_mismatch"], found["error"]) == (nan, infinite, error)


def test_figures_over_blocks_name_the_worst_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_child_trace, "_BLOCK", 4)
    expected = np.arange(10, dtype=np.float32)
    actual = expected.copy()
    actual[[2, 9]] += (1, 3)
    found = _child_trace.measure(expected, actual)
    assert (found["worst"], found["max_abs"], found["max_ref"], found["differing"]) == (9, 3.0, 9.0, 2)


def test_what_is_not_zero_is_true() -> None:
    assert _child_trace.like(np.array([True]), np.array([2], np.int32)).tolist() == [True]
    assert _child_trace.like(np.array([1]), np.array([2], np.int32)).tolist() == [2]
