"""What ships and how it hangs together: every subpackage is listed, and imports go one way."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def packages() -> set[str]:
    """Every folder with an `__init__.py` under the folders that setuptools is told about."""
    found = set()
    for name, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *parts)))
    return found


def test_every_subpackage_is_listed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages()


@pytest.mark.parametrize("name", ["passes", "quant"])
def test_the_folders_beside_the_engine_are_linked_into_it(name: str) -> None:
    link = ROOT / "graphkit" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert FOLDERS[f"graphkit.{name}"] == name


def test_imports_go_down_only() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_imports_by_itself() -> None:
    modules = sorted(
        ".".join(("graphkit", *path.relative_to(ROOT / "graphkit").with_suffix("").parts))
        for path in (ROOT / "graphkit").glob("*.py")
        if path.name != "__init__.py"
    )
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for known in [m for m in sys.modules if m.split('.')[0] == 'graphkit']:\n"
        "        del sys.modules[known]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *modules], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
