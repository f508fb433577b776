"""The way of a request: from the prompt through network and sampler to the pieces of an answer."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeVar, cast

from moeinf.engine.answers.begun import Begun, begin
from moeinf.engine.answers.drafting import Drafting
from moeinf.engine.answers.model_kind import Generation, ModelKind
from moeinf.engine.answers.prompts import Prompts
from moeinf.engine.answers.request_monitor import Listeners, RequestMonitor
from moeinf.engine.answers.sequences import Sequences
from moeinf.engine.completion import NO_HOOKS, Completion, CutBy, GenerationStats, Hooks, Request
from moeinf.engine.runner import ModelRunner
from moeinf.engine.vision.encoder import Prompt
from moeinf.errors import ContextLengthError, DeviceError, NotFiniteError, UsageError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.turns import Turns
from moeinf.runtime.warm_start import WarmStart
from moeinf.sampling.loop import Chooser, Forced
from moeinf.sampling.step_queue import SOMEBODY, Asker, Steps
from moeinf.text.process import Stopped
from moeinf.text.text_stream import Piece

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that may be made beside others.

    pieces: as of Model.pieces, and None wherever it waits for a step, which whoever reads it makes (Generator.step).
    completion: what it has come to so far.
    """

    pieces: abc.Generator[Piece | None, None, None]
    completion: Completion


