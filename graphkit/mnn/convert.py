"""Hand a model to MNNConvert and tell what really happened.

MNNConvert returns the same status for success, an unsupported operator and a missing file, and crashes on
some models. Its log, the signal that ended it and the file it left are the evidence. That the numbers are
right is not known here; the caller runs the result and compares.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from graphkit.errors import GraphkitError, MnnError, ModelError, NodeFault, OutputError
from graphkit.mnn.fileinfo import FileInfo, read_file_info
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.process import Ending, run_child, shorten

_UNSUPPORTED = re.compile(r"(?:These Op Not Support|NOT_SUPPORTED_OP)\s*:?\s*(.*)")
_CLOCK = re.compile(r"^\[\d\d:\d\d:\d\d\] (?:\S*?:\d+: )?")

# (text in the log, what it means). Each is final even when "Converted Success!" follows.
_FAILURES = (
    ("Model File Does Not Exist", "MNN's converter did not find the model file"),
    ("Invalid ONNX Model", "MNN's converter cannot parse the ONNX file"),
    ("Can't open file", "MNN's converter cannot open a file"),
    ("Invalid json", "MNN's converter cannot read the JSON file"),
    ("Key Error!", "MNN's converter cannot read the input configuration"),
    ("Convert error", "MNN's converter does not understand the file"),
    ("Converted Failed", "MNN's converter gave up"),
)

# Said of a step of the conversion, of which the result may be free: right models were seen with these lines.
_DOUBTS = (
    ("Broad cast error", "MNN's converter found shapes that do not broadcast"),
    ("Compute Shape Error", "MNN's converter cannot compute a shape"),
)

_NOTABLE = ("don't use block-quant", "[ERROR]", "[WARN", "Warning", "not support", "Error")


class ConverterError(MnnError):
    """MNN's converter failed.

    `unsupported_ops` are ONNX operator types it refused, as it spells them without the domain (it never
    names nodes); `signal` is what ended it, such as 'SIGSEGV'; `timed_out` tells that we did. Faults carry
    an empty node name: the caller knows which nodes have these types.
    """

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        log: str = "",
        hint: str | None = None,
        unsupported_ops: tuple[str, ...] = (),
        signal: str | None = None,
        timed_out: bool = False,
    ) -> None:
        faults = tuple(NodeFault("", op, "MNN does not support this operator") for op in unsupported_ops)
        super().__init__(message, faults=faults, log=shorten(log), file=file, hint=hint)
        self.unsupported_ops = unsupported_ops
        self.signal = signal
        self.timed_out = timed_out


@dataclass(frozen=True)
class ConverterRun:
    """A conversion that left a file MNN's format allows.

    seconds is wall time of the child; warnings are log lines a user should see; unsupported are outputs of
    operators that became placeholders and will fail at run time (allowCustomOp); weights_file is the
    companion of saveExternalData; doubt is what the log says of shapes that do not fit: the file may be right
    all the same, which only its results tell.
    """

    output: Path
    log: str
    seconds: float
    warnings: tuple[str, ...]
    unsupported: tuple[str, ...]
    weights_file: Path | None = None
    doubt: str = ""


def run_converter(
    source: Path, output: Path, options: ConverterOptions | None = None, *, timeout: float = 600.0
) -> ConverterRun:
    """Convert `source` to `output` with MNNConvert in a child process.

    The child works in a private folder beside the output, and the result (with `OUT.mnn.weight`, if any)
    is moved into place only when it is whole; an existing output survives a failure. External ONNX data
    are read from the source's folder. Raises ModelError when the source is missing, OutputError when the
    output cannot be written or is the source, ConverterError when MNN refuses, crashes, leaves no
    readable file, or takes longer than `timeout` seconds.
    """
    options = options or ConverterOptions.of()
    source, output = Path(source), Path(output)
    if not source.is_file():
        raise ModelError("is not there" if not source.exists() else "is not a file", file=source)
    if output.exists() and output.samefile(source):
        raise OutputError("would overwrite the model it is made from", file=output)
    with _private_folder(output) as folder:
        made = folder / "model.mnn"
        argv = options.argv(source.absolute(), made)
        ending = run_child({"task": "convert", "argv": argv}, folder, timeout)
        unsupported = unsupported_ops(ending.log)
        _check(ending, source, options, unsupported, timeout)
        placeholders = tuple(op.outputs[0] for op in _check_made(made, source, ending).ops if op.type == "Extra")
        weights = _move(made, output)
    log, doubt = ending.log, _failure(ending.log, _DOUBTS) or ""
    return ConverterRun(output, shorten(log), ending.seconds, warning_lines(log), placeholders, weights, doubt)


def unsupported_ops(log: str) -> tuple[str, ...]:
    """Operator types that MNNConvert's log calls unsupported, without framework prefix, in its order."""
    found: dict[str, None] = {}
    for match in _UNSUPPORTED.finditer(log):
        for word in match.group(1).replace("|", " ").split():
            found.setdefault(word.rsplit("::", 1)[-1])
    return tuple(found)


