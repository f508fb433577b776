"""How many guessed tokens a step tries: as many as pay for what they cost, as far as that was measured.

A step of an answer takes the token that was drawn last. With d guesses behind it, it gives one token more for each of
these that is drawn. So of n answers in a step it is worth

    (n + p_1 + p_1 p_2 + ... + p_1 .. p_d) / n * T(1) / (T(1 + d) + what the guesses cost)

times a step without guesses, where T(k) is what steps take in which the answer has k tokens, and p_i how often guess i
was right after those before it. Depth d is the one that is worth most, and 0 where nothing is worth more than 1. What
is not worth it is tried again now and then. An account of seconds won and lost keeps that cheap: an answer never tries
anything while it has lost more than LEAST_LOSS of its time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from moeinf.models.layers.decoder import FEW_ROWS
from moeinf.sampling.speculation.drafts import NOTHING, DraftCounts, Drafter, Guess
from moeinf.sampling.step_queue import StepFacts

MOST_DRAFTS: Final = FEW_ROWS - 1  # in a step
LEAST_LOSS: Final = 0.01  # of the time of an answer, that guesses may cost it
_WORTH: Final = 1.02  # from which on guesses are taken for worth it
_ROW: Final = 0.6  # of T(1), that a further token is taken to cost until that was measured
_RECENT: Final = 0.05  # weight of the last step in what steps of its kind take, once there were many
_ODD: Final = 3  # times the mean, that a step counts for at most, as something else was done meanwhile
_FORGET: Final = 0.94  # weight of what was, against one more guess
_HOPE: Final = (0.7, 3.0)  # how often a guess is right, and after how many of them that counts for half
_FIRST_WAIT, _LONGEST_WAIT = 8, 256  # steps until what was not worth it is tried again; doubled where it was wrong
_LONGEST_RUN: Final = 64  # steps with guesses, until one without tells again what that takes


class StepCosts:
    """Seconds of recent steps with the same number of answers in them, by how many tokens one of them had."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def note(self, rows: int, seconds: float) -> None:
        mean = self._means.get(rows, seconds)
        count = self._counts[rows] = self._counts.get(rows, 0) + 1
        self._means[rows] = mean + max(_RECENT, 1 / count) * (min(seconds, _ODD * mean) - mean)

    def of(self, rows: int) -> float | None:
        """None where no step had one token. In between, and beyond, it goes straight on."""
        known, one = self._means, self._means.get(1)
        if one is None or rows == 1:
            return one
        if rows in known:
            return max(known[rows], one)
        below = max((each for each in known if each < rows), default=1)
        above = min((each for each in known if each > rows), default=None)
        start = max(known[below], one)
        if above is not None:
            slope = max(known[above] - start, 0.0) / (above - below)
        elif below > 1:
            slope = (start - one) / (below - 1)
        else:
            slope = _ROW * one
        return start + slope * (rows - below)


@dataclass(slots=True)
class Rightness:
    """How often guesses of one kind were right, by their place among those of a step, after all before them."""

    _right: list[float] = field(default_factory=lambda: [0.0] * MOST_DRAFTS)
    _tried: list[float] = field(default_factory=lambda: [0.0] * MOST_DRAFTS)
    seconds: float = 0.0  # that guessing a token takes
    wait: int = _FIRST_WAIT  # steps until it is tried again
    waited: int = 0  # of these
    retried: bool = False  # in the running step

    def note(self, tried: int, right: int, seconds: float) -> None:
        for place in range(min(right + 1, tried)):
            self._tried[place] = self._tried[place] * _FORGET + 1
            self._right[place] = self._right[place] * _FORGET + (place < right)
        self.seconds += _RECENT * (seconds / tried - self.seconds)
        if self.retried:
            self.retried, self.wait = False, 1 if right else min(2 * self.wait, _LONGEST_WAIT)

    def of(self, place: int) -> float:
        hope, weight = _HOPE
        return (self._right[place] + hope * weight) / (self._tried[place] + weight)

    def expected(self, most: int) -> list[float]:
        """Of so many guesses: how many are right of the first, of the first two, and so on."""
        found, total, chance = list[float](), 0.0, 1.0
        for place in range(most):
            chance *= self.of(place)
            total += chance
            found.append(total)
        return found


