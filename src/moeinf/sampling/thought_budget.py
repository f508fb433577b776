"""Thoughts of no more than so many tokens: where they are spent, what ends a thought is written for the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

from moeinf.sampling.constraint import Constraint
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.sampler import Sampler
from moeinf.text.forms.thought_marks import ThoughtMarks
from moeinf.types import Float32Array


class BudgetedSampler(Sampler):
    """A sampler that counts the tokens of thoughts, and ends a thought that has as many as it may."""

    def __init__(
        self,
        params: SamplingParams,
        marks: ThoughtMarks,
        *,
        num_ids: int | None = None,
        ends: Set[int] = frozenset(),
        constraint: Constraint | None = None,
        isa: str = "",
    ) -> None:
        super().__init__(params, num_ids=num_ids, ends=ends, constraint=constraint, isa=isa)
        self._marks, self._left = marks, params.thought_tokens
        self._thinking = marks.opened
        self._recent: deque[int] = deque(maxlen=len(marks.opens))
        self._due: deque[int] = deque()  # tokens that end the thought, and are yet to be written

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        if self._thinking and self._left <= 0 and not self._due:
            self._due.extend(self._marks.ends)
        if not self._due:
            token = super().sample(logits, history)
        else:
            token = self._due.popleft()
            if self._constraint is not None:
                self._constraint.accept(token)
        self._watch(token)
        return token

    def _watch(self, token: int) -> None:
        self._recent.append(token)
        if self._thinking and token == self._marks.closes:
            self._thinking = False
        elif self._thinking:
            self._left -= 1
        elif tuple(self._recent) == self._marks.opens:
            self._thinking = True
