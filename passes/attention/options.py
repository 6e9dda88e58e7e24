"""What a user may say about attention operators; every reader gets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of `split-attention`, as readers of operators see them.

    `chunk` is the number of queries of a block (0: all at once). The others describe one operator of a custom
    domain, `op` (`my.domain::FlashAttn`), in place of its attributes: `layout` is "bshd", "bhsd" or "" (read it from
    the node), `scale` None and `causal` None say the same.
    """

    chunk: int = 0
    op: str = ""
    layout: str = ""
    scale: float | None = None
    causal: bool | None = None
