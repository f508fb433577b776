"""How long answers of a model take, learned from those before, and what still waits for them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from moeinf.engine.completion import GenerationStats
from moeinf.server.ask import Reading
from moeinf.server.turns.job import Job

WEIGHT: Final = 0.3  # of the last answer, in what is expected of the next


@dataclass(slots=True)
class Pace:
    """Of one model. None: no answer has ended yet."""

    tokens: float | None = None  # of an answer
    token_s: float | None = None  # each of them, with what is computed beside it
    answer_s: float | None = None  # from its turn to its end

    def learn(self, stats: GenerationStats) -> None:
        """An answer has ended."""
        self.tokens = _moved(self.tokens, stats.generated_tokens)
        self.answer_s = _moved(self.answer_s, stats.total_s - stats.load_s)
        if stats.token_s:
            self.token_s = _moved(self.token_s, stats.decode_s / len(stats.token_s))

    def left_s(self, job: Job) -> float | None:
        """Seconds until an answer that is being made ends; None: not known."""
        if self.tokens is None or self.token_s is None or self.answer_s is None:
            return None
        event, tokens = job.last_event, self.tokens
        limit = job.ask.params.get("num_predict")
        if isinstance(limit, int) and limit >= 0:
            tokens = min(tokens, limit)
        if isinstance(event, Reading) and event.done < event.total:
            return (event.eta_s or 0.0) + tokens * self.token_s
        if event is None:
            return self.answer_s
        return max(1.0, tokens - job.pieces) * self.token_s

    def waits_s(self, running: Iterable[Job], places: int, waiting: int) -> list[float | None]:
        """Seconds until each of so many that wait in a row has its turn; None: not known."""
        lefts = [self.left_s(job) for job in running]
        free = [0.0] * (places - len(lefts)) + [left for left in lefts if left is not None]
        if self.answer_s is None or len(free) < places:
            return [None] * waiting
        heapq.heapify(free)
        return [_replaced(free, self.answer_s) for _ in range(waiting)]


def _moved(before: float | None, last: float) -> float:
    return last if before is None else before + WEIGHT * (last - before)


def _replaced(free: list[float], answer_s: float) -> float:
    """When the first place is free, which is taken for an answer."""
    return heapq.heapreplace(free, free[0] + answer_s)


def retry_after_s(waits: Sequence[float | None], default_s: int) -> int:
    """Whole seconds after which one who finds the queue full may ask again: when the first that waits has its turn."""
    known = [each for each in waits if each is not None]
    return max(1, round(min(known))) if known else default_s
