"""Shows how far a pull is: with bars on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from shlex import join
from typing import TYPE_CHECKING, Protocol, TextIO

from moeinf.config.fit_options import FitOptions
from moeinf.config.option import options
from moeinf.config.pull_options import PullOptions
from moeinf.terminal.process.interrupt import Ended
from moeinf.terminal.screen import bar_text, can_draw, harmless
from moeinf.text.quantities import eta_text, size_text, told_apart

if TYPE_CHECKING:
    from rich.text import Text

    from moeinf.pull.steps import PullPlan

_RATE_WINDOW_S = 10.0
_PLAIN_EVERY_S = 30.0
_PLAIN_EVERY_PERCENT = 10
_BAR_COLUMNS = 20


class ByteMeter:
    """Counts bytes towards a known total; knows their rate over the last ten seconds, and the time left."""

    def __init__(self, total: int, done: int, clock: Callable[[], float]) -> None:
        self.total, self.done = total, done
        self._clock = clock
        self._samples = deque([(clock(), done)])

    def resume(self) -> None:
        """Goes on after a pause, which is no part of the rate."""
        self._samples = deque([(self._clock(), self.done)])

    def advance(self, num_bytes: int) -> None:
        now = self._clock()
        self.done += num_bytes
        self._samples.append((now, self.done))
        while now - self._samples[0][0] > _RATE_WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def percent(self) -> int:
        return 100 * min(self.done, self.total) // self.total if self.total else 100

    @property
    def bytes_per_s(self) -> float:
        started, before = self._samples[0]
        elapsed = self._clock() - started
        return (self.done - before) / elapsed if elapsed > 0 else 0.0

    def line(self, label: str) -> str:
        """`pulling x:  67% ▕████   ▏ 6.2 GB/9.3 GB   11 MB/s   4m28s`"""
        text = (
            f"{label}: {self.percent:3d}% {bar_text(self.done, self.total, _BAR_COLUMNS)} "
            f"{size_text(self.done)}/{size_text(self.total)}"
        )
        rate = self.bytes_per_s
        if rate <= 0 or self.done >= self.total:
            return text
        return f"{text}   {size_text(rate)}/s   {eta_text((self.total - self.done) / rate)}"


class View(Protocol):
    """Where lines and meters go. There is one meter for the open file and one for all files of the same step."""

    def say(self, text: str) -> None: ...

    def open(self, verb: str, name: str, file: ByteMeter, whole: ByteMeter) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None: ...


class PullDisplay:
    """Shows a PullProgress to people. As a context manager it leaves the terminal as it was."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._view: View = BarView(stream) if can_draw(stream) and not quiet else PlainView(stream, quiet, clock)
        self._wholes: dict[str, ByteMeter] = {}  # by verb
        self._open: tuple[ByteMeter, ...] = ()  # what advances

    def stage(self, text: str) -> None:
        if not self._quiet:
            self._view.say(text)

    def note(self, text: str) -> None:
        self._view.say(f"note: {text}")

    def sizes(self, fetch_bytes: int, store_bytes: int, quantised_bytes: int) -> None:
        smaller = f"; --quant q4_k makes it {size_text(quantised_bytes)}" if quantised_bytes < store_bytes else ""
        self.stage(f"{size_text(fetch_bytes)} to download, {size_text(store_bytes)} in the store{smaller}")

    def total(self, verb: str, num_bytes: int, done_bytes: int) -> None:
        self._wholes[verb] = ByteMeter(num_bytes, done_bytes, self._clock)

    def start(self, verb: str, file: str, num_bytes: int, done_bytes: int) -> None:
        meter = ByteMeter(num_bytes, done_bytes, self._clock)
        whole = self._wholes.setdefault(verb, ByteMeter(num_bytes, done_bytes, self._clock))
        whole.resume()
        self._open = meter, whole
        self._view.open(verb, harmless(file), meter, whole)

    def advance(self, num_bytes: int) -> None:
        for meter in self._open:
            meter.advance(num_bytes)
        self._view.refresh()

    def finish(self) -> None:
        self._view.close()
        self._open = ()

    def waiting(self) -> None:
        pass

    def __enter__(self) -> PullDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.end()


