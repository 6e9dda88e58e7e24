"""The child process: warm the tools up, then do one job after another and write down what each cost.

`python _child.py REQUEST.json`. The request holds the jobs, a tiny model for the warm-up and the name of a
file that gets one JSON line when a job starts and one when it ends, so that the parent knows which job a
crash or a hang belongs to.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._calls import CHECKS, QUANTIZERS, TOOLS, Result, Tool


def main(request_file: Path) -> None:
    """Do all jobs of a request."""
    request = json.loads(request_file.read_text(encoding="utf-8"))
    tools = {job["tool"] for job in request["jobs"]} & (TOOLS.keys() | QUANTIZERS.keys())
    for name in sorted(tools) if request["warmup"] else ():
        warm_up(name, request)
    with Path(request["events"]).open("w", encoding="utf-8") as events:
        for number, job in enumerate(request["jobs"]):
            tell(events, event="start", number=number, anon=anonymous_bytes())
            tell(events, event="end", number=number, **measure(job))


def warm_up(name: str, request: dict[str, Any]) -> None:
    """Run a tool on the tiny model: imports, lazy tables and caches are then in place."""
    source = Path(request["warmup"])
    job = {"tool": name, "source": source, "target": source.with_suffix(".warm.onnx"), "options": {}}
    failure = measure(job)["failure"]
    if failure:
        sys.stderr.write(f"warm-up of {name}: {failure}\n")


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job; CPU seconds are user and system time of all threads of this process."""
    tool = TOOLS.get(job["tool"]) or QUANTIZERS.get(job["tool"]) or CHECKS[job["tool"]]
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result, failure = attempt(tool, job)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu, "wall": wall, "failure": failure, "result": dict(result or {})}


def attempt(tool: Tool, job: dict[str, Any]) -> tuple[Result, str]:
    """Call a tool; what it raises is a result too."""
    try:
        return tool(Path(job["source"]), Path(job["target"]), job["options"]), ""
    except SystemExit as error:
        return None, f"exits with status {error.code}"
    except Exception as error:  # noqa: BLE001 - peers raise anything, and that is a cell of the table
        text = (str(error).strip().splitlines() or [""])[0]
        for file in (job["source"], job["target"]):  # where temporary files were says nothing
            text = text.replace(str(file), Path(file).name) if file else text
        return None, f"{type(error).__name__}: {text}"[:160]


def tell(events: TextIO, **event: Any) -> None:
    """Write one line that survives a crash right after."""
    events.write(json.dumps(event) + "\n")
    events.flush()


def anonymous_bytes(pid: int | str = "self") -> int | None:
    """Anonymous resident memory of a process in bytes (RssAnon), None where the system does not tell.

    Pages of mapped files are not counted: the system takes them back whenever it wants.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
