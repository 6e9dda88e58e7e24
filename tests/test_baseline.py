"""Passes that change values on purpose: what they leave is the reference from then on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from passes_for_tests import DropIdentity, Replace, ScaleOutput
from passes_for_tests import registry as known_passes

from graphkit.mnn.road import convert
from graphkit.optimizer import OptimizeResult, optimize
from graphkit.registry import PassInfo, Registry
from graphkit.testing import parse

TEXT = "g (float[N,4] x) => (float[N,4] y) { a = Identity(x) b = Relu(a) y = Add(b, a) }"


@dataclass(frozen=True)
class ScaleOnPurpose(ScaleOutput):
    """As ScaleOutput, and says so."""

    name: ClassVar[str] = "scale-on-purpose"
    changes_values: ClassVar[bool] = True


def registry() -> Registry:
    passes = known_passes()
    passes.add(PassInfo(ScaleOnPurpose.name, "tests", ScaleOnPurpose))
    return passes


def run(passes: str, verify: str = "end") -> OptimizeResult:
    return optimize(parse(TEXT), passes, verify=verify, registry=registry())  # type: ignore[arg-type]


@pytest.mark.parametrize("verify", ["end", "each"])
def test_what_it_leaves_is_the_reference(verify: str) -> None:
    result = run(f"{ScaleOnPurpose.name},{DropIdentity.name}", verify)
    assert result.ok
    assert result.proof.kind == "equal"
    assert "compared with the model as scale-on-purpose left it" in result.proof.note
    record = result.report.records[0]
    assert record.status == "changed"
    assert record.max_error is not None
    assert record.max_error > 0.1
    assert any("on purpose" in note for note in record.notes)


@pytest.mark.parametrize("verify", ["end", "each"])
def test_a_fault_before_it_is_found(verify: str) -> None:
    result = run(f"{Replace.name},{ScaleOnPurpose.name}", verify)
    assert [record.status for record in result.report.records] == ["rolled back", "changed"]
    assert result.proof.ok


@pytest.mark.parametrize("verify", ["end", "each"])
def test_a_fault_after_it_is_found(verify: str) -> None:
    result = run(f"{ScaleOnPurpose.name},{Replace.name}", verify)
    assert [record.status for record in result.report.records] == ["changed", "rolled back"]
    assert result.proof.ok


def test_it_may_change_nothing() -> None:
    result = run(f"{ScaleOnPurpose.name}", "none")
    assert result.report.records[0].max_error is None


def test_mnn_is_compared_with_what_it_left(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from graphkit import Builder, apply_rules, rule\n"
        "@rule('Relu')\ndef match(graph, node):\n"
        "    build = Builder(graph, node)\n"
        "    return build.rewrite({node.outputs[0]: build.op('Sigmoid', node.inputs[0])}, 'Sigmoid')\n"
        "@dataclass(frozen=True)\nclass Other:\n"
        "    name: ClassVar[str] = 'other'\n    summary: ClassVar[str] = 'other values'\n"
        "    changes_values: ClassVar[bool] = True\n"
        "    def run(self, graph):\n        return apply_rules(graph, [match])\n"
    )
    result = convert(parse(TEXT), tmp_path / "m.mnn", passes="other,mnn", plugins=[str(plugin)])
    assert result.proof.kind == "equal"
    assert "as other left it" in result.proof.note
