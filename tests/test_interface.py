"""What `import graphkit` offers: every name, lazily, and always the same thing."""

from __future__ import annotations

import subprocess
import sys

import graphkit


def test_every_name_resolves_and_stays_what_it_is() -> None:
    first = {name: getattr(graphkit, name) for name in graphkit.__all__}
    again = {name: getattr(graphkit, name) for name in graphkit.__all__}
    assert first == again
    assert callable(graphkit.optimize)
    assert callable(graphkit.verify)
    assert set(graphkit.__all__) <= set(dir(graphkit))


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, graphkit; print([m for m in ('onnx', 'numpy', 'onnxruntime', 'MNN', 'click') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
