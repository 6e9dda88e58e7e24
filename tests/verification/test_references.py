"""Reference tensors on disk, in chunks under a memory bound."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from graphkit.errors import GraphkitError, UsageError
from graphkit.graph import Graph
from graphkit.testing import parse, random_feeds, run
from graphkit.verification.bisect.references import References, chunks, compute, gather, readable

MODEL = """g (float[N,4] x) => (float[N,4] y) {
    c = Constant<value = float {2.0}>() a = Mul(x, c) i = Cast<to = 7>(a) b = Cast<to = 9>(i) s = Shape(a)
    y = Neg(a) }"""


def test_every_tensor_of_numbers_is_there_and_right() -> None:
    model = parse(MODEL)
    feeds = random_feeds(model)
    with gather(model, feeds) as found:
        assert set(found) == {"x", "a", "i", "b", "s", "y"}
        np.testing.assert_array_equal(found.array("y"), run(model, feeds)["y"])
        assert found.array("i").dtype == np.int64
        assert found.array("b").dtype == np.bool_


def test_the_files_go_with_it() -> None:
    model = parse(MODEL)
    with gather(model, random_feeds(model), ["a"]) as found:
        folder = found.folder
        assert found["a"].is_file()
    assert not folder.exists()


def test_runs_stay_under_the_bound() -> None:
    model = parse(MODEL)
    feeds = {"x": np.ones((5, 4), np.float32)}  # 160 bytes a tensor at the widest type
    assert chunks(model, feeds, ["a", "i", "b", "y"], 320) == [["a", "i"], ["b", "y"]]
    assert chunks(model, feeds, ["a", "i", "b", "y"], 1 << 20) == [["a", "i", "b", "y"]]


def test_a_tensor_beyond_the_bound_has_a_run_of_its_own() -> None:
    model = parse(MODEL)
    feeds = {"x": np.ones((5, 4), np.float32)}
    assert chunks(model, feeds, ["a", "i"], 1) == [["a"], ["i"]]
    with gather(model, feeds, ["a", "i"], memory=1) as found:
        np.testing.assert_array_equal(found.array("a"), np.full((5, 4), 2, np.float32))


@pytest.mark.parametrize("memory", [0, -5])
def test_a_bound_of_nothing_is_refused(memory: int) -> None:
    model = parse(MODEL)
    with pytest.raises(UsageError, match="number of bytes"):
        gather(model, random_feeds(model), memory=memory)


def test_a_tensor_that_is_not_there_is_refused() -> None:
    model = parse(MODEL)
    with pytest.raises(UsageError, match="no tensor 'nowhere'"):
        gather(model, random_feeds(model), ["nowhere"])


def test_a_wrong_input_is_refused() -> None:
    with pytest.raises(UsageError, match="no input 'z'"):
        gather(parse(MODEL), {"z": np.ones((1, 4), np.float32)})


def test_text_and_sequences_are_left_out() -> None:
    graph = Graph.of(
        parse("g (float[2] x) => (float[2] y) { q = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(q) }")
    )
    assert "q" not in readable(graph)
    assert "y" in readable(graph)


def test_values_can_be_stored_and_replaced() -> None:
    with References({"x": np.zeros(2, np.float32)}) as found:
        found.put("y", np.arange(3))
        found.put("y", np.arange(4))
        assert found.array("y").tolist() == [0, 1, 2, 3]
        assert found.get_array("z") is None
        assert len(found) == 2
        with pytest.raises(KeyError):
            found.array("z")


def test_a_model_that_does_not_run_is_an_error() -> None:
    model = parse("g (float[N] x, int64[2] s) => (float[M,K] y) { y = Reshape(x, s) }")
    feeds = {"x": np.ones(3, np.float32), "s": np.array([2, 2], np.int64)}
    with pytest.raises(GraphkitError, match="cannot run"):
        gather(model, feeds, ["y"])
    assert compute(model, feeds, []) == {}


BOUNDED = """
import resource
import numpy as np
from graphkit.testing import parse
from graphkit.verification.bisect.references import gather

chain = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(100))
model = parse(f"g (float[1000000] v0) => (float[1000000] v100) {{ {chain} }}")
with gather(parse("g (float[4] x) => (float[4] y) { y = Neg(x) }"), {"x": np.ones(4, np.float32)}):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with gather(model, {"v0": np.ones(1000000, np.float32)}, memory=20_000_000) as found:
    assert len(found) == 101
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_finding_out_the_sizes_does_not_hold_all_values() -> None:
    pytest.importorskip("resource")
    ended = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 200  # MB, of 400 that all values take


def test_an_interrupt_while_the_folder_is_removed_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    found = gather(parse(MODEL), random_feeds(parse(MODEL)))
    folder, rmdir = found.folder, os.rmdir
    calls: list[object] = []

    def interrupted(*args: object, **named: object) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        rmdir(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rmdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.close()
    assert len(calls) == 2
    assert not folder.exists()
