"""What a pass bisection found, and everything it tried on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.verification.bisect.search import Answer


@dataclass(frozen=True)
class Trial:
    """One state that was judged: the model after so many rewrites, of which the last is `what` at `node`.

    error: largest absolute error over the reference's largest value, None when the check gives none.
    """

    number: int
    pass_name: str
    node: str
    what: str
    answer: Answer
    error: float | None
    reason: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        answer = {True: "bad", False: "good", None: "skip"}[self.answer]
        return {**vars(self), "answer": answer, "error": error, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class PassBisectResult:
    """What a pass bisection found.

    `found` holds the first bad rewrite; of several, when those between could not be told, each may be it. Empty when
    the whole pipeline is good. `total` counts the pipeline's rewrites. `before` is the model without the first bad
    rewrite, `after` with it, `feeds` the sample on which they differ most (None when the check has none). `avoid` is
    a pipeline without the pass, tried and good, None when there is none.
    complete: False when the budget ended the search.
    """

    pipeline: str
    total: int
    found: tuple[Trial, ...]
    tried: tuple[Trial, ...]
    before: Model | None = None
    after: Model | None = None
    feeds: Feeds | None = None
    pass_text: str = ""
    avoid: str | None = None
    complete: bool = True
    seconds: float = 0.0
    plugins: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing is bad."""
        return not self.found

    @property
    def exact(self) -> bool:
        """True when one rewrite was found."""
        return len(self.found) == 1

    @property
    def last(self) -> Trial | None:
        """The rewrite that is known to be bad: the one found, or the last of several."""
        return self.found[-1] if self.found else None

    @property
    def answer(self) -> str:
        """The result in one line."""
        last = self.last
        if last is None:
            what = f"all {self.total} leave the model good" if self.total else "the pipeline makes none"
            return f"no bad rewrite: {what}"
        if self.exact:
            where = f"rewrite {last.number} of {self.total}"
        else:
            where = f"rewrites {self.found[0].number} to {last.number} of {self.total} (one of them)"
        at = f" at node '{last.node}'" if last.node else ""
        return f"first bad: {where}, pass '{last.pass_name}'{at} ({last.what}): {last.reason or 'the check says bad'}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "answer": self.answer,
            "pipeline": self.pipeline,
            "rewrites": self.total,
            "found": [trial.to_dict() for trial in self.found],
            "pass": self.last.pass_name if self.last else None,
            "pass_text": self.pass_text or None,
            "number": self.last.number if self.last and self.exact else None,
            "avoid": self.avoid,
            "complete": self.complete,
            "tried": [trial.to_dict() for trial in self.tried],
            "seconds": round(self.seconds, 3),
        }
