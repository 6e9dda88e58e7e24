"""The registry: where passes come from, presets, removals, options, and errors with carets."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from passes_for_tests import DropIdentity, Replace, registry

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.manager import FixpointStage, PassStage
from graphkit.registry import BUILTIN, PRESETS, PassInfo, Registry, load_plugin
from graphkit.rewrite import PassResult

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar
from graphkit.graph import Graph
from graphkit.rewrite import PassResult

@dataclass(frozen=True)
class _Base:
    name: ClassVar[str] = "base"
    summary: ClassVar[str] = "shared"

    def run(self, graph: Graph) -> PassResult:
        return PassResult()

@dataclass(frozen=True)
class Mine(_Base):
    """What Mine does."""
    name: ClassVar[str] = "{name}"
    size: int = {size}
'''


def write_plugin(path: Path, name: str = "mine", size: int = 1) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(PLUGIN.replace("{name}", name).replace("{size}", str(size)))
    return str(path)


def texts(stages: Any) -> list[str]:
    return [str(stage) for stage in stages]


# -- built-ins and presets --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_loads_and_documents_itself(name: str) -> None:
    info = Registry().get(name)
    assert info.load().name == name  # type: ignore[attr-defined]
    assert info.source == "graphkit"
    assert info.summary
    assert not info.summary.startswith("broken")
    assert len(info.doc) > len(info.summary)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves(name: str) -> None:
    assert Registry().stages(name)


def test_listing_imports_no_pass() -> None:
    info = PassInfo("ghost", "nowhere", "no_such_module:Ghost")
    found = Registry()
    found.add(info)
    assert [item.name for item in found] == [*BUILTIN, "ghost"]
    assert info.summary.startswith("broken: pass 'ghost' from nowhere cannot be loaded: ModuleNotFoundError")
    with pytest.raises(UsageError, match="cannot be loaded") as caught:
        found.stages("cleanup,ghost")
    assert caught.value.hint == "repair or uninstall that plugin; other passes are not affected"
    assert found.stages("cleanup")


def test_a_plugin_that_exits_while_imported_is_broken_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "leaves.py"
    path.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UsageError, match="SystemExit: 3"):
        load_plugin(str(path))


# -- pipelines --------------------------------------------------------------------------------------------


def test_stages_carry_options_and_text() -> None:
    (stage,) = registry().stages("replace{op=Relu,by=Tanh,limit=1KB}")
    assert isinstance(stage, PassStage)
    assert stage.pass_ == Replace("Relu", "Tanh", 1024)
    assert str(stage) == "replace{op=Relu,by=Tanh,limit=1KB}"


def test_removal_reaches_into_presets_and_fixpoints() -> None:
    stages = registry().stages("fixpoint(drop-identity,replace){max=3},drop-identity,-drop-identity,replace")
    assert texts(stages) == ["fixpoint(replace){max=3}", "replace"]
    assert isinstance(stages[0], FixpointStage)
    without = texts(Registry().stages("minimal,-cleanup"))
    assert without == ["inline-functions"]


def test_removal_of_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        registry().stages("replace,-drop-identity,drop-identity")
    assert str(caught.value).splitlines() == [
        "'drop-identity' is not in what stands before '-drop-identity'",
        "  replace,-drop-identity,drop-identity",
        "          ^~~~~~~~~~~~~~",
    ]


def test_an_unknown_name_gets_a_suggestion_and_a_caret() -> None:
    with pytest.raises(UsageError) as caught:
        registry().stages("cleanup,drop-identty")
    assert str(caught.value).splitlines() == [
        "unknown pass 'drop-identty'; did you mean 'drop-identity'?",
        "  cleanup,drop-identty",
        "          ^~~~~~~~~~~~",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("replace{opp=Relu}", "unknown option 'opp'; did you mean 'op'?"),
        ("replace{limit=many}", "option 'limit' needs a whole number, not 'many'"),
        ("replace{op=Relu,op=Add}", "option 'op' is given twice"),
        ("drop-identity{x=1}", "unknown option 'x' (it has no options)"),
        ("minimal{x=1}", "preset 'minimal' has no options"),
        ("fixpoint(replace){min=1}", "unknown option 'min' of fixpoint (options: max)"),
        ("fixpoint(replace){max=0}", "option 'max' of fixpoint needs a whole number from 1, not '0'"),
        ("fixpoint(replace){max=lots}", "option 'max' of fixpoint needs a whole number from 1, not 'lots'"),
    ],
)
def test_wrong_options(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry().stages(text)
    message, shown, mark = str(caught.value).splitlines()
    assert message == problem
    assert shown.strip() == text
    assert mark.strip().startswith("^")


def test_the_caret_of_an_option_is_under_the_option() -> None:
    with pytest.raises(UsageError) as caught:
        registry().stages("replace{op=Relu,limit=many}")
    assert str(caught.value).splitlines()[2] == "  " + " " * 16 + "^~~~~~~~~~"


def test_a_fixpoint_has_a_bound() -> None:
    (stage,) = registry().stages("fixpoint(replace){max=7}")
    assert isinstance(stage, FixpointStage)
    assert stage.limit == 7


def test_an_option_that_the_pass_itself_refuses() -> None:
    found = Registry()
    found.add(PassInfo("picky", "tests", Picky))
    with pytest.raises(UsageError, match=r"^size must be even\n  picky\{size=3\}"):
        found.stages("picky{size=3}")
    with pytest.raises(UsageError, match=r"^pass 'picky' cannot be made: ZeroDivisionError"):
        found.stages("picky{size=0}")
    assert found.stages("picky{size=2,mode=b}")


@dataclass(frozen=True)
class Picky:
    """Refuses options."""

    name: ClassVar[str] = "picky"
    summary: ClassVar[str] = "refuses odd sizes"

    size: int = 2
    mode: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.size % 2:
            raise ValueError("size must be even")
        1 / self.size

    def run(self, graph: Graph) -> PassResult:
        """Do nothing."""
        return PassResult()


# -- plugins ----------------------------------------------------------------------------------------------


def test_a_file_is_a_plugin(tmp_path: Path) -> None:
    plugin = write_plugin(tmp_path / "x.py")
    found = Registry([plugin])
    assert found.plugins == (plugin,)
    info = found.get("mine")
    assert (info.source, info.summary, info.doc) == (plugin, "shared", "What Mine does.")
    (stage,) = found.stages("mine{size=3}")
    assert isinstance(stage, PassStage)
    assert stage.pass_.size == 3  # type: ignore[attr-defined]


def test_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    one = write_plugin(tmp_path / "a" / "x.py", "one", 1)
    two = write_plugin(tmp_path / "b" / "x.py", "two", 2)
    (first, second) = Registry([one, two]).stages("one,two")
    assert isinstance(first, PassStage)
    assert isinstance(second, PassStage)
    assert (first.pass_.size, second.pass_.size) == (1, 2)  # type: ignore[attr-defined]
    assert type(first.pass_).__module__ != type(second.pass_).__module__


def test_a_module_is_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path / "module_of_passes.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert Registry(["module_of_passes"]).get("mine").source == "module_of_passes"
    del sys.modules["module_of_passes"]


def test_a_module_that_is_a_file_here_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path / "not_on_the_path.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="No module named 'not_on_the_path'") as caught:
        Registry(["not_on_the_path"])
    assert caught.value.hint == "name the file: --plugin not_on_the_path.py"


def test_names_are_taken_once(tmp_path: Path) -> None:
    one, two = write_plugin(tmp_path / "one.py"), write_plugin(tmp_path / "two.py")
    with pytest.raises(UsageError, match=r"pass 'mine' is offered twice: by .*one\.py and by .*two\.py"):
        Registry([one, two])
    cleanup = write_plugin(tmp_path / "three.py", "cleanup")
    with pytest.raises(UsageError, match=r"pass 'cleanup' is offered twice: by graphkit and by .*three\.py"):
        Registry([cleanup])
    preset = write_plugin(tmp_path / "four.py", "default")
    with pytest.raises(UsageError, match="'default' is offered twice: by a preset of graphkit and by"):
        Registry([preset])


def test_a_plugin_that_raises_or_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    with pytest.raises(UsageError, match=r"plugin '.*bad.py' cannot be loaded: FileNotFoundError"):
        Registry([str(path)])
    path.write_text("1 / 0\n")
    with pytest.raises(UsageError, match="ZeroDivisionError: division by zero"):
        Registry([str(path)])
    assert not [name for name in sys.modules if name.startswith("graphkit_plugin_bad")]


def test_what_is_nearly_a_pass_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nearly.py"
    path.write_text("class Almost:\n    name = 'almost'\n    def run(self, graph): ...\n")
    with pytest.raises(UsageError, match="defines no pass; 'Almost' is not one: it lacks summary") as caught:
        load_plugin(str(path))
    assert caught.value.hint is not None
    assert "docs/plugins.md" in caught.value.hint
    path.write_text("class Plain:\n    name = summary = 'plain'\n    def run(self, graph): ...\n")
    with pytest.raises(UsageError, match="'Plain' is not one: it is not a dataclass"):
        load_plugin(str(path))


def test_what_is_imported_by_a_plugin_is_not_offered(tmp_path: Path) -> None:
    path = tmp_path / "imports.py"
    path.write_text("from graphkit.passes.cleanup import Cleanup\n")
    with pytest.raises(UsageError, match=r"defines no pass$"):
        load_plugin(str(path))


def test_targets_that_are_no_passes() -> None:
    with pytest.raises(UsageError, match="'x' from tests is not a pass: it is a module, not a class"):
        PassInfo("x", "tests", sys).load()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="it is registered as 'other' but calls itself 'drop-identity'"):
        PassInfo("other", "tests", DropIdentity).load()
