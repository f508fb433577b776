"""Beam search: several answers to one encoder input are decoded side by side, and the likeliest go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from moeinf.sampling.loop import Monitor
from moeinf.sampling.ranking import largest
from moeinf.sampling.sampler import require_finite
from moeinf.sampling.step_queue import Interrupted
from moeinf.types import Float32Array, FloatArray


class EncoderDecoderModel(Protocol):
    """A network that reads an encoder input, and then decodes one answer or several beams."""

    def forward(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> Float32Array:
        """Logits [beams, vocab] behind token_ids, which follow what was decoded.

        between_layers may raise to give the pass up; what was decoded is then as it was before.
        """
        ...

    def encode(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> None:
        """Reads an encoder input; the cache then holds it and one beam, which is empty."""
        ...

    def keep_beams(self, beams: Sequence[int]) -> None:
        """The numbered beams go on, each as often as it is named; the next pass moves their keys and values."""
        ...


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Several answers side by side, of which the likeliest go on: transformers' search without sampling.

    A finished answer of n tokens scores log P / n^length_penalty. The search ends when num_beams answers are finished
    and early_stopping is true; else when none that runs is expected to beat the worst of them: as it stands, or with
    "never" at the full length, where length_penalty favours long answers.
    """

    num_beams: int
    eos_ids: Set[int]
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_ids: int | None = None  # size of the tokenizer; ids beyond it (padding rows of the model) are never answered


def num_beams_asked(asked: Mapping[str, object]) -> int:
    """The beams that a checkpoint's generation_config.json, or config.json, asks for; 1: no beam search."""
    value = asked.get("num_beams")
    return max(1, int(value)) if isinstance(value, int | float) and not isinstance(value, bool) else 1


@dataclass(slots=True)
class _Beams:
    """The answers that run and those that are finished, each with its score; best first."""

    search: BeamSearch
    num_forced: int  # tokens of the answer that were given: they count as its length
    max_tokens: int
    running: list[list[int]] = field(default_factory=lambda: [[]])
    scores: FloatArray = field(default_factory=lambda: np.zeros(1))  # [running], log P
    finished: list[tuple[float, list[int]]] = field(default_factory=list)
    done: bool = False

    def step(self, logits: Float32Array) -> list[int]:
        """Takes logits [running, vocab]; returns the beam that each of those that go on came from.

        Raises NotFiniteError for NaN or infinite logits.
        """
        s = self.search
        require_finite(logits)
        best = likeliest(logits[:, : s.num_ids], self.scores, max(2, 1 + len(s.eos_ids)) * s.num_beams)
        length = len(self.running[0]) + 1
        penalty = float(self.num_forced + length) ** s.length_penalty
        going_on: list[tuple[float, int, int]] = []
        for rank, (beam, token, total) in enumerate(best):
            if token in s.eos_ids or length == self.max_tokens:
                if rank < s.num_beams:
                    self.finished.append((total / penalty, [*self.running[beam], token]))
            elif len(going_on) < s.num_beams:
                going_on.append((total, beam, token))
        self.finished = sorted(self.finished, key=lambda entry: -entry[0])[: s.num_beams]
        self.done = not going_on
        if going_on:
            self.running = [[*self.running[beam], token] for _, beam, token in going_on]
            self.scores = np.array([total for total, _, _ in going_on])
            self.done = self._settled(self.num_forced + length)
        return [beam for _, beam, _ in going_on]

    def _settled(self, length: int) -> bool:
        s = self.search
        if len(self.finished) < s.num_beams:
            return False
        if s.early_stopping == "never" and s.length_penalty > 0:
            length = self.num_forced + self.max_tokens
        return s.early_stopping is True or self.scores[0] / length**s.length_penalty <= self.finished[-1][0]

    def best(self) -> list[int]:
        return self.finished[0][1] if self.finished else self.running[0]


def search_beams(
    model: EncoderDecoderModel, start: Sequence[int], search: BeamSearch, monitor: Monitor, *, max_tokens: int
) -> Iterator[int]:
    """Yields the tokens of the best answer when the search ends. The model has read its encoder input.

    start: token ids that the decoder begins with.
    """
    if max_tokens < 1:
        return
    beams = _Beams(search, len(start) - 1, max_tokens)
    try:
        started = time.perf_counter()
        monitor.begin("prefill")
        kept = beams.step(model.forward(start, monitor.check))
        monitor.timing.prefill_s = time.perf_counter() - started
        monitor.begin("decode")
        while not beams.done:
            started = time.perf_counter()
            model.keep_beams(kept)
            kept = beams.step(model.forward([tokens[-1] for tokens in beams.running], monitor.check))
            monitor.timing.token_s.append(time.perf_counter() - started)
    except Interrupted:
        pass
    yield from beams.best()


def likeliest(logits: Float32Array, scores: FloatArray, count: int) -> list[tuple[int, int, float]]:
    """Returns (beam, token, log P) of the `count` likeliest continuations, best first; of equals the lowest.

    logits [beams, vocab]; scores [beams]: log P so far. Only the best of each row are sorted, as vocabularies are large
    and a step on a GPU takes a few milliseconds.
    """
    found: list[tuple[int, int, float]] = []
    for beam, (row, score) in enumerate(zip(logits, scores.tolist(), strict=True)):
        best = largest(row, count)
        top = row.max()
        log_sum = float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))
        found += [(beam, token, score + float(row[token]) - log_sum) for token in best.tolist()]
    return sorted(found, key=lambda entry: (-entry[2], *entry[:2]))[:count]
