"""What is printed is whole: a wide table goes on below itself, and what is read by no terminal is not wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

_ENDLESS = 100_000  # columns of a pipe or a file
_GAP = 2  # columns between those of a table


def console(least: int = _ENDLESS, **more: Any) -> Console:
    """Standard output. Where that is no terminal, lines have at least `least` columns."""
    found = Console(highlight=False, **more)
    if not found.is_terminal:
        found.width = max(least, found.width)
    return found


class WholeTable:
    """A table of which nothing is cut off: columns for which there is no room stand in a further table below, beside
    the first column again. Titles and cells are markup.

    The first column is on the left, others are on the right; those in `words` are on the left, and wrap between words.
    """

    def __init__(self, *columns: str, title: str = "", words: Sequence[int] = (), header: bool = True) -> None:
        self._columns, self._title, self._words, self._header = columns, title, words, header
        self._rows: list[tuple[tuple[str, ...], str | None]] = []

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """A cell for each column, from the left."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        spans = [self._span(index) for index in range(len(self._columns))]
        for number, group in enumerate(_groups([least for least, _ in spans], options.max_width)):
            table = Table(
                title=(self._title or None) if number == 0 else None,
                title_justify="left",
                title_style="bold",
                show_header=self._header,
                box=None,
                pad_edge=False,
                padding=(0, _GAP, 0, 0),
            )
            widths = _widths([spans[index] for index in group], options.max_width)
            for index, width in zip(group, widths, strict=True):
                justify = "right" if index and index not in self._words else "left"
                table.add_column(self._columns[index], justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
            for cells, style in self._rows:
                table.add_row(*(cells[index] if index < len(cells) else "" for index in group), style=style)
            yield table

    def _span(self, index: int) -> tuple[int, int]:
        """(the width below which the column would break a number or a word, the width of its longest line)."""
        cells = [cells[index] for cells, _ in self._rows if index < len(cells)]
        texts = [Text.from_markup(cell).plain for cell in (*([self._columns[index]] if self._header else []), *cells)]
        most = max((cell_len(line) for text in texts for line in text.splitlines()), default=1)
        if index not in self._words:
            return most, most
        return max((cell_len(word) for text in texts for word in text.split()), default=1), most


def _groups(least: Sequence[int], width: int) -> list[list[int]]:
    """Columns that stand beside each other; the first stands in every group."""
    if len(least) < 2:
        return [list(range(len(least)))]
    groups: list[list[int]] = []
    taken = width
    for index in range(1, len(least)):
        if taken + least[index] + _GAP > width:
            groups.append([0])
            taken = least[0] + _GAP
        groups[-1].append(index)
        taken += least[index] + _GAP
    return groups


def _widths(spans: Sequence[tuple[int, int]], width: int) -> list[int | None]:
    """What each column gets: what it needs, and a share of the rest. None: there is not even room for that."""
    left = width - sum(least + _GAP for least, _ in spans)
    if left < 0:
        return [None] * len(spans)
    wanted = sum(most - least for least, most in spans)
    share = 1.0 if wanted <= left else left / wanted
    return [least + int((most - least) * share) for least, most in spans]
