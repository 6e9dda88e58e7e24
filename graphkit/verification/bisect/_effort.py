"""How long and how often a search may try."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from graphkit.errors import UsageError
from graphkit.verification.bisect.search import Exhausted


@dataclass
class Effort:
    """At most so many seconds, from now, and so many tries (conversions, runs of a check).

    Raises UsageError unless both are positive.
    """

    seconds: float = 600.0
    probes: int = 400
    spent: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.probes > 0) or math.isnan(self.seconds):
            raise UsageError(f"a budget is positive, not {self.seconds} seconds and {self.probes} tries")

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left, 0 when there are none."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def late(self) -> bool:
        """True when the time is up."""
        return not self.left

    @property
    def over(self) -> bool:
        """True when no more may be spent: the time is up, or all tries are used."""
        return self.spent >= self.probes or self.late

    def spend(self) -> None:
        """Take one try; raises Exhausted when there is none left."""
        if self.over:
            raise Exhausted
        self.spent += 1

    def with_tries(self, probes: int) -> Effort:
        """The same seconds, already running, and so many tries of its own."""
        return Effort(self.seconds, probes, 0, self.started)
