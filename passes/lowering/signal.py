"""Signal processing: DFT, STFT, windows, cumulative sums and products."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()
