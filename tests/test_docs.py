"""Every block of the README and the docs is run.

Python blocks of one page share a namespace. Console blocks run command by command in a folder that has the models
the pages speak of; what they print must be what the page shows, numbers and spaces apart.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = ("git ", "make ", "pip ", "cd ", "pre-commit ", "python -m venv", "eval ")  # not ours to test
MASK = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|[─━┄\s]+")


def blocks(page: Path, kind: str) -> list[str]:
    return [match.group(2) for match in BLOCK.finditer(page.read_text()) if match.group(1) == kind]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, shown output) of each `$ ` line; a backslash continues a command."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    found = []
    for part in parts:
        command, _, output = part.replace("\\\n", " ").partition("\n")
        found.append((command.strip(), output))
    return found


@pytest.fixture
def folder(tmp_path: Path, model_path: Callable[[str], Path]) -> Path:
    """A folder with the models that the pages use."""
    for name in ("magika", "orientation"):
        (tmp_path / f"{name}.onnx").write_bytes(model_path(name).read_bytes())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    script = "\n\n".join(blocks(page, "python"))
    (folder / "page.py").write_text(script)
    result = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_console_blocks_print_what_the_page_shows(page: Path, folder: Path) -> None:
    code = 0
    for block in blocks(page, "console"):
        for command, shown in commands(block):
            if command.startswith(SETUP):
                continue
            if command == "echo $?":
                assert str(code) == shown.strip(), f"exit code of the command before: {code}"
                continue
            code, printed = run(command, folder)
            if shown.strip():
                assert masked(printed) == masked(shown), f"$ {command}\n{printed}"
            else:
                assert code == 0, f"$ {command}\n{printed}"


def run(command: str, folder: Path) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, timeout=300, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return result.returncode, result.stdout


def masked(text: str) -> list[str]:
    """Lines without numbers and spaces; a line that is only `…` stands for any lines."""
    return [MASK.sub("#", line.strip()).strip("#") for line in text.strip().splitlines() if line.strip()]