class Measured:
    """What steps take and guesses are worth in one model, kept from answer to answer."""

    def __init__(self) -> None:
        self.costs: defaultdict[int, StepCosts] = defaultdict(StepCosts)  # by the answers in a step
        self.kinds: defaultdict[str, Rightness] = defaultdict(Rightness)


class Speculation:
    """The guesses of one answer."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        measured: Measured,
        counts: DraftCounts,
        *,
        most: int = MOST_DRAFTS,
        gated: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """drafters: asked in this order until one knows something. most: guesses in a step. gated: whether only those
        are tried that are worth it."""
        self._drafters, self._measured, self._counts = drafters, measured, counts
        self._most, self._gated, self._clock = most, gated, clock
        self._began, self._won = clock(), 0.0  # seconds that guesses have saved
        self._parts, self._run = 1, 0  # answers in the last step; steps since the last one without guesses
        self._guess_s = 0.0

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        """What to try behind `tokens`, the prompt without pictures and the answer; at most so many."""
        most, began = min(most, self._most), self._clock()
        if most < 1 or (self._gated and self._must_rest()):
            return NOTHING
        for drafter in self._drafters:
            dear = drafter.kind is not None and self._gated
            allowed = self._depth(drafter.kind or "", most) if dear else most
            guess = drafter.draft(tokens, allowed) if allowed else NOTHING
            depth = len(guess.ids) if dear or not self._gated else self._depth(guess.kind, len(guess.ids))
            if depth:
                self._guess_s = self._clock() - began
                return Guess(guess.ids[:depth], guess.kind)
        self._won -= self._clock() - began
        return NOTHING

    def _must_rest(self) -> bool:
        """Whether the next step goes without: nothing is known of such steps, not for long, or too much was lost."""
        costs = self._measured.costs[self._parts]
        return costs.of(1) is None or self._run >= _LONGEST_RUN or self._won < -self._may_lose

    @property
    def _may_lose(self) -> float:
        return LEAST_LOSS * (self._clock() - self._began)

    def _depth(self, name: str, most: int) -> int:
        """How many guesses of a kind to try, of so many."""
        kind, costs, answers = self._measured.kinds[name], self._measured.costs[self._parts], self._parts
        alone = costs.of(1) or 0.0
        best, depth = 0.0, 0
        for tried, right in enumerate(kind.expected(most), 1):
            cost = (costs.of(1 + tried) or 0.0) + tried * kind.seconds
            worth = (answers + right) / answers * alone / max(cost, 1e-9)
            if worth > best:
                best, depth = worth, tried
        if best > _WORTH:
            kind.wait, kind.waited = _FIRST_WAIT, 0
            return depth
        kind.waited += 1
        dear = (costs.of(2) or 0.0) + kind.seconds - alone
        if not most or kind.waited < kind.wait or self._won - dear < -self._may_lose:
            return 0
        kind.waited, kind.retried = 0, True
        return 1

    def single(self, step: StepFacts) -> None:
        """Told of a step that tried nothing."""
        self._parts, self._run = step.parts, 0
        self._measured.costs[step.parts].note(1, step.seconds)

    def tried(self, guess: Guess, right: int, step: StepFacts) -> None:
        """Told of a step that tried a guess, of which the first `right` tokens were drawn."""
        tried, answers = len(guess.ids), step.parts
        self._counts.drafted += tried
        self._counts.accepted += right
        self._measured.kinds[guess.kind].note(tried, right, self._guess_s)
        costs = self._measured.costs[answers]
        costs.note(1 + tried, step.seconds)
        alone, usual = costs.of(1), costs.of(1 + tried)
        if alone is not None and usual is not None:  # by what such steps take, as one may be slow by chance
            self._won += (answers + right) / answers * alone - usual - self._guess_s
        self._parts, self._run = answers, self._run + 1

    def close(self) -> None:
        """The answer has ended."""
        for drafter in self._drafters:
            drafter.close()