class Generator:
    """Answers requests on an open model, one at a time or several side by side (turns.py).

    `answer` begins a request and writes its answer, in pieces of text; these are made of token ids, which the model's
    kind generates (model_kind.py).
    """

    def __init__(
        self,
        runner: ModelRunner,
        kind: ModelKind,
        prompts: Prompts,
        listeners: Listeners,
        sequences: Sequences,
        turns: Turns,
        load_s: float = 0.0,
        isa: str = "",
        drafting: Drafting | None = None,
        kept_bytes: Callable[[], int] = int,
    ) -> None:
        """load_s: seconds that opening took, which the first request is charged with. isa: the instruction set that
        draws tokens. drafting: None where no tokens are guessed at. kept_bytes: of memory, by what is kept of earlier
        prompts now."""
        self.runner, self.kind, self.prompts, self.listeners = runner, kind, prompts, listeners
        self.sequences, self.turns, self._load_s, self._isa = sequences, turns, load_s, isa
        self.drafting, self.kept_bytes, turns.aside = drafting, kept_bytes, lambda: sequences.lent
        self.steps = Steps(runner, cuts=runner.cuts_prompts, watcher=listeners.recorder)
        self.last: Completion | None = None
        self.warm_start: WarmStart | None = None  # while no request has come
        self.decoded_tokens = 0  # of all requests, behind the first of each; other threads may look
        self.decoded = CacheStats()  # what the decode steps of all requests asked of the expert cache

    def answer(self, request: Request) -> abc.Generator[Piece, None, None]:
        """See Model.pieces."""
        return _whole(self._begun(request, makes_steps=True).pieces)

    def begin(self, request: Request) -> Answer:
        """An answer to be made beside others. Raises as Model.pieces."""
        return self._begun(request, makes_steps=False)

    def step(self) -> None:
        """Makes a step of all answers that wait for one. Raises as Turns.check."""
        with self.turns.alone(self.turns.places):
            self.steps.run()

    def _begun(self, request: Request, *, makes_steps: bool) -> Answer:
        hooks = self._heeding_close(request.hooks)
        answer = Completion("", [], "interrupted", GenerationStats())
        try:
            with self.turns.alone(self.turns.places - 1), self.prompts.tokenizer.until(hooks.should_stop):
                begun = begin(request, self.kind, self.prompts, self._isa)  # here, so that errors come with the call
        except Stopped:
            return Answer(self.turns.answer(self._never_begun(answer)), answer)
        return Answer(self.turns.answer(self._write(begun, request, hooks, answer, makes_steps)), answer)

    def _never_begun(self, answer: Completion) -> abc.Generator[Piece, None, None]:
        """The answer to a prompt that was given up before its tokens were known."""
        self.last = answer
        yield from ()

    def _heeding_close(self, hooks: Hooks) -> Hooks:
        """Hooks of a request that ends where the model is closed meanwhile."""
        asked, turns = hooks.should_stop, self.turns
        return replace(hooks, should_stop=lambda: turns.ending or asked())

    def _write(
        self, begun: Begun, request: Request, hooks: Hooks, answer: Completion, makes_steps: bool
    ) -> abc.Generator[Piece | None, None, None]:
        """Yields the pieces of the answer as they are made; `last` and `answer` then hold all of it."""
        text, constraint, prompt = begun.text, begun.constraint, begun.prompt
        limit, cut_by = self._limit(prompt.ids, request.params.num_predict)
        answer.token_ids, answer.stats.made.seed = text.token_ids, begun.sampler.seed
        chooser = begun.reporting(request.params.top_logprobs, hooks, self.prompts.tokenizer.eos_ids)
        stats, asker = answer.stats, request.asker
        made = self.measured(prompt, chooser, limit, stats, hooks, makes_steps=makes_steps, asker=asker)
        try:
            with closing(text), closing(made) as tokens:
                for piece in text.pieces(tokens if constraint is None else constraint.until_complete(tokens)):
                    if piece is None:
                        yield None
                        continue
                    self.last = answer
                    answer.add(piece)
                    if piece.thought:
                        hooks.on_thought(piece.text)
                    yield piece
        finally:
            self.last = answer
        if text.ended or (constraint is not None and constraint.complete):
            answer.finish_reason, answer.stop = "stop", text.stop
        elif len(answer.token_ids) >= limit:
            answer.finish_reason, answer.cut_by = "length", cut_by

    def _limit(self, prompt: list[int], num_predict: int) -> tuple[int, CutBy]:
        """The most tokens that the answer may have, and what sets that limit."""
        longest = num_predict
        cut_by: CutBy = "num_predict"
        if longest == -1:
            longest, cut_by = self.kind.longest_answer(prompt), "max_length"
        room = self.runner.plan.context - len(self.kind.decoder_prompt(prompt)) + 1
        return (longest, cut_by) if 0 <= longest <= room else (room, "context")

    def tokens(
        self, prompt: list[int], chooser: Chooser, limit: int, stats: GenerationStats, hooks: Hooks = NO_HOOKS
    ) -> abc.Generator[int, None, None]:
        """Yields at most `limit` token ids; `stats` are filled when it ends, however it does.

        Raises as Turns.answer.
        """
        measured = self.measured(Prompt(prompt), chooser, limit, stats, self._heeding_close(hooks), makes_steps=True)
        return _whole(self.turns.answer(measured))

    def measured(
        self,
        prompt: Prompt,
        chooser: Chooser,
        limit: int,
        stats: GenerationStats,
        hooks: Hooks,
        *,
        makes_steps: bool = False,
        asker: Asker = SOMEBODY,
        on_hidden: Callable[[int, Any], None] | None = None,
    ) -> abc.Generator[int | None, None, None]:
        """As `tokens`, within a turn, and None where it waits for a step. on_hidden: as of CachedTokens.telling."""
        forced = isinstance(chooser, Forced)  # a text whose steps are to be measured one by one
        profiler, ids = self.listeners.profiler, prompt.ids
        self._end_warm_start()
        stats.load_s, self._load_s = self._load_s, 0.0
        stats.prompt_tokens = len(ids)
        seated = self.steps.seat(makes_steps=makes_steps, asker=asker)
        taken = self.sequences.taken(ids if on_hidden is None else ())
        with seated as seat, taken as sequence, sequence.telling(on_hidden):
            sequence.cache.pictures = prompt.pictures
            monitor = RequestMonitor(self.runner, self.listeners, hooks, seat)
            prompt.checks.append(monitor.check)
            try:
                drafting = self.drafting
                if drafting is not None and (on_hidden is not None or (forced and not drafting.always)):
                    drafting = None
                guessed = None if drafting is None else drafting.begin(sequence, stats.drafts)
                asked = Generation(seat, sequence, ids, chooser, monitor, limit, guessed)
                with closing(self.kind.generate(self.runner, asked)) as made:
                    for token in made:
                        if token is not None:
                            self.decoded_tokens += stats.generated_tokens > 0
                            stats.generated_tokens += 1
                            profiler.lap("other")
                        yield token
                        profiler.restart()  # the caller's time is no part of a token's
            except NotFiniteError:
                sequence.forget()  # the next prompt must not build on keys and values that are no numbers
                raise
            except DeviceError:
                self.sequences.keep_nothing()  # nothing can be copied from a GPU that is lost
                raise
            finally:
                monitor.end(stats)
                self.decoded = self.decoded.plus(stats.decode_cache)

    def replay(self, prompt: Sequence[int], continuation: Sequence[int]) -> GenerationStats:
        """See Model.replay."""
        if len(prompt) == 0:
            raise UsageError("replay: the prompt is empty; give at least one token id")
        prompt, continuation = self._checked("prompt", prompt), self._checked("continuation", continuation)
        context, start = self.runner.plan.context, self.kind.decoder_prompt(prompt)
        if max(len(prompt), len(start) + len(continuation)) > context:
            raise ContextLengthError(
                f"{len(prompt)} + {len(continuation)} tokens do not fit the context of {context}; raise --num-ctx or "
                "ask for fewer"
            )
        stats, hooks = GenerationStats(), self._heeding_close(NO_HOOKS)
        chooser, limit = Forced(continuation), len(continuation) + 1
        with self.turns.alone(), self.sequences.afresh():
            for _ in self.measured(Prompt(prompt), chooser, limit, stats, hooks, makes_steps=True):
                pass
        return stats

    def _checked(self, name: str, token_ids: Sequence[int]) -> list[int]:
        """The ids as plain numbers. Raises UsageError for one that has no row; a negative index would find one."""
        num_rows = self.prompts.info.vocab_size
        for place, token in enumerate(token_ids):
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not (whole and 0 <= token < num_rows):
                raise UsageError(
                    f"replay: {name}[{place}] is {token!r}; token ids of this model are whole numbers "
                    f"from 0 to {num_rows - 1}"
                )
        return [int(token) for token in token_ids]

    def warm_up(self, collection: ActivationCollection) -> None:
        """See Model.warm_up. collection: what earlier runs have learned."""
        runner = self.runner
        wanted = runner.can_warm and len(collection) and not runner.tier.all_resident
        if wanted and self.warm_start is None:
            with self.turns.alone():
                self.warm_start = WarmStart(runner.tier, collection, self.listeners.notify)

    def _end_warm_start(self) -> None:
        if self.warm_start is not None:
            self.warm_start.stop()
            self.warm_start = None

    def close(self) -> bool:
        """Gives back what the runner and the cache hold, each whatever the other raises; returns whether all reads have
        ended."""
        ended = [False]
        self.turns.aside = lambda: 0  # whoever holds these must not hold the sequences
        with ExitStack() as parts:
            parts.callback(lambda: ended.append(self.runner.close()))
            parts.callback(self.sequences.close)
            parts.callback(self._end_warm_start)
        return ended[-1]


def _whole(made: abc.Generator[T | None, None, None]) -> abc.Generator[T, None, None]:
    """The type of what makes its own steps, and so never waits for one."""
    return cast("abc.Generator[T, None, None]", made)
