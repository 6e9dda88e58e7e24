"""Tables that fit: a narrow terminal loses whole columns, or gets a list, before a word is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from graphkit.report.text import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

_GAP = 2  # columns between cells
_WRAPPED = 24  # a column of sentences is not made narrower than this


@dataclass(frozen=True)
class Column:
    """One column. right: numbers, aligned at their ends. wrap: sentences, which may be broken between words.

    spare: where there is no room, columns go in the order of this number, the highest first; 0 never goes.
    """

    title: str
    right: bool = False
    wrap: bool = False
    spare: int = 0


class Grid:
    """A table of text; cells come from anywhere, control characters are escaped."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns
        self.rows: list[tuple[tuple[str, ...], str | None]] = []

    def add(self, *cells: str, style: str | None = None) -> None:
        """Add a row."""
        self.rows.append((tuple(map(clean, cells)), style))

    def fitted(self, width: int) -> RenderableType:
        """The table within `width` characters; a list of its rows when the columns that must stay do not fit."""
        shown = list(range(len(self.columns)))
        gone: list[str] = []
        spare = sorted((n for n in shown if self.columns[n].spare), key=lambda n: self.columns[n].spare)
        while self._least(shown) > width and spare:
            number = spare.pop()
            shown.remove(number)
            gone.append(self.columns[number].title)
        if self._least(shown) > width:
            return self._list()
        table = self._table(shown)
        left_out = Text(f"(no room for: {', '.join(gone)})", style="dim")
        return Group(table, left_out) if gone else table

    def _table(self, shown: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for number in shown:
            column = self.columns[number]
            table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not column.wrap)
        for cells, style in self.rows:
            table.add_row(*(Text(cells[number]) for number in shown), style=style)
        return table

    def _least(self, shown: Sequence[int]) -> int:
        """Characters that these columns need."""
        return sum(map(self._column_least, shown)) + _GAP * (len(shown) - 1)

    def _column_least(self, number: int) -> int:
        column = self.columns[number]
        cells = [column.title, *(cells[number] for cells, _ in self.rows)]
        whole = max(map(cell_len, cells))
        if not column.wrap:
            return whole
        words = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        return min(whole, max(words, _WRAPPED))

    def _list(self) -> Group:
        """Each row as lines of title and value, its first cell on top."""
        width = max(cell_len(column.title) for column in self.columns)
        lines: list[Text] = []
        for cells, style in self.rows:
            for number, (column, cell) in enumerate(zip(self.columns, cells, strict=True)):
                if number == 0 and cell:
                    lines.append(Text(cell, style="bold", no_wrap=True, overflow="ignore"))
                elif cell:
                    start = f"  {column.title:{width}}  " if column.title else "  "
                    lines.append(Text(start + cell, style=style or "", no_wrap=True, overflow="ignore"))
        return Group(*lines)
