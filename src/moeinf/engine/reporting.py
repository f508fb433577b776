"""Whom a model tells what happens beside its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

Notify = Callable[[str], None]  # takes one line for the user
Progress = Callable[[int, int], None]  # done and in all, of bytes or of tokens


def no_progress(done: int, total: int) -> None:
    pass


def log_warning(line: str) -> None:
    """Python's own way of telling what a program did not ask for: to stderr, unless the program says otherwise."""
    logging.getLogger("moeinf").warning(line)


@dataclass(frozen=True, slots=True)
class Reporting:
    """Whom a model tells what happens beside its answers. Each may raise while the model is opened, and ends that."""

    notify: Notify = log_warning  # each fallback, once; also called by the thread that watches memory
    on_slow_disk: Notify = lambda line: None  # while the disk does not answer for seconds
    progress: Progress = no_progress  # bytes of weights that are read
    pin_progress: Progress = no_progress  # bytes of host memory that are pinned for a GPU
    step: Notify = lambda line: None  # what is done before the model can answer, where that takes long

    def once(self) -> Reporting:
        """The same, but that each notice is passed on the first time alone."""
        said, notify = set[str](), self.notify

        def notify_once(line: str) -> None:
            if line not in said:
                said.add(line)
                notify(line)

        return replace(self, notify=notify_once)