def warning_lines(log: str) -> tuple[str, ...]:
    """Lines of the log that a user should see, without time stamps, each once, at most 20."""
    lines = (_CLOCK.sub("", line).strip() for line in log.splitlines() if any(w in line for w in _NOTABLE))
    return tuple(dict.fromkeys(lines))[:20]


@contextlib.contextmanager
def _private_folder(output: Path) -> Iterator[Path]:
    """A new folder on the output's file system, so that moving the result is one rename."""
    try:
        folder = tempfile.mkdtemp(prefix=".graphkit-", dir=output.absolute().parent)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=output) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(
    ending: Ending, source: Path, options: ConverterOptions, unsupported: tuple[str, ...], timeout: float
) -> None:
    """Raise ConverterError when the child's end or its log tells of a failure."""
    if ending.timed_out:
        raise ConverterError(
            f"MNN's converter did not finish within {timeout:g} s",
            file=source,
            log=ending.log,
            hint="its time grows with the square of the number of nodes: optimize first, or allow more time",
            timed_out=True,
        )
    if ending.signal is not None:
        raise ConverterError(
            f"MNN's converter crashed ({ending.signal})", file=source, log=ending.log, signal=ending.signal
        )
    if unsupported and not options.get("allowCustomOp"):
        ops = ", ".join(unsupported)
        raise ConverterError(f"MNN does not support: {ops}", file=source, log=ending.log, unsupported_ops=unsupported)
    meaning = _failure(ending.log, _FAILURES)
    if meaning is not None:
        raise ConverterError(meaning, file=source, log=ending.log)
    if ending.code != 0:
        raise _broken_child(ending, source)


def _failure(log: str, known: Iterable[tuple[str, str]]) -> str | None:
    """What the first failure line of the log means, with the line itself."""
    for line in log.splitlines():
        for text, meaning in known:
            if text in line:
                return f"{meaning}: {_CLOCK.sub('', line).strip()}"
    return None


def _broken_child(ending: Ending, source: Path) -> GraphkitError:
    last = ending.log.strip().splitlines()[-1:] or ["no output"]
    if "ModuleNotFoundError" in last[0] or "ImportError" in last[0]:
        return MnnError(f"MNN is not installed here: {last[0]}", log=ending.log, hint="pip install MNN")
    return ConverterError(f"MNN's converter ended with status {ending.code}: {last[0]}", file=source, log=ending.log)


def _check_made(made: Path, source: Path, ending: Ending) -> FileInfo:
    """What the file holds; raises ConverterError unless it exists and can be read as a network."""
    if not made.is_file():
        raise ConverterError("MNN's converter left no file and no reason", file=source, log=ending.log)
    try:
        return read_file_info(made)
    except ModelError as error:
        raise ConverterError(
            f"MNN's converter left a file of {made.stat().st_size} bytes that is no model",
            file=source,
            log=ending.log,
        ) from error


def _move(made: Path, output: Path) -> Path | None:
    """Move the model and its weights file into place; weights first, so that no model lacks them."""
    made_weights, weights = _companion(made), _companion(output)
    try:
        if made_weights.exists():
            made_weights.replace(weights)
            made.replace(output)
            return weights
        made.replace(output)
        weights.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=output) from error
    return None


def _companion(model: Path) -> Path:
    return model.with_name(model.name + ".weight")
