"""An answer to a source: encoded once, then decoded token by token, or as several beams side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from moeinf.errors import UsageError
from moeinf.sampling.loop import CachedTokens, Chooser, Interrupted, LanguageModel, Timing, generate
from moeinf.sampling.params import not_done
from moeinf.sampling.sampler import largest, require_finite
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Float32Array, FloatArray, Prompting


class SourceModel(LanguageModel, Protocol):
    def encode(self, ids: Sequence[int], cache: Any, between_layers: Callable[[], None]) -> None:
        """The cache then holds this source, and one beam that is empty."""
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


def num_beams_asked(asked: Mapping[str, Any]) -> int:
    """What a checkpoint's generation_config.json, or config.json, asks for; 1: no beam search."""
    return max(1, int(_number(asked.get("num_beams"), int, 1)))


class Sources:
    """How texts become sources for one model, and how its answers begin and are searched for."""

    def __init__(
        self,
        prompting: Prompting,
        tokenizer: Tokenizer,
        config: Mapping[str, Any],
        src_lang: str,
        tgt_lang: str,
        num_beams: int | None,
    ) -> None:
        """config: config.json, which asks for what generation_config.json would, where that is missing.

        Raises UsageError for languages that are missing, unknown, or that this model is not told.
        """
        self.prompting, self._tokenizer = prompting, tokenizer
        # T5 marks gaps and what fills them by special tokens, <extra_id_0> and so on; a translator's are not text
        self.control_tokens = not prompting.languages
        self.asked = tokenizer.generation_config or config
        self._source_start = list[int]()
        forced = self.asked.get("forced_bos_token_id")
        if prompting.languages:
            self._source_start = [self._language("--src-lang", src_lang)]
            forced = self._language("--tgt-lang", tgt_lang)
        elif src_lang or tgt_lang:
            raise UsageError(
                f"--{'src' if src_lang else 'tgt'}-lang: this model is told the languages in the text "
                'itself, as in "translate English to German: ..."; leave it out'
            )
        self.start = [prompting.start_id, *([forced] if isinstance(forced, int) else [])]
        self.num_beams: int = num_beams or num_beams_asked(self.asked)

    def notes(self) -> list[str]:
        """What the checkpoint asks for and does not get."""
        return not_done(self.asked, beams=True)

    def encode(self, text: str) -> list[int]:
        """The source's tokens, [] for no text."""
        ids = self._tokenizer.encode_bare(text, control_tokens=self.control_tokens)
        return [*self._source_start, *ids, self.prompting.eos_id] if ids else []

    def search(self) -> BeamSearch | None:
        """None for a single answer."""
        if self.num_beams == 1:
            return None
        early = self.asked.get("early_stopping")
        penalty = _number(self.asked.get("length_penalty"), float, 1.0)
        return BeamSearch(
            self.num_beams, self._tokenizer.eos_ids, penalty, early if early is True or early == "never" else False
        )

    def max_tokens(self) -> int:
        """Behind `start`, as the checkpoint asks for: max_length counts what it begins with. -1: it does not say."""
        forced = len(self.start) - 1
        if self.asked.get("max_new_tokens") is not None:
            return max(0, int(_number(self.asked["max_new_tokens"], int, 0)) - forced)
        longest = int(_number(self.asked.get("max_length"), int, 0))
        return max(0, longest - len(self.start)) if longest else -1

    def _language(self, option: str, code: str) -> int:
        if not code:
            raise UsageError(
                f"this model translates between languages that it is told: give {option}, such as "
                f"{'eng_Latn' if option == '--src-lang' else 'fra_Latn'}"
            )
        token = self._tokenizer.token_id(code)
        if token is None or token not in self._tokenizer.special_ids:
            raise UsageError(
                f"{option} {code!r} is no language of this model; it knows them as eng_Latn, fra_Latn, "
                "deu_Latn and so on"
            )
        return token


def _number(value: Any, kind: Callable[[Any], Any], default: Any) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


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
        """Takes logits [running, vocab]; returns which beam each that goes on came from."""
        s = self.search
        best = likeliest(logits, self.scores, max(2, 1 + len(s.eos_ids)) * s.num_beams)
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


def answer_source(
    model: SourceModel,
    sequence: CachedTokens,
    source: Sequence[int],
    start: Sequence[int],
    sampler: Chooser,
    search: BeamSearch | None,
    *,
    num_ids: int,
    max_tokens: int,
    timing: Timing,
    should_stop: Callable[[], bool],
    on_phase: Callable[[Literal["encode", "prefill", "decode"]], None],
    on_prefill: Callable[[int, int], None],
) -> Iterator[int]:
    """Yields tokens as `generate` does; of a beam search those of the best answer, when it ends.

    source: as many tokens as the cache has room for at most. start: what the decoder begins with; ids from num_ids on
    are not answered by a search.
    """

    def check() -> None:
        if should_stop():
            raise Interrupted

    started = time.perf_counter()
    on_phase("encode")
    sequence.forget()
    try:
        model.encode(source, sequence.cache, check)
    except Interrupted:
        return
    timing.encode_s = time.perf_counter() - started
    on_prefill(len(source), len(source))
    if search is not None:
        yield from _search(model, sequence, start, search, num_ids, max_tokens, timing, check, on_phase)
        return
    yield from generate(
        model,
        sequence,
        start,
        sampler,
        max_tokens=max_tokens,
        chunk=len(start),
        timing=timing,
        should_stop=should_stop,
        on_phase=on_phase,
        on_prefill=lambda done, total: None,
    )


def _search(
    model: LanguageModel,
    sequence: CachedTokens,
    start: Sequence[int],
    search: BeamSearch,
    num_ids: int,
    max_tokens: int,
    timing: Timing,
    check: Callable[[], None],
    on_phase: Callable[[Literal["prefill", "decode"]], None],
) -> Iterator[int]:
    if max_tokens < 1:
        return
    cache: Any = sequence.cache
    beams = _Beams(search, len(start) - 1, max_tokens)
    try:
        started = time.perf_counter()
        on_phase("prefill")
        kept = beams.step(_finite(model.forward(start, cache, check))[:, :num_ids])
        timing.prefill_s = time.perf_counter() - started
        on_phase("decode")
        while not beams.done:
            started = time.perf_counter()
            cache.keep(kept)  # moved by the pass that follows
            logits = model.forward([tokens[-1] for tokens in beams.running], cache, check)
            kept = beams.step(_finite(logits)[:, :num_ids])
            timing.token_s.append(time.perf_counter() - started)
    except Interrupted:
        pass
    yield from beams.best()


def _finite(logits: Float32Array) -> Float32Array:
    require_finite(logits)
    return logits


def likeliest(logits: Float32Array, scores: FloatArray, count: int) -> list[tuple[int, int, float]]:
    """(beam, token, log P) of the `count` likeliest continuations, best first; of equals the lowest.

    logits [beams, vocab], scores [beams]: log P so far. Row by row, of which only the best are sorted: vocabularies
    are large, and a step on a GPU takes a few milliseconds.
    """
    found: list[tuple[int, int, float]] = []
    for beam, (row, score) in enumerate(zip(logits, scores.tolist(), strict=True)):
        best = largest(row, count)
        top = row.max()
        log_sum = float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))
        found += [(beam, token, score + float(row[token]) - log_sum) for token in best.tolist()]
    return sorted(found, key=lambda entry: (-entry[2], *entry[:2]))[:count]
