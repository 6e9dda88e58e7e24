"""Codes and scales put into a converted .mnn file, in place of the floats that MNN's converter made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.mnn.carry.index import Index
from graphkit.mnn.carry.lift import Lifted
from graphkit.mnn.carry.match import Match, find
from graphkit.mnn.carry.reasons import explain, kept_tables
from graphkit.mnn.carry.results import Carriage, CarriedLayer
from graphkit.mnn.carry.sites import Site, any_quantized, sites, table_bytes
from graphkit.mnn.carry.spool import Spool
from graphkit.mnn.carry.structure import codes_of, stands_for
from graphkit.mnn.document import read, write
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.tree import Array


@dataclass(eq=False)
class _Work:
    """What is known while a file is worked on: layers that got codes, and why others did not, by the weight."""

    document: Document
    index: Index
    spool: Spool
    outside: Outside
    half_scales: bool
    layers: list[CarriedLayer] = field(default_factory=list)
    carried: set[Lifted] = field(default_factory=set)
    refused: dict[Lifted, str] = field(default_factory=dict)


def inject(
    source: Path,
    target: Path,
    lifted: Sequence[Lifted],
    *,
    half_scales: bool = False,
    only: Callable[[str], bool] = lambda name: True,
) -> Carriage:
    """Write `target` as `source` with the codes of all quantized weights that its layers hold as floats.

    Nothing is written when there are none. half_scales: store scales as float16. only: which layers (by MNN's name)
    may get codes. One layer is in memory at a time. Raises ModelError when the source cannot be read or was changed,
    OutputError when the target cannot be written.
    """
    document = read(source)
    anew = any_quantized(document)
    wanted = [site for site in sites(document) if only(site.name)]
    index = Index(lifted, {site.columns for site in wanted}, halved=any(site.halved for site in wanted))
    with Spool(target.parent) as spool:
        outside = Outside(str(source), document.weights)
        work = _Work(document, index, spool, outside, half_scales)
        for site in wanted:
            _carry(work, site)
        if work.layers:
            spool.settle(document)
            write(document, target)
        tables = kept_tables(document, [weight for weight in lifted if weight not in work.carried])
    refused = {**index.refused, **work.refused}
    unexplained = [weight for weight in lifted if weight not in tables and weight.quantized]
    return Carriage((*work.layers, *tables.values()), tuple(explain(unexplained, work.carried, refused, anew)))


def _carry(work: _Work, site: Site) -> None:
    """Give one layer its codes, or note why it keeps its floats."""
    weights = site.matrix(work.outside)
    match = find(work.index, weights, used=work.carried)
    if match is not None:
        reason = _replace(work, site, match, weights)
        for weight in match.weights if reason else ():
            work.refused.setdefault(weight, reason)


def _replace(work: _Work, site: Site, match: Match, weights: Array) -> str:
    """Put the codes that were found into a layer; the reason when it cannot be."""
    if match.missing:
        return f"{match.missing:,} of {match.rows:,} rows of MNN's layer '{site.name}' are of something else"
    codes = codes_of(match, site.columns)
    if not stands_for(codes, weights, match.close):
        return f"MNN's layer '{site.name}' holds other numbers than its codes stand for"
    table = site.table(codes, half_scales=work.half_scales)
    if isinstance(table, str):
        return table
    layer = CarriedLayer(
        name=site.name,
        op=site.kind,
        weights=tuple(dict.fromkeys(weight.name for weight in match.weights)),
        bits=codes.bits,
        block=site.block(codes),
        symmetric=codes.symmetric,
        scales="float16" if "alphaFp16" in table else "float32",
        before=4 * site.count,
        after=table_bytes(table),
    )
    work.spool.put(site, table, work.outside)
    work.carried.update(match.weights)
    work.layers.append(layer)
    return ""
