"""How far a batch is, and how long the rest will take: a line that is drawn over, or one every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from moeinf.batch.batch_run import BatchRow
from moeinf.terminal.progress import StatusLine
from moeinf.terminal.screen import bar_text, can_draw
from moeinf.text.quantities import eta_text, size_text

LINE_S: Final = 30.0  # between two lines where nothing can be drawn over
_BAR_COLUMNS: Final = 12


class BatchProgress:
    """Told of every step and every answer. Shows nothing where quiet."""

    def __init__(
        self,
        stream: TextIO,
        before: int,
        total: int,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """before: requests that were answered by earlier runs. total: all of the batch."""
        self.total, self._before, self._answers, self._tokens = total, before, 0, 0
        self._line = StatusLine(stream, enabled=can_draw(stream) and not quiet, clock=clock)
        self._stream, self._quiet, self._clock = stream, quiet, clock
        self._began_s = self._told_s = clock()
        self._faulty = 0  # requests that were found wrong before the model was opened
        self._approx = ""

    @property
    def done(self) -> int:
        """Requests that are answered, by all runs."""
        return self._before + self._answers

    def begin(self, approx: str = "") -> None:
        """Called once the model is open: before that, no answer is made. approx: how far these may be from the exact
        ones."""
        self._approx = f", {approx}" if approx else ""
        self._began_s = self._told_s = self._clock()
        self._faulty = self._answers

    def answered(self, tokens: int) -> None:
        """tokens: of the answer; 0 for what is wrong with a request."""
        self._answers += 1
        self._tokens += tokens

    def step(self, running: Sequence[BatchRow]) -> None:
        """Called before each step, with what runs."""
        if self._line.enabled:
            self._line.show(self._text(running))
        elif not self._quiet and self._clock() - self._told_s >= LINE_S:
            self._told_s = self._clock()
            self._stream.write(self._text(running) + "\n")
            self._stream.flush()

    def clear(self) -> None:
        self._line.clear()

    def summary(self, read_bytes: int) -> str:
        """The last line. read_bytes: of experts."""
        a_token = size_text(read_bytes / max(1, self._tokens))
        return (
            f"{self.done} of {self.total} requests answered in {eta_text(self._seconds)}: {self._tokens} tokens, "
            f"{self._tokens / self._seconds:.1f} tokens/s{self._approx}, {a_token} of experts read a token"
        )

    @property
    def _seconds(self) -> float:
        return max(1e-3, self._clock() - self._began_s)

    def _text(self, running: Sequence[BatchRow]) -> str:
        made = self._tokens + sum(row.pieces for row in running)
        bar = f"{bar_text(self.done, self.total, _BAR_COLUMNS)} " if self._line.enabled else ""
        return (
            f"{bar}{self.done}/{self.total} answered · {self._left_text(running)} · "
            f"{made / self._seconds:.1f} tokens/s{self._approx} · {len(running)} at once"
        )

    def _left_text(self, running: Sequence[BatchRow]) -> str:
        """By the time that whole answers took, of which those that are being made are parts."""
        answers = self._answers - self._faulty
        if not self._tokens or not answers:
            return "time left unknown"
        mean = self._tokens / answers
        done = answers + sum(min(0.9, row.pieces / mean) for row in running)
        return f"{eta_text(self._seconds * (self.total - self.done + answers - done) / done)} left"
