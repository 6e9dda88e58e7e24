"""Fixtures that hand real models and exports to tests, fetched or made once and kept in the cache.

A test that asks for `model_path` is marked `model`, one that asks for `export_path` is marked `torch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures import exports, fetch

# The same examples everywhere: a red run must be red again. `--hypothesis-profile=default` looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers from its module's RNG, whichever tests ran before it in the same process."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        rng.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """`model_path(id)`: the file (or folder) of a real model of fixtures/models.toml."""
    return _remember(fetch.fetch)


@pytest.fixture(scope="session")
def export_path() -> Callable[[str], Path]:
    """`export_path(kind)`: an ONNX export, such as `bert2_ts` or `minilm_eager_dyn`."""
    return _remember(exports.export)


def _remember(find: Callable[[str], Path]) -> Callable[[str], Path]:
    """Ask `find` once for each name: checking a cached model again costs a hash of all its bytes."""
    known: dict[str, Path] = {}

    def remembered(name: str) -> Path:
        if name not in known:
            known[name] = find(name)
        return known[name]

    return remembered


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use, so that `-m 'not model and not torch'` is reliable."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "model_path" in names:
            item.add_marker(pytest.mark.model)
        if "export_path" in names:
            item.add_marker(pytest.mark.torch)
