"""What every request does at a moment: who waits, how far it is, and when it will be its turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from moeinf.server.ask import Loading, Queued, Reading
from moeinf.server.turns.job import Job

State = Literal["queued", "loading", "prefill", "decode", "paused"]
KEPT_S: Final = 0.5  # that the places of those that wait are not counted anew, however many ask


@dataclass(frozen=True, slots=True)
class Seen:
    """A request. model: its name, as it is stored.

    position: of one that waits, 1 for the next. eta_s: seconds until its turn, or until its model is loaded, or its
    prompt read; None: not known. progress: (done, in all), of bytes while its model is loaded, of tokens while its
    prompt is read. tokens: of its answer so far, about. name: that the client gave it in X-Request-Id.
    """

    model: str
    state: State
    position: int | None = None
    eta_s: float | None = None
    progress: tuple[int, int] | None = None
    tokens: int = 0
    background: bool = False
    name: str = ""


class Overview:
    """Of a worker; from any thread."""

    def __init__(
        self,
        running: Callable[[], Sequence[Job]],
        waiting: Callable[[], Sequence[Job]],
        waits_s: Callable[[Sequence[Job]], Sequence[float | None]],
        paused: Callable[[], Sequence[Job]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """running: what has had its turn; paused: those of it that have left their places to others. waiting: what has
        not, the next one first. waits_s: how long each of these."""
        self._running, self._waiting, self._waits_s, self._clock = running, waiting, waits_s, clock
        self._paused = paused
        self._places: tuple[float, dict[Job, Queued]] = (float("-inf"), {})

    @property
    def running(self) -> int:
        """How many requests have had their turn."""
        return len(self._running())

    @property
    def waiting(self) -> int:
        return len(self._waiting())

    def places(self) -> dict[Job, Queued]:
        """Of all that wait, the next one first."""
        jobs = self._waiting()
        waits = zip(jobs, self._waits_s(jobs), strict=True)
        return {job: Queued(at, _rounded(wait_s)) for at, (job, wait_s) in enumerate(waits, 1)}

    def place(self, job: Job) -> Queued | None:
        """None for one that does not wait."""
        if job.waited_s is not None:
            return None
        counted_s, places = self._places
        if self._clock() - counted_s >= KEPT_S or job not in places:
            places = self.places()
            self._places = (self._clock(), places)
        return places.get(job)

    def requests(self) -> list[Seen]:
        """All of them: those that have had their turn, the oldest first, paused ones behind, and those that wait, the
        next one first."""
        waiting = [
            Seen(_name(job), "queued", place.position, place.eta_s, background=job.who.background, name=job.who.name)
            for job, place in self.places().items()
        ]
        paused = self._paused()
        running = [_seen(job, paused=job in paused) for job in self._running()]
        return [*sorted(running, key=lambda seen: seen.state == "paused"), *waiting]


def _seen(job: Job, *, paused: bool) -> Seen:
    event, seen = job.last_event, Seen(_name(job), "decode", background=job.who.background, name=job.who.name)
    if paused:
        return replace(seen, state="paused", tokens=job.pieces)
    if isinstance(event, Loading):
        return replace(seen, state="loading", eta_s=event.eta_s, progress=(event.done, event.total))
    if event is None:
        return replace(seen, state="prefill" if job.is_begun else "loading")
    if isinstance(event, Reading) and event.done < event.total:
        return replace(seen, state="prefill", eta_s=event.eta_s, progress=(event.done, event.total))
    return replace(seen, tokens=job.pieces)


def _name(job: Job) -> str:
    return job.ask.model if job.stored is None else job.stored.name


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
