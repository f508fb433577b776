"""A trace in the steps of a model that computes several rows at a time: of requests side by side, and of drafts.

docs/contributing/steps.md says what a step is. What comes of it is a trace again, whose passes are the rows of a step,
so that whatever replays traces replays it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from moeinf.errors import UsageError
from moeinf.traces.trace import Trace, passes_of

MOST_ROWS: Final = 64  # of a step, as models/layers/decoder.py has it
Elsewhere = Literal["any", "same"]  # request, of which a wrong draft has the routing of a token


@dataclass(frozen=True, slots=True)
class StepForm:
    """How many requests have a row in a step, and how many drafted tokens are verified beside each of these.

    acceptance: the probability that a drafted token is right where all in front of it are. A wrong one, and those
    behind it, have the routing of a token drawn from the trace: of any request, or of the same. Raises UsageError for
    what no step can be.
    """

    parallel: int = 1
    draft: int = 0
    acceptance: float = 0.0
    wrong: Elsewhere = "any"

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise UsageError(f"--parallel is a number of requests from 1 on, not {self.parallel}")
        if self.draft < 0:
            raise UsageError(f"--draft is a number of tokens from 0 on, not {self.draft}")
        if not 0 <= self.acceptance <= 1:
            raise UsageError(f"--acceptance is a share from 0 to 1, not {self.acceptance:g}")
        if self.rows > MOST_ROWS:
            raise UsageError(f"a step of {self.rows} rows is more than one computes; ask for {MOST_ROWS} at most")

    @property
    def rows(self) -> int:
        return self.parallel * (1 + self.draft)

    @property
    def text(self) -> str:
        drafts = f" + {self.draft} drafts, {self.acceptance:g} right" if self.draft else ""
        return f"{self.parallel} request{'s' * (self.parallel > 1)}{drafts}"


ALONE: Final = StepForm()


@dataclass(frozen=True, slots=True)
class Arranged:
    """A trace whose passes are steps; rejected: how many of its rows are of drafts that were wrong."""

    trace: Trace
    form: StepForm = ALONE
    rejected: int = 0

    @property
    def union(self) -> float:
        """Experts that a token has visited, on average: those of a step, each once in a layer, over its tokens."""
        experts, shape = self.trace.experts, self.trace.shape
        used = 0
        for first, last in self._answers():
            seen = np.zeros((shape.num_layers, shape.num_experts + 1), bool)
            np.put_along_axis(seen, experts[first:last].swapaxes(0, 1).reshape(shape.num_layers, -1), True, axis=1)
            used += int(seen[:, :-1].sum())  # what is absent, -1, is the last column
        return used / self._num_tokens()

    @property
    def independent_union(self) -> float:
        """The same, were the experts of each row drawn evenly, whatever the others have."""
        shape = self.trace.shape
        rows = np.array([last - first for first, last in self._answers()])
        counts = np.array([shape.experts_of(layer) for layer in range(shape.num_layers)])[:, None]
        return float((counts * (1 - (1 - shape.top_k / counts) ** rows)).sum() / self._num_tokens())

    def _answers(self) -> Iterator[tuple[int, int]]:
        """The passes of decode, or all where nothing is known of prefill."""
        prompts, phase = self.trace.prompt_tokens, None
        for begins, first, last in passes_of(self.trace):
            phase = begins or phase
            if phase == "decode" or prompts is None or not prompts.any():
                yield first, last

    def _num_tokens(self) -> int:
        return sum(last - first for first, last in self._answers()) - self.rejected


def arranged(
    trace: Trace, form: StepForm, prefill_tokens: int = 0, max_tokens: int | None = None, seed: int = 0
) -> Arranged:
    """The first max_tokens tokens that a model with so many rows a step computes.

    Requests begin in their order, each as soon as a place is free. In a step each that has its prompt behind it has
    its rows, in the order of the places; then the prompt that came first goes on, by itself, by one of its passes.
    Where nothing is known of prefill (see passes_of), all is decode. Raises UsageError for fewer requests than places.
    """
    if trace.num_requests < form.parallel:
        raise UsageError(
            f"{trace.name} has {trace.num_requests} requests, and --parallel asks for {form.parallel} side by side: "
            f"give {trace.num_requests} at most"
        )
    return _Arrangement(trace, form, prefill_tokens, seed).run(trace.num_tokens if max_tokens is None else max_tokens)


@dataclass(slots=True)
class _Running:
    """A request that has a place."""

    first: int  # of its tokens
    end: int
    prompt: deque[tuple[int, int]]  # passes that are still to come
    answer: deque[tuple[int, int]]


class _Arrangement:
    def __init__(self, trace: Trace, form: StepForm, prefill_tokens: int, seed: int) -> None:
        self._trace, self._form = trace, form
        self._rng = np.random.default_rng(seed)
        _, self._kinds = np.unique(trace.experts[:, :, 0] >= 0, axis=0, return_inverse=True)  # by the layers visited
        self._waiting = iter(_requests(trace, prefill_tokens))
        self._rows: list[int] = []  # of the trace
        self._passes, self._offsets, self._prompt_tokens = [0], list[int](), list[int]()
        self._rejected = 0

    def run(self, max_tokens: int) -> Arranged:
        places: list[_Running | None] = [None] * self._form.parallel
        while len(self._rows) - self._rejected < max_tokens:
            places = [next(self._waiting, None) if each is None else each for each in places]
            running = [each for each in places if each is not None]
            if not running:
                break
            self._add([row for each in running if not each.prompt for row in self._rows_of(each)])
            if reading := next((each for each in running if each.prompt), None):
                self._read(*reading.prompt.popleft())
            places = [None if each is None or not (each.prompt or each.answer) else each for each in places]
        return Arranged(self._arranged(), self._form, self._rejected)

    def _read(self, first: int, last: int) -> None:
        """A prompt's pass; with it a request begins, to those who are told."""
        self._offsets.append(len(self._rows))
        self._prompt_tokens.append(last - first)
        self._add(range(first, last))

    def _add(self, rows: Sequence[int]) -> None:
        """One pass, or several where the rows visit different layers."""
        for begin in range(len(rows)):
            if begin and self._kinds[rows[begin]] != self._kinds[rows[begin - 1]]:
                self._passes.append(len(self._rows))
            self._rows.append(rows[begin])
        if rows:
            self._passes.append(len(self._rows))

    def _rows_of(self, request: _Running) -> list[int]:
        """The tokens of its next step; the drafts behind one are at most those that its answer has."""
        first, last = request.answer.popleft()
        rows = list(range(first, last))
        drafts = min(self._form.draft, len(request.answer)) if len(rows) == 1 else 0
        right = self._num_right(drafts)
        for _ in range(right):
            rows += range(*request.answer.popleft())
        self._rejected += drafts - right
        return rows + self._wrong(request, first, drafts - right)

    def _wrong(self, request: _Running, token: int, count: int) -> list[int]:
        """Rows that a wrong draft has in place of its own, which visit the layers that the token visits."""
        if not count:
            return []
        low, high = (0, self._trace.num_tokens) if self._form.wrong == "any" else (request.first, request.end)
        alike = low + np.flatnonzero(self._kinds[low:high] == self._kinds[token])
        drawn: list[int] = alike[self._rng.integers(len(alike), size=count)].tolist()
        return drawn

    def _num_right(self, drafts: int) -> int:
        wrong = np.flatnonzero(self._rng.random(drafts) >= self._form.acceptance)
        return int(wrong[0]) if len(wrong) else drafts

    def _arranged(self) -> Trace:
        trace, rows = self._trace, np.array(self._rows, np.int64)
        return replace(
            trace,
            experts=trace.experts[rows],
            offsets=np.array([*(self._offsets or [0]), len(rows)]),
            passes=np.array(self._passes),
            prompt_tokens=np.array(self._prompt_tokens or [0]),
            weights=None if trace.weights is None else trace.weights[rows],
            guesses=None if trace.guesses is None else trace.guesses[rows],
            guess_weights=None if trace.guess_weights is None else trace.guess_weights[rows],
        )


def _requests(trace: Trace, prefill_tokens: int) -> Iterator[_Running]:
    prompts_known = prefill_tokens > 0 or trace.passes is not None
    passes = deque(passes_of(trace, prefill_tokens))
    for first, end in pairwise(trace.offsets.tolist()):
        request = _Running(first, end, deque(), deque())
        decodes = not prompts_known
        while passes and passes[0][1] < end:
            begins, low, high = passes.popleft()
            decodes = decodes or begins == "decode"
            (request.answer if decodes else request.prompt).append((low, high))
        yield request
