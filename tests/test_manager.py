"""The manager: numbering, verification, rollback, fixpoints, crashes, and passes that misreport."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto
from passes_for_tests import Crash, Custom, DropIdentity, Replace, ScaleOutput, Silent

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, PassError, UsageError
from graphkit.graph import Graph
from graphkit.manager import FixpointStage, Manager, PassRecord, PassStage, RunReport
from graphkit.proof import Evidence, Proof
from graphkit.rewrite import Change, PassResult
from graphkit.testing import assert_equal_outputs, canonical, graph_of, parse

CHAIN = """
    g (float[N,4] x) => (float[N,4] y) {
        a = Identity(x)
        b = Relu(a)
        c = Identity(b)
        d = Sigmoid(c)
        e = Identity(d)
        f = Relu(e)
        y = Add(f, b)
    }
"""


def stage(pass_: object) -> PassStage:
    return PassStage(pass_, pass_.name)  # type: ignore[arg-type, attr-defined]


def judge(text: str) -> Callable[[Graph], Proof]:
    evidence = Evidence.gather(parse(text))
    return lambda graph: evidence.judge_model(graph.to_model(), Tolerance(rtol=1e-4))


def run(graph: Graph, *passes: object, **options: object) -> RunReport:
    return Manager(graph, **options).run([stage(pass_) for pass_ in passes])  # type: ignore[arg-type]


def lines(graph: Graph) -> list[str]:
    graph.check()
    onnx.checker.check_model(graph.to_model().materialized())
    return canonical(graph)


# -- records ----------------------------------------------------------------------------------------------


def test_each_pass_has_a_record() -> None:
    graph = graph_of(CHAIN)
    report = run(graph, DropIdentity(), Custom(), Replace("Relu", "Sigmoid"))
    dropped, nothing, replaced = report.records
    assert (dropped.status, dropped.rewrites, dropped.numbers) == ("changed", 3, ((1, 3),))
    assert (dropped.nodes_before, dropped.nodes_after) == (7, 4)
    assert dropped.counters == {"identity": 3}
    assert [change.node for change in dropped.changes] == ["a", "c", "e"]
    assert (nothing.status, nothing.rewrites, nothing.numbers) == ("unchanged", 0, ())
    assert replaced.numbers == ((4, 5),)
    assert report.rewrites == 5
    assert report.last == Change("f", "Relu to Sigmoid")
    assert (report.nodes_before, report.nodes_after) == (7, 4)
    assert not report.stopped
    assert not report.halted


def test_seconds_are_those_of_the_pass_alone() -> None:
    now = [0.0]

    def slow(graph: Graph) -> None:
        now[0] += 5.0

    def clock() -> float:
        return now[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphkit.manager.time.perf_counter", clock)
        report = run(graph_of(CHAIN), Custom(slow), Custom())
    assert [record.seconds for record in report.records] == [5.0, 0.0]


def test_watch_sees_each_record_and_the_graph_as_it_stands() -> None:
    seen: list[tuple[str, int]] = []

    def watch(record: PassRecord, graph: Graph) -> None:
        seen.append((record.name, len(graph)))

    run(graph_of(CHAIN), DropIdentity(), Custom(), watch=watch)
    assert seen == [("drop-identity", 4), ("custom", 4)]


def test_refusals_come_through() -> None:
    text = "g (float[4] x) => (float[4] y) { y = Identity(x) }"
    (record,) = run(graph_of(text), DropIdentity()).records
    assert [refusal.reason for refusal in record.refusals] == ["it makes a graph output"]


def test_the_collector_and_the_gate_are_as_before() -> None:
    import gc

    graph = graph_of(CHAIN)
    gate = graph.gate
    states = []
    run(graph, Custom(lambda graph: states.append(gc.isenabled())))
    assert states == [False]
    assert gc.isenabled()
    assert graph.gate is gate


# -- numbering --------------------------------------------------------------------------------------------


def pipeline() -> list[PassStage | FixpointStage]:
    fix = FixpointStage((stage(DropIdentity()), stage(Replace("Sigmoid", "Tanh"))))
    return [stage(Replace("Relu", "Sigmoid")), fix, stage(ScaleOutput())]


def test_stop_after_gives_a_valid_graph_and_one_rewrite_more_each_time() -> None:
    whole = Manager(graph_of(CHAIN)).run(pipeline())
    assert whole.rewrites == 2 + 3 + 3 + 1
    graphs, changes = [], []
    for limit in range(whole.rewrites + 2):
        graph = graph_of(CHAIN)
        report = Manager(graph, stop_after=limit).run(pipeline())
        assert report.rewrites == min(limit, whole.rewrites)
        assert report.stopped == (limit < whole.rewrites)
        graphs.append(lines(graph))
        changes.append([change for record in report.records for change in record.changes])
    assert graphs[0] == lines(graph_of(CHAIN))
    assert graphs[-1] == graphs[-2]
    assert all(one != other for one, other in pairwise(graphs[:-1]))
    for limit, done in enumerate(changes[:-1]):
        assert done == changes[-1][:limit]


def test_two_runs_number_alike() -> None:
    reports = [Manager(graph_of(CHAIN)).run(pipeline()) for _ in range(2)]
    assert [r.changes for r in reports[0].records] == [r.changes for r in reports[1].records]


def test_a_pass_without_numbered_rewrites_counts_as_one() -> None:
    graph = graph_of(CHAIN)
    report = run(graph, ScaleOutput(), DropIdentity(), stop_after=2)
    assert [record.numbers for record in report.records] == [((1, 1),), ((2, 2),)]
    assert report.last == Change("a", "identity")
    graph = graph_of(CHAIN)
    report = run(graph, DropIdentity(), ScaleOutput(), stop_after=3)
    assert report.records[1].status == "unchanged"
    assert not graph.by_op("Mul")
    assert report.stopped


def test_nothing_runs_after_the_gate_closed() -> None:
    ran = []
    report = run(graph_of(CHAIN), DropIdentity(), Custom(lambda graph: ran.append(1)), stop_after=1)
    assert not ran
    assert len(report.records) == 1


# -- verification -----------------------------------------------------------------------------------------


def test_a_pass_that_breaks_the_numbers_is_undone_and_the_run_goes_on() -> None:
    graph = graph_of(CHAIN)
    report = run(graph, ScaleOutput(), DropIdentity(), verify=judge(CHAIN))
    scaled, dropped = report.records
    assert scaled.status == "rolled back"
    assert scaled.max_error == pytest.approx(1.0)
    assert "output 'y'" in scaled.reason
    assert scaled.nodes_after == scaled.nodes_before == 7
    assert scaled.changes == ()
    assert scaled.notes == ("scaled it",)
    assert dropped.status == "changed"
    assert dropped.max_error == 0
    assert report.rolled_back == (scaled,)
    assert len(graph) == 4
    assert_equal_outputs(parse(CHAIN), graph.to_model(), rtol=1e-7)


def test_on_mismatch_stop_ends_the_run() -> None:
    graph = graph_of(CHAIN)
    report = run(graph, ScaleOutput(), DropIdentity(), verify=judge(CHAIN), on_mismatch="stop")
    assert [record.status for record in report.records] == ["rolled back"]
    assert report.halted
    assert lines(graph) == lines(graph_of(CHAIN))


def test_what_did_not_change_is_not_judged() -> None:
    def never(graph: Graph) -> Proof:
        raise AssertionError("judged")

    (record,) = run(graph_of(CHAIN), Custom(), verify=never).records
    assert record.max_error is None


def test_a_pass_that_was_undone_in_a_fixpoint_is_not_tried_again() -> None:
    graph = graph_of(CHAIN)
    fix = FixpointStage((stage(ScaleOutput()), stage(DropIdentity())))
    report = Manager(graph, verify=judge(CHAIN)).run([fix])
    assert [record.status for record in report.records] == ["rolled back", "changed"]
    assert report.records[0].rewrites == 1


def test_rolled_back_rewrites_keep_their_numbers() -> None:
    report = run(graph_of(CHAIN), ScaleOutput(), DropIdentity(), verify=judge(CHAIN), stop_after=2)
    assert [record.numbers for record in report.records] == [((1, 1),), ((2, 2),)]


# -- passes that misreport --------------------------------------------------------------------------------


def test_a_change_that_is_not_reported_is_found_counted_and_checked() -> None:
    graph = graph_of(CHAIN)
    report = run(graph, Silent(), verify=judge(CHAIN))
    (record,) = report.records
    assert (record.status, record.rewrites, record.max_error) == ("changed", 1, 0)
    assert record.notes == ("changed the graph but reported no change; counted and checked as one change",)
    assert record.counters == {}


def test_a_wrong_change_that_is_not_reported_is_undone() -> None:
    graph = graph_of(CHAIN)
    (record,) = run(graph, Silent(ScaleOutput()), verify=judge(CHAIN)).records
    assert record.status == "rolled back"
    assert lines(graph) == lines(graph_of(CHAIN))


def test_an_unreported_change_after_the_last_number_is_undone() -> None:
    graph = graph_of(CHAIN)
    run(graph, DropIdentity(), Silent(ScaleOutput()), stop_after=3)
    assert not graph.by_op("Mul")


def test_types_are_no_change_and_survive_a_rollback() -> None:
    def infer(graph: Graph) -> None:
        from graphkit import shapes

        shapes.infer(graph)

    graph = graph_of(CHAIN, infer=False)
    report = run(graph, Custom(infer), ScaleOutput(), verify=judge(CHAIN))
    assert [record.status for record in report.records] == ["unchanged", "rolled back"]
    assert graph.shape("b") == ("N", 4)


# -- fixpoints --------------------------------------------------------------------------------------------


def test_a_fixpoint_settles_and_its_rounds_are_one_record() -> None:
    graph = graph_of(CHAIN)
    fix = FixpointStage((stage(Replace("Sigmoid", "Tanh")), stage(Replace("Relu", "Sigmoid"))))
    report = Manager(graph).run([fix])
    assert graph.op_counts() == {"Identity": 3, "Tanh": 3, "Add": 1}
    first, second = report.records
    assert first.numbers == ((1, 1), (4, 5))
    assert first.counters == {"Sigmoid-Tanh": 3}
    assert second.numbers == ((2, 3),)
    assert second.status == "changed"


def test_two_fighting_passes_are_named(tmp_path: Path) -> None:
    graph = graph_of(CHAIN)
    there, back = Replace("Relu", "Sigmoid"), Replace("Sigmoid", "Relu")
    stages = (PassStage(there, "there"), PassStage(back, "back"), stage(DropIdentity()))
    with pytest.raises(PassError, match=r"did not settle in 3 rounds; still changing: there, back$") as caught:
        Manager(graph, crash_dir=tmp_path).run([stage(Custom()), FixpointStage(stages, limit=3)])
    assert caught.value.exit_code == 4
    assert caught.value.hint is not None
    assert "max=N" in caught.value.hint
    assert lines(graph) == lines(graph_of(CHAIN))
    (folder,) = tmp_path.iterdir()
    assert caught.value.reproducer == str(folder)
    text = (folder / "pipeline.txt").read_text()
    assert text == "infer-shapes,fixpoint(there,back,drop-identity){max=3}\n"


def test_nested_fixpoints_settle() -> None:
    graph = graph_of(CHAIN)
    inner = FixpointStage((stage(Replace("Sigmoid", "Tanh")),))
    Manager(graph).run([FixpointStage((inner, stage(Replace("Relu", "Sigmoid"))))])
    assert "Sigmoid" not in graph.op_counts()


# -- crashes ----------------------------------------------------------------------------------------------


def test_a_pass_that_raises_is_named_and_undone(tmp_path: Path) -> None:
    graph = graph_of(CHAIN)
    with pytest.raises(PassError, match=r"^pass 'crash' raised IndexError: list index out of range$") as caught:
        run(graph, Crash(), crash_dir=tmp_path)
    assert caught.value.exit_code == 4
    assert isinstance(caught.value.__cause__, IndexError)
    assert caught.value.reproducer == str(next(tmp_path.iterdir()))
    assert caught.value.hint is not None
    assert caught.value.reproducer in caught.value.hint
    assert lines(graph) == lines(graph_of(CHAIN))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PassError) as caught:
        run(graph_of(CHAIN), Crash())
    assert caught.value.reproducer is None
    assert caught.value.hint is None
    assert not list(tmp_path.iterdir())


def test_a_reproducer_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(PassError, match="raised IndexError") as caught:
        run(graph_of(CHAIN), Crash(), crash_dir=place)
    assert caught.value.hint is not None
    assert "no reproducer could be written" in caught.value.hint


def test_errors_about_the_users_input_come_through(tmp_path: Path) -> None:
    def refuse(graph: Graph) -> None:
        raise UsageError("no dim 'batch'")

    with pytest.raises(UsageError, match="no dim 'batch'"):
        run(graph_of(CHAIN), Custom(refuse), crash_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_misuse_of_the_graph_is_a_bug_of_the_pass() -> None:
    def misuse(graph: Graph) -> None:
        graph.rename("nowhere", "there")

    with pytest.raises(PassError, match=r"pass 'custom' raised GraphkitError: cannot rename 'nowhere'"):
        run(graph_of(CHAIN), Custom(misuse))


def test_a_pass_must_return_a_result() -> None:
    class Forgetful:
        name, summary = "forgetful", "returns None"

        def run(self, graph: Graph) -> None:
            return

    with pytest.raises(PassError, match="run returned NoneType instead of a PassResult"):
        run(graph_of(CHAIN), Forgetful())


def test_interrupts_are_not_caught() -> None:
    def interrupt(graph: Graph) -> None:
        raise KeyboardInterrupt

    graph = graph_of(CHAIN)
    with pytest.raises(KeyboardInterrupt):
        run(graph, Custom(interrupt))
    assert graph.allows(next(graph.nodes), "anything")


@pytest.mark.parametrize("reported", [True, False])
def test_an_invalid_graph_is_named_and_undone(tmp_path: Path, reported: bool) -> None:
    def cut(graph: Graph) -> PassResult:
        graph.remove(graph.by_op("Sigmoid")[0])
        return PassResult((Change("d", "cut"),) if reported else ())

    graph = graph_of(CHAIN)
    with pytest.raises(PassError, match=r"pass 'custom' left an invalid graph: .*'d', which is not defined"):
        run(graph, Custom(cut), crash_dir=tmp_path)
    assert lines(graph) == lines(graph_of(CHAIN))
    assert (next(tmp_path.iterdir()) / "model.onnx").exists()


def test_an_invalid_node_is_named() -> None:
    def spoil(graph: Graph) -> PassResult:
        node = graph.by_op("Sigmoid")[0]
        graph.replace_node(node, NodeProto(op_type="Sigmoidal", input=["c"], output=["d"]))
        return PassResult((Change("d", "spoiled"),))

    with pytest.raises(PassError, match=r"node 'd' \(Sigmoidal\) is not valid ONNX: No Op registered"):
        run(graph_of(CHAIN), Custom(spoil))


def test_passes_after_a_rollback_see_a_working_graph() -> None:
    def fail(graph: Graph) -> None:
        for node in list(graph.nodes)[:3]:
            graph.remove(node)
        raise ValueError

    graph = graph_of(CHAIN)
    with pytest.raises(PassError):
        run(graph, Custom(fail))
    assert run(graph, DropIdentity()).rewrites == 3
    assert_equal_outputs(parse(CHAIN), graph.to_model())


def test_other_errors_of_a_verdict_come_through() -> None:
    def broken(graph: Graph) -> Proof:
        raise GraphkitError("no disk")

    with pytest.raises(GraphkitError, match="no disk"):
        run(graph_of(CHAIN), DropIdentity(), verify=broken)


def test_weights_come_back_too() -> None:
    text = "g (float[4] x) => (float[4] y) <float w = {2.0}> { y = Mul(x, w) }"

    def spoil(graph: Graph) -> PassResult:
        graph.set_initializer("w", np.array(3.0, np.float32))
        return PassResult()

    graph = graph_of(text)
    (record,) = run(graph, Custom(spoil), verify=judge(text)).records
    assert record.status == "rolled back"
    assert graph.scalar("w") == 2.0


def test_rounds_merge_into_one_record() -> None:
    first = PassRecord("p", "p", "changed", 2, 9, 7, 0.5, ((1, 2),), 1e-6, "", {"a": 2}, (), ("n", "m"))
    later = PassRecord("p", "p", "unchanged", 0, 7, 7, 0.25, (), None, "", {"b": 1}, (), ("m", "k"))
    merged = first.merged(later)
    assert (merged.status, merged.rewrites, merged.numbers) == ("changed", 2, ((1, 2),))
    assert (merged.nodes_before, merged.nodes_after, merged.seconds) == (9, 7, 0.75)
    assert merged.max_error == 1e-6
    assert merged.counters == {"a": 2, "b": 1}
    assert merged.notes == ("n", "m", "k")


def test_node_counts_of_every_round_are_kept() -> None:
    """In a fixpoint others add and remove nodes in between: no chain of counts could be right."""
    first = PassRecord("a", "a", "changed", 1, 10, 8, 0.0, rounds=((10, 8),))
    second = PassRecord("a", "a", "changed", 1, 16, 15, 0.0, rounds=((16, 15),))
    merged = first.merged(second).merged(PassRecord("a", "a", "unchanged", 0, 12, 12, 0.0))
    assert (merged.nodes_before, merged.nodes_after) == (10, 15)
    assert merged.rounds == ((10, 8), (16, 15))
