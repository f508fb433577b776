"""A terminal whose screen is recorded, and drawn as a moving picture. Needs pexpect and pyte, which the tests bring."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import pexpect
import pyte

COLUMNS = 92
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
INK, GREY, PAPER = "#e6edf3", "#8b949e", "#0d1117"
KEY_S, STEP_S, LAST_S = 0.05, 0.04, 5.0  # between two keys, between two looks at the screen, for the last picture

Line = tuple[tuple[str, bool], ...]  # runs of characters, and whether they are grey


class Terminal(pyte.Screen):
    """A screen that answers what a program asks of a terminal, and what it showed at which time."""

    def __init__(self, rows: int) -> None:
        super().__init__(COLUMNS, rows)
        self.child: pexpect.spawn[bytes] | None = None
        self.frames: list[tuple[float, list[Line]]] = []
        self._stream = pyte.ByteStream(self)
        self._began = time.monotonic()

    def write_process_input(self, data: str) -> None:
        if self.child is not None:
            self.child.send(data)

    def type(self, text: str) -> None:
        for key in text:
            if self.child is not None:
                self.child.send(key)
            else:
                self._stream.feed(key.encode())
            self.look(KEY_S)

    def look(self, seconds: float, until: Callable[[str], bool] = lambda last: False) -> None:
        """Takes what the program prints, for so long or until the last line that is not empty is such."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.child is None:
                time.sleep(STEP_S)
            else:
                try:
                    self._stream.feed(self.child.read_nonblocking(1 << 16, STEP_S))
                except pexpect.TIMEOUT:
                    pass
                except pexpect.EOF:
                    return
            lines = [self._line(row) for row in range(self.lines)]
            if not self.frames or self.frames[-1][1] != lines:
                self.frames.append((time.monotonic() - self._began, lines))
            shown = [row for row in self.display if row.strip()]
            if shown and until(shown[-1]):
                return

    def rest(self, seconds: float) -> None:
        """Takes what the program prints, until nothing has changed for so long."""
        while time.monotonic() - self._began - self.frames[-1][0] < seconds:
            self.look(1)

    def _line(self, row: int) -> Line:
        runs: list[tuple[str, bool]] = []
        for column in range(COLUMNS):
            char = self.buffer[row][column]
            grey = char.fg not in ("default", "white")
            if runs and runs[-1][1] == grey:
                runs[-1] = (runs[-1][0] + char.data, grey)
            else:
                runs.append((char.data, grey))
        text, grey = runs.pop()
        if text.strip():
            runs.append((text.rstrip(), grey))
        return tuple(runs)


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the screen, from when to when it was there."""

    row: int
    line: Line
    start: float
    end: float


def shown_lines(frames: list[tuple[float, list[Line]]], end: float) -> list[Shown]:
    found = []
    for row in range(len(frames[0][1])):
        start, line = frames[0][0], frames[0][1][row]
        for at, lines in [*frames[1:], (end, [()] * len(frames[0][1]))]:
            if lines[row] != line or at == end:
                found += [Shown(row, line, start, at)] if line else []
                start, line = at, lines[row]
    return found


def drawn(shown: Shown, end: float) -> str:
    y = MARGIN + (shown.row + 1) * CELL_HEIGHT - 5
    spans = "".join(
        f"<tspan fill='{GREY}'>{escape(text)}</tspan>" if grey else escape(text) for text, grey in shown.line
    )
    start, stop = shown.start / end, shown.end / end
    values, times = ("visible;hidden", [0.0, stop]) if start == 0 else ("hidden;visible;hidden", [0.0, start, stop])
    if stop >= 1:
        values, times = values.removesuffix(";hidden"), times[:-1]
    moving = (
        ""
        if times == [0.0]
        else (
            f"<animate attributeName='visibility' values='{values}' keyTimes='{';'.join(f'{at:.4f}' for at in times)}' "
            f"dur='{end:.2f}s' calcMode='discrete' repeatCount='indefinite'/>"
        )
    )
    hidden = "" if stop >= 1 else " visibility='hidden'"  # a viewer that does not move pictures shows the last one
    return f"<text x='{MARGIN}' y='{y}'{hidden} xml:space='preserve'>{spans}{moving}</text>"


def picture(screen: Terminal, title: str, longest: float = math.inf) -> str:
    """longest: seconds that a picture stays at most before the next one."""
    frames, before, now = [], screen.frames[0][0], 0.0
    for at, lines in screen.frames:
        now, before = now + min(at - before, longest), at
        frames.append((now, lines))
    end = frames[-1][0] + LAST_S
    width, height = round(COLUMNS * CELL_WIDTH) + 2 * MARGIN, screen.lines * CELL_HEIGHT + 2 * MARGIN
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"font-family='ui-monospace, SFMono-Regular, Menlo, Consolas, monospace' font-size='14' fill='{INK}'>"
        f"<title>{escape(title)}</title>"
        f"<rect width='{width}' height='{height}' rx='8' fill='{PAPER}'/>"
    )
    return "\n".join([head, *(drawn(each, end) for each in shown_lines(frames, end)), "</svg>\n"])
