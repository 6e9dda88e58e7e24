"""Pass bisection: a planted wrong rewrite is named with its number; commands decide as for `git bisect run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto
from passes_for_tests import Custom, registry

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.registry import PassInfo, Registry
from graphkit.rewrite import Change, PassResult
from graphkit.testing import graph_of, parse
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.passes import (
    Command,
    Judgement,
    PassBisectResult,
    alone,
    bisect_passes,
    breaks,
)
from graphkit.verification.bisect.reduction import reduce_model

# Puts the operands of Add the other way round, which is right, and of one Sub, which is not.
PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

from graphkit.rewrite import Builder, PassResult, apply_rules, rule


def turned(graph, node):
    if node.op == "Sub" and "bad" not in node.name:
        return None
    build = Builder(graph, node)
    turned = build.op(node.op, *reversed(node.inputs))
    if graph.constant(node.inputs[0]) is not None:
        return None
    return build.rewrite({node.outputs[0]: turned}, f"turn {node.op}")


@dataclass(frozen=True)
class Turn:
    """Turn Add and Sub round."""

    name: ClassVar[str] = "turn"
    summary: ClassVar[str] = "operands the other way round"

    def run(self, graph):
        return apply_rules(graph, [rule("Add", "Sub", name="turn")(turned)])
'''


def chain(kinds: str) -> Model:
    """A chain of y = x + c (a), x − c that is left alone (s), x − c that is turned (b), Identity (i)."""
    lines, value = [], "x"
    for number, kind in enumerate(kinds):
        name, out = ("bad" if kind == "b" else kind) + str(number), f"v{number}"
        call = f"Identity({value})" if kind == "i" else f"{'Add' if kind == 'a' else 'Sub'}({value}, c)"
        lines.append(f"[{name}] {out} = {call}")
        value = out
    body = "\n".join([*lines, f"y = Relu({value})"])
    return parse(f"g (float[N,4] x) => (float[N,4] y) <float[4] c = {{1.0, 2.0, 3.0, 4.0}}> {{ {body} }}")


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "turn.py"
    file.write_text(PLUGIN)
    return str(file)


FEEDS = {"x": np.linspace(20, 60, 12, dtype=np.float32).reshape(3, 4)}


@pytest.mark.parametrize(("kinds", "rewrite"), [("b", 1), ("aab", 3), ("baa", 1), ("asaasbaaasa", 4), ("iaaiabi", 4)])
def test_a_planted_rewrite_is_named_with_its_number(kinds: str, rewrite: int, plugin: str) -> None:
    result = bisect_passes(chain(kinds), "turn", inputs=[FEEDS], plugins=[plugin])
    found = result.last
    assert found is not None
    assert result.exact
    assert (found.number, found.pass_name, found.what) == (rewrite, "turn", "turn Sub")
    assert found.node == f"bad{kinds.index('b')}"
    assert found.error is not None
    assert found.error > 0.01
    assert f"rewrite {rewrite} of {result.total}, pass 'turn' at node '{found.node}' (turn Sub)" in result.answer
    assert result.avoid is None  # nothing would be left of the pipeline
    assert len(result.tried) <= 2 + result.total.bit_length()


def test_the_pass_is_found_among_others(plugin: str) -> None:
    result = bisect_passes(chain("iaibaia"), "minimal,infer-shapes,turn,cse,cleanup", inputs=[FEEDS], plugins=[plugin])
    found = result.last
    assert found is not None
    assert (found.pass_name, found.node, found.what) == ("turn", "bad3", "turn Sub")
    assert result.pass_text == "turn"
    assert result.avoid == "minimal,infer-shapes,turn,cse,cleanup,-turn"
    before, after = result.before, result.after
    assert before is not None
    assert after is not None
    bad_before, bad_after = (
        next(node for node in model.proto.graph.node if node.name == "bad3") for model in (before, after)
    )
    assert list(bad_before.input) == list(reversed(bad_after.input))


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    file = tmp_path_factory.mktemp("plugins") / "turn.py"
    file.write_text(PLUGIN)
    return Registry([str(file)])


@settings(max_examples=15, deadline=None)
@given(front=st.text("asi", max_size=12), behind=st.text("asi", max_size=12))
def test_wherever_it_is(front: str, behind: str, turning: Registry) -> None:
    result = bisect_passes(chain(f"{front}b{behind}"), "turn", inputs=[FEEDS], registry=turning)
    found = result.last
    assert found is not None
    assert (found.number, found.node) == (front.count("a") + 1, f"bad{len(front)}")


def test_nothing_is_wrong(plugin: str) -> None:
    result = bisect_passes(chain("aasia"), "default,turn", inputs=[FEEDS], plugins=[plugin])
    assert result.ok
    assert result.found == ()
    assert result.last is None
    assert "no bad rewrite" in result.answer


def test_a_pipeline_that_does_nothing() -> None:
    result = bisect_passes(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"), "cse")
    assert (result.ok, result.total) == (True, 0)
    assert result.answer == "no bad rewrite: the pipeline makes none"


def test_an_unnumbered_change_is_one_rewrite() -> None:
    result = bisect_passes(chain("iai"), "drop-identity,scale-output{by=3},cleanup", registry=registry())
    found = result.last
    assert found is not None
    assert (found.number, found.pass_name, found.what) == (3, "scale-output", "scaled")
    assert result.pass_text == "scale-output{by=3}"


def test_a_fixpoint_names_the_round(plugin: str) -> None:
    result = bisect_passes(chain("iaba"), "fixpoint(drop-identity,replace{op=Relu,by=Sigmoid})", registry=registry())
    found = result.last
    assert found is not None
    assert (found.pass_name, found.what) == ("replace", "Relu to Sigmoid")


def test_a_size_that_is_bound_is_compared_at_that_size() -> None:
    result = bisect_passes(
        chain("iai"), "drop-identity,replace{op=Relu,by=Sigmoid}", bind={"N": 7}, registry=registry()
    )
    found = result.last
    assert found is not None
    assert found.pass_name == "replace"
    assert result.feeds is not None
    assert result.feeds["x"].shape == (7, 4)


def test_what_a_pass_changes_on_purpose_is_no_fault_and_later_faults_are_found() -> None:
    @dataclass(frozen=True)
    class Louder:
        """Doubles the constant, and says so."""

        name: ClassVar[str] = "louder"
        summary: ClassVar[str] = "doubles c"
        changes_values: ClassVar[bool] = True

        def run(self, graph: Graph) -> PassResult:
            """Rewrite the graph in place."""
            constant = graph.constant("c")
            assert constant is not None
            graph.set_initializer("c", constant * 2)
            return PassResult((Change("c", "doubled"),))

    found = registry()
    found.add(PassInfo("louder", "tests", Louder))
    model = chain("iaiai")
    assert bisect_passes(model, "drop-identity,louder,cleanup", inputs=[FEEDS], registry=found).ok
    for text in ("louder,replace{op=Relu,by=Neg},cleanup", "replace{op=Relu,by=Neg},louder,cleanup"):
        result = bisect_passes(model, text, inputs=[FEEDS], registry=found)
        assert result.last is not None
        assert (result.last.pass_name, result.last.what) == ("replace", "Relu to Neg")


def test_rewrites_that_go_in_pairs_are_not_blamed(tmp_path: Path) -> None:
    """After the first of two rewrites of a right pass the outputs are wrong; the wrong pass comes later."""

    def negate_twice(graph: Graph) -> PassResult:
        changes = []
        for number, node in enumerate(graph.by_op("Identity")):
            if not graph.allows(node, f"negation {number}"):
                break
            graph.replace_node(node, NodeProto(op_type="Neg", input=node.inputs, output=node.outputs, name=node.name))
            changes.append(Change(node.label, f"negation {number}"))
        return PassResult(tuple(changes))

    @dataclass(frozen=True)
    class Negate(Custom):
        """Custom under a name of its own."""

        name: ClassVar[str] = "negate"
        do: object = negate_twice  # type: ignore[assignment]

    found = registry()
    found.add(PassInfo("negate", "tests", Negate))
    model = chain("aiiaa")
    result = bisect_passes(model, "negate,replace{op=Relu,by=Sigmoid}", inputs=[FEEDS], registry=found)
    assert result.last is not None
    assert (result.last.pass_name, result.last.number) == ("replace", 3)


# -- other checks -----------------------------------------------------------------------------------------


def test_a_function_decides(plugin: str) -> None:
    def no_sub(model: Model) -> bool:
        return any(node.op_type == "Sub" and node.input[0] == "c" for node in model.proto.graph.node)

    result = bisect_passes(chain("aabaa"), "turn", check=no_sub, plugins=[plugin])
    assert result.last is not None
    assert (result.last.number, result.last.node, result.last.error) == (3, "bad2", None)
    assert "the check says bad" in result.answer


def test_a_function_may_say_why(plugin: str) -> None:
    def judge(model: Model) -> Judgement:
        bad = any(node.op_type == "Sub" and node.input[0] == "c" for node in model.proto.graph.node)
        return Judgement(bad, 0.5 if bad else 0.0, "half of it" if bad else "")

    result = bisect_passes(chain("aab"), "turn", check=judge, plugins=[plugin])
    assert result.last is not None
    assert (result.last.error, result.last.reason) == (0.5, "half of it")


def test_states_that_cannot_be_told_leave_several_candidates(plugin: str) -> None:
    def judge(model: Model) -> bool | None:
        turned = sum(node.input[0] == "c" for node in model.proto.graph.node)
        return None if 3 <= turned <= 5 else turned > 5

    result = bisect_passes(chain("aaaaaaaa"), "turn", check=judge, plugins=[plugin])
    assert [trial.number for trial in result.found] == [3, 4, 5, 6]
    assert [trial.answer for trial in result.found] == [None, None, None, True]
    assert not result.exact
    assert "rewrites 3 to 6 of 8 (one of them)" in result.answer


def test_the_original_is_bad_already(plugin: str) -> None:
    with pytest.raises(UsageError, match="calls the model bad before any rewrite"):
        bisect_passes(chain("aa"), "turn", check=lambda model: True, plugins=[plugin])


@pytest.mark.parametrize("skipped", [0, 2])
def test_an_end_that_cannot_be_told(skipped: int, plugin: str) -> None:
    def judge(model: Model) -> bool | None:
        turned = sum(node.input[0] == "c" for node in model.proto.graph.node)
        return None if turned == skipped else False

    with pytest.raises(UsageError, match="nothing can be told"):
        bisect_passes(chain("aa"), "turn", check=judge, plugins=[plugin])


def test_random_outputs_need_a_check() -> None:
    model = parse("g () => (float[4] y) { i = RandomNormal<shape=[4]>() y = Identity(i) }")
    with pytest.raises(UsageError, match="nothing to compare with: the reference differs from itself"):
        bisect_passes(model, "drop-identity", registry=registry())
    assert bisect_passes(model, "drop-identity", registry=registry(), check=lambda model: False).ok


def test_a_budget_that_ends_leaves_what_is_known(plugin: str) -> None:
    result = bisect_passes(
        chain("a" * 20 + "b" + "a" * 20), "turn", inputs=[FEEDS], plugins=[plugin], effort=Effort(probes=2)
    )
    assert not result.complete
    numbers = [trial.number for trial in result.found]
    assert 21 in numbers
    assert 5 <= len(numbers) <= 11
    assert result.avoid is None


def test_the_result_as_json(plugin: str) -> None:
    data = bisect_passes(chain("aab"), "turn", inputs=[FEEDS], plugins=[plugin]).to_dict()
    assert (data["pass"], data["number"], data["rewrites"]) == ("turn", 3, 3)
    assert {trial["answer"] for trial in data["tried"]} == {"good", "bad"}


# -- commands ---------------------------------------------------------------------------------------------

MODEL = chain("ab")


def script(tmp_path: Path, body: str) -> str:
    file = tmp_path / "check.py"
    file.write_text(f"import os, sys\npath = sys.argv[-1]\n{body}\n")
    return f"{sys.executable} {file}"


@pytest.mark.parametrize(("code", "answer"), [(0, False), (1, True), (2, True), (124, True), (125, None)])
def test_exit_codes(code: int, answer: bool | None) -> None:
    assert Command.parse(f"sh -c 'exit {code}'")(MODEL) is answer


def test_the_path_comes_last_or_where_it_is_wanted(tmp_path: Path) -> None:
    body = "assert sys.argv[1:] == sys.argv[1:2] + [os.environ['GRAPHKIT_MODEL']]; import onnx; onnx.load(path)"
    line = script(tmp_path, body)
    assert Command.parse(f"{line} first")(MODEL) is False
    assert Command.parse(f"{line} first {{}}")(MODEL) is False
    line = script(tmp_path, "sys.exit(sys.argv[1] != '--model=' + os.environ['GRAPHKIT_MODEL'] + ':x')")
    assert Command.parse(f"{line} --model={{}}:x")(MODEL) is False
    assert Command.parse("sh -c 'test -s \"$GRAPHKIT_MODEL\"'")(MODEL) is False


def test_it_runs_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("here").touch()
    assert Command.parse("sh -c 'test -e here'")(MODEL) is False


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no-such-program {}", "'no-such-program' cannot be started: there is no such program"),
        ("/etc/passwd", "'/etc/passwd' cannot be started: Permission denied"),
        ("sh -c 'no-such-program'", "ended with 127: a program in it was not found"),
        ("sh -c 'echo first; echo second >&2; exit 126'", "ended with 126.*it printed: first | second"),
        ("sh -c 'exit 200'", "ended with 200"),
        ("sh -c 'kill -9 $$'", "was ended by SIGKILL"),
        ("sh -c 'sleep 30'", "did not end within 0.3 s"),
    ],
)
def test_what_is_no_answer_is_an_error(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Command.parse(line, timeout=0.3)(MODEL)
    assert caught.value.hint


def test_what_a_check_started_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did not end"):
        Command.parse(f"sh -c 'sh -c \"sleep 1; touch {tmp_path}/late\" & wait'", timeout=0.3)(MODEL)
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize("line", ["", "   "])
def test_an_empty_command(line: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        Command.parse(line)


def test_a_line_that_cannot_be_read() -> None:
    with pytest.raises(UsageError, match="cannot read the check command: No closing quotation"):
        Command.parse("sh -c 'exit")
    with pytest.raises(UsageError, match="time limit is positive"):
        Command.parse("true", timeout=0)


def test_a_command_decides(plugin: str, tmp_path: Path) -> None:
    body = "import onnx\nsys.exit(any(n.op_type == 'Sub' and n.input[0] == 'c' for n in onnx.load(path).graph.node))"
    result = bisect_passes(chain("aasbaa"), "turn", check=Command.parse(script(tmp_path, body)), plugins=[plugin])
    assert result.last is not None
    assert (result.last.number, result.last.node) == (3, "bad3")


def test_a_missing_command_ends_the_search_before_it_begins(plugin: str) -> None:
    with pytest.raises(UsageError, match="cannot be started"):
        bisect_passes(chain("ab"), "turn", check=Command.parse("no-such-program"), plugins=[plugin])


# -- what comes after -------------------------------------------------------------------------------------


def found_in(model: Model, pipeline: str, plugin: str) -> PassBisectResult:
    return bisect_passes(model, pipeline, inputs=[FEEDS], plugins=[plugin])


def test_the_pass_alone_is_wrong_on_the_model_before_it(plugin: str) -> None:
    result = found_in(chain("iaibaia"), "minimal,turn,cleanup", plugin)
    assert alone(result) == "turn"
    assert result.before is not None
    predicate = breaks("turn", plugins=[plugin])
    assert predicate(result.before, FEEDS) is True
    assert predicate(chain("aa"), FEEDS) is False
    assert predicate(chain("aa"), {"x": np.zeros((2, 3), np.float32)}) is None


def test_a_pass_that_needs_types_gets_them() -> None:
    @dataclass(frozen=True)
    class Typed(Custom):
        """Wrong where the rank of a value is known."""

        name: ClassVar[str] = "typed"
        do: object = lambda graph: _to_neg(graph) if graph.rank("v0") == 2 else None  # type: ignore[assignment]

    found = registry()
    found.add(PassInfo("typed", "tests", Typed))
    result = bisect_passes(chain("aa"), "infer-shapes,typed", inputs=[FEEDS], registry=found)
    assert result.last is not None
    assert alone(result, registry=found) == "infer-shapes,typed"


def _to_neg(graph: Graph) -> PassResult:
    node = graph.by_op("Relu")[0]
    graph.replace_node(node, NodeProto(op_type="Neg", input=node.inputs, output=node.outputs, name=node.name))
    return PassResult((Change(node.label, "wrong"),))


def test_the_model_given_is_not_changed(plugin: str) -> None:
    model = chain("aab")
    stored = model.proto.SerializeToString()
    found_in(model, "turn", plugin)
    assert model.proto.SerializeToString() == stored
    assert len(graph_of("g (float[N] x) => (float[N] y) { y = Relu(x) }")) == 1


def test_a_planted_rewrite_in_a_transformer(export_path: Callable[[str], Path], tmp_path: Path) -> None:
    plugin = tmp_path / "divide.py"
    plugin.write_text(
        PLUGIN[: PLUGIN.index("def turned")]
        + '''
import numpy as np


@rule("Div")
def multiply(graph, node):
    by = graph.scalar(node.inputs[1])
    if by is None:
        return None
    build = Builder(graph, node)
    factor = (1.02 if "layer.1/intermediate" in node.label else 1.0) / by
    product = build.op("Mul", node.inputs[0], build.const(np.float32(factor)))
    return build.rewrite({node.outputs[0]: product}, "multiply")


@dataclass(frozen=True)
class Multiply:
    """Div by a constant becomes Mul."""

    name: ClassVar[str] = "multiply"
    summary: ClassVar[str] = "Div by a constant becomes Mul"

    def run(self, graph):
        return apply_rules(graph, [multiply])
'''
    )
    result = bisect_passes(export_path("bert2_ts"), "default,-fuse-gelu,multiply,cleanup", plugins=[str(plugin)])
    found = result.last
    assert found is not None
    assert result.exact
    assert (found.pass_name, found.what) == ("multiply", "multiply")
    assert "layer.1/intermediate" in found.node
    assert result.avoid == "default,-fuse-gelu,multiply,cleanup,-multiply"
    assert len(result.tried) <= 2 + 2 * result.total.bit_length()
    text = alone(result)
    assert text is not None
    assert result.before is not None
    assert result.feeds is not None
    reduced = reduce_model(result.before, result.feeds, breaks(text, plugins=result.plugins))
    assert reduced.labels == (found.node,)
    assert reduced.nbytes < 1000


def test_a_search_without_time_names_what_it_may_be_and_runs_nothing_for_it(
    plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphkit.verification.bisect import _stops

    runs: list[int | None] = []
    run = _stops.Stops.run
    effort = Effort()

    def counted(self: _stops.Stops, number: int | None = None) -> object:
        runs.append(number)
        if number == 0:
            effort.seconds = 1e-9
        return run(self, number)

    monkeypatch.setattr(_stops.Stops, "run", counted)
    result = bisect_passes(chain("a" * 20 + "b" + "a" * 20), "turn", inputs=[FEEDS], plugins=[plugin], effort=effort)
    assert not result.complete
    assert [trial.number for trial in result.found] == list(range(1, 42))
    assert len(runs) <= 3
