"""A small converted model that several tests edit, and MNN's results before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from converted import CNN, IMAGE, Array, cnn_weights, computed, convert

from graphkit.mnn.document import Document, read, write

After = Callable[..., dict[str, Array]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where converted models are."""
    return tmp_path_factory.mktemp("converted")


@pytest.fixture(scope="session")
def cnn_file(folder: Path) -> Path:
    """`CNN`, converted."""
    return convert(folder / "cnn.mnn", CNN, cnn_weights())


@pytest.fixture
def cnn(cnn_file: Path) -> Document:
    """`CNN` as a document."""
    return read(cnn_file)


@pytest.fixture(scope="session")
def before(cnn_file: Path) -> dict[str, Array]:
    """What the tensors of the unedited model are for `IMAGE`."""
    return computed(cnn_file, IMAGE, ["y", "m", "t", "p"])


@pytest.fixture
def after(tmp_path: Path) -> After:
    """`after(doc)`: what MNN computes with the edited document."""

    def run(doc: Document, feeds: dict[str, Array] = IMAGE, outputs: list[str] | None = None) -> dict[str, Array]:
        write(doc, tmp_path / "edited.mnn")
        return computed(tmp_path / "edited.mnn", feeds, outputs)

    return run