class PlainView:
    """Prints a line when a file starts and ends, and between them at each tenth of it or each half minute."""

    def __init__(self, stream: TextIO, quiet: bool, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._quiet = quiet
        self._clock = clock

    def say(self, text: str) -> None:
        self._stream.write(harmless(text) + "\n")
        self._stream.flush()

    def open(self, verb: str, name: str, file: ByteMeter, whole: ByteMeter) -> None:
        self._label, self._meter = f"{verb} {name}", file
        self._said_percent, self._said_at = file.percent, self._clock()
        if not self._quiet:
            self.say(f"{self._label} ({size_text(file.total)})")

    def refresh(self) -> None:
        meter = self._meter
        due = (
            meter.percent >= self._said_percent + _PLAIN_EVERY_PERCENT
            or self._clock() - self._said_at >= _PLAIN_EVERY_S
        )
        if due and meter.done < meter.total and not self._quiet:
            self._said_percent, self._said_at = meter.percent, self._clock()
            self.say(f"{self._label}: {meter.percent}% {size_text(meter.done)}/{size_text(meter.total)}")

    def close(self) -> None:
        if not self._quiet:
            self.say(f"{self._label}: done")

    def end(self) -> None:
        pass


class BarView:
    """Redraws a line for the open file, and another one for all files of a step that has several."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False)
        self._lines: list[tuple[str, ByteMeter]] = []
        self._live = Live(
            console=self._console,
            transient=True,
            refresh_per_second=10,
            get_renderable=self._render,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _render(self) -> Text:
        from rich.text import Text

        lines = [meter.line(label) for label, meter in self._lines]
        return Text("\n".join(lines), no_wrap=True, overflow="crop")

    def say(self, text: str) -> None:
        self._console.print(harmless(text), markup=False, soft_wrap=True)

    def open(self, verb: str, name: str, file: ByteMeter, whole: ByteMeter) -> None:
        self._lines = [(f"{verb} {name}", file), (f"{verb} in all", whole)][: 2 if whole.total > file.total else 1]
        self._live.start()

    def refresh(self) -> None:
        pass  # the console redraws itself ten times a second

    def close(self) -> None:
        pass  # the line stays until the next file, so that the display does not jump

    def end(self) -> None:
        self._live.stop()


def plan_lines(plan: PullPlan) -> list[str]:
    """What --dry-run prints."""
    from moeinf.terminal.screen import table

    state = "up to date" if plan.up_to_date else "to be pulled"
    rows = [("FILE", "SIZE", "TO FETCH")]
    rows += [(harmless(file.file), size_text(file.num_bytes), size_text(file.fetch_bytes)) for file in plan.files]
    needed, free = told_apart(plan.needed_bytes, plan.free_bytes)
    return [
        f"{plan.name}: {state}",
        *table(rows),
        "",
        *(f"note: {line}" for line in plan.fallbacks),
        f"fetch {size_text(plan.fetch_bytes)}, store {size_text(plan.store_bytes)}, disk needed {needed}, free {free}",
    ]


@contextmanager
def resumable(source: str, *given: PullOptions | FitOptions) -> Iterator[None]:
    """Tells the command that goes on, where what is done within is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, Ended):
        print(f"interrupted; `{again_text(source, *given)}` goes on where this stopped", file=sys.stderr)
        raise


def again_text(source: str, *given: PullOptions | FitOptions) -> str:
    """The command that goes on with an interrupted pull. It does not show the token."""
    every = [(each, getattr(of, each.name)) for of in given for each in options(type(of)) if each.name != "token"]
    said = [(each.flag, str(value)) for each, value in every if type(value) in (str, int) and value != each.default]
    return join(["moeinf", "pull", source, *chain.from_iterable(said)])
