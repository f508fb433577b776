"""What a comparison shows while it runs: a table that is drawn anew on a terminal, or a line for each row in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

from moeinf.bench.comparison import View, comparison_cells
from moeinf.bench.rows import Row
from moeinf.config import RuntimeConfig
from moeinf.runtime.prefetch import MEASURED, prefetch_text
from moeinf.terminal.screen import can_draw, table

_LEAST_WIDTHS: Final = (6, 9, 5, 7, 17, 6, 6, 6, 6, 4, 6, 8, 7)  # of the columns, before their rows are known
_LONGEST_NAME: Final = len("decayed-lfu")  # of a policy that a configuration leaves to the model


class Lines:
    """Tells what is measured now, and prints the decode rows of each run when it has ended; the last table follows."""

    def __init__(self, configs: Sequence[RuntimeConfig], report: Callable[[str], None], stream: TextIO) -> None:
        self._report, self._stream = report, stream
        names = [_LONGEST_NAME, *(len(config.experts.policy or "") for config in configs)]
        prefetches = (prefetch_text(each.experts.predictor, each.experts.admission or MEASURED) for each in configs)
        predictors = [_LONGEST_NAME, *map(len, prefetches)]
        self._widths = [max(names), max(predictors), *_LEAST_WIDTHS[2:]]
        self._begun = False

    def begins(self, line: str) -> None:
        self._report(line)

    def measured(self, rows: Sequence[Row]) -> None:
        header, *cells = comparison_cells(rows)
        for row in cells if self._begun else (header, *cells):
            padded = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
            self._stream.write("  ".join(padded).rstrip() + "\n")
        self._begun = True
        self._stream.flush()

    def close(self) -> None:
        if self._begun:
            self._stream.write("\n")


class DrawnTable:
    """A table of all rows so far, the fastest first, with what is measured now below it; drawn over itself.

    What does not fit the terminal is left out, the slowest first, as lines that have scrolled away cannot be drawn
    over. An interrupt leaves it as it stands.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows: list[Row] = []
        self._now = ""
        self._drawn = 0  # lines, above the cursor

    def begins(self, line: str) -> None:
        self._now = line
        self._draw()

    def measured(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        self._draw()

    def close(self) -> None:
        """Takes the table away: the whole one follows."""
        self._write([])

    def _draw(self) -> None:
        columns, height = shutil.get_terminal_size()
        lines = table(comparison_cells(self._rows), gap=2) if self._rows else []
        shown = [*lines[: max(2, height - 3)], "", self._now]
        self._write([line[: columns - 1] for line in shown])

    def _write(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)


class Reports:
    """Tells what is measured now, and nothing of what was."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.begins = report

    def measured(self, rows: Sequence[Row]) -> None: ...


@contextmanager
def comparison_view(configs: Sequence[RuntimeConfig], report: Callable[[str], None], *, table: bool) -> Iterator[View]:
    """table: whether rows are shown on standard output as they are measured; else what runs is reported alone."""
    if not table:
        yield Reports(report)
        return
    view = DrawnTable(sys.stdout) if can_draw(sys.stdout) else Lines(configs, report, sys.stdout)
    yield view
    view.close()
