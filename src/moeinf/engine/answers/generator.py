"""The way of a request: from the prompt through network and sampler to the pieces of an answer."""

from __future__ import annotations

from collections import abc
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from numbers import Integral

from moeinf.engine.answers.model_kind import Generation, ModelKind, Rendering
from moeinf.engine.answers.prompts import Prompts
from moeinf.engine.answers.request_monitor import Listeners, RequestMonitor
from moeinf.engine.completion import NO_HOOKS, Completion, CutBy, GenerationStats, Hooks, Request
from moeinf.engine.runner import ModelRunner
from moeinf.engine.vision.encoder import Prompt
from moeinf.errors import ContextLengthError, DeviceError, NotFiniteError, UsageError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.turns import Turns
from moeinf.runtime.warm_start import WarmStart
from moeinf.sampling.constraint import GrammarConstraint
from moeinf.sampling.logprobs import ChosenToken, ReportingSampler
from moeinf.sampling.loop import CachedTokens, Chooser, Forced
from moeinf.sampling.sampler import Sampler, check_token_ids
from moeinf.sampling.thought_budget import BudgetedSampler
from moeinf.text.answer import AnswerText
from moeinf.text.process import Stopped
from moeinf.text.text_stream import Piece
from moeinf.text.tokenizer import TextStream


@dataclass(frozen=True, slots=True)
class _Begun:
    """A request that can be answered: what its answer is computed from, and how."""

    prompt: Prompt
    text: AnswerText
    sampler: Sampler
    constraint: GrammarConstraint | None


class Generator:
    """Answers requests on an open model, one at a time (turns.py).

    `answer` begins a request and writes its answer, in pieces of text; these are made of token ids, which the model's
    kind generates (model_kind.py).
    """

    def __init__(
        self,
        runner: ModelRunner,
        kind: ModelKind,
        prompts: Prompts,
        listeners: Listeners,
        sequence: CachedTokens,
        turns: Turns,
        load_s: float = 0.0,
        isa: str = "",
    ) -> None:
        """sequence: of the runner's cache. load_s: seconds that opening took, which the first request is charged with.
        isa: the instruction set that draws tokens."""
        self.runner, self.kind, self.prompts, self.listeners = runner, kind, prompts, listeners
        self.sequence, self.turns, self._load_s, self._isa = sequence, turns, load_s, isa
        self.last: Completion | None = None
        self.warm_start: WarmStart | None = None  # while no request has come
        self.decoded = CacheStats()  # what the decode steps of all requests asked of the expert cache

    def answer(self, request: Request) -> abc.Generator[Piece, None, None]:
        """See Model.pieces."""
        hooks = self._heeding_close(request.hooks)
        try:
            with self.turns.alone(), self.prompts.tokenizer.until(hooks.should_stop):
                begun = self._begin(request)  # here, so that errors come with the call
        except Stopped:
            return self.turns.answer(self._never_begun())
        return self.turns.answer(self._write(begun, request, hooks))

    def _begin(self, request: Request) -> _Begun:
        """Raises what is wrong with a request, before anything is computed."""
        params, format, prompts = request.params, request.format, self.prompts
        self.kind.check(params, format)
        check_token_ids(params, prompts.num_ids)
        if request.continues and format is not None:
            raise UsageError("format: an answer that was begun is held to no form; leave one of the two out")
        prompt = prompts.encode(request.prompt, Rendering(request.raw, request.variables, request.continues))
        stream = self.kind.text_stream(prompt.text_ids, chat=prompts.templated(request.raw), tools=request.tools)
        text = AnswerText(stream, prompts.tokenizer.eos_ids, params.stop, params.min_tokens)
        try:
            constraint = None if format is None else GrammarConstraint(stream, format, prompts.num_ids)
            return _Begun(prompt, text, self._sampler(request, stream, constraint), constraint)
        except BaseException:
            text.close()
            raise

    def _sampler(self, request: Request, stream: TextStream, constraint: GrammarConstraint | None) -> Sampler:
        params, num_ids, isa = request.params, self.prompts.num_ids, self._isa
        ends = self.prompts.tokenizer.eos_ids
        marks = stream.thought_marks() if params.thought_tokens >= 0 else None
        if marks is None:
            return Sampler(params, num_ids=num_ids, ends=ends, constraint=constraint, isa=isa)
        return BudgetedSampler(params, marks, num_ids=num_ids, ends=ends, constraint=constraint, isa=isa)

    def _never_begun(self) -> abc.Generator[Piece, None, None]:
        """The answer to a prompt that was given up before its tokens were known."""
        self.last = Completion("", [], "interrupted", GenerationStats())
        yield from ()

    def _heeding_close(self, hooks: Hooks) -> Hooks:
        """Hooks of a request that ends where the model is closed meanwhile."""
        asked, turns = hooks.should_stop, self.turns
        return replace(hooks, should_stop=lambda: turns.ending or asked())

    def _write(self, begun: _Begun, request: Request, hooks: Hooks) -> abc.Generator[Piece, None, None]:
        """Yields the pieces of the answer as they are made; `last` then holds all of it."""
        text, constraint = begun.text, begun.constraint
        prompt, self.runner.cache.pictures = begun.prompt.ids, begun.prompt.pictures
        limit, cut_by = self._limit(prompt, request.params.num_predict)
        answer = Completion("", text.token_ids, "interrupted", GenerationStats(seed=begun.sampler.seed))
        chooser = self._reporting(begun.sampler, request.params.top_logprobs, hooks)
        try:
            with closing(text), closing(self._measured(prompt, chooser, limit, answer.stats, hooks)) as tokens:
                for piece in text.pieces(tokens if constraint is None else constraint.until_complete(tokens)):
                    self.last = answer
                    answer.add(piece)
                    if piece.thought:
                        hooks.on_thought(piece.text)
                    yield piece
        except GeneratorExit:  # whoever read the answer has gone, but what was computed is good
            self.sequence.settle()
            raise
        if text.ended or (constraint is not None and constraint.complete):
            answer.finish_reason, answer.stop = "stop", text.stop
        elif len(answer.token_ids) >= limit:
            answer.finish_reason, answer.cut_by = "length", cut_by
        self.last = answer
        self.sequence.settle()

    def _reporting(self, sampler: Sampler, num_top: int, hooks: Hooks) -> Chooser:
        """The sampler, or one that tells the caller how probable each token was, where that is asked for."""

        def report(chosen: ChosenToken) -> None:
            if chosen.token_id not in ends:
                hooks.on_token(chosen)

        ends = self.prompts.tokenizer.eos_ids
        return ReportingSampler(sampler, num_top, report) if num_top >= 0 else sampler

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
        return self.turns.answer(self._measured(prompt, chooser, limit, stats, self._heeding_close(hooks)))

    def _measured(
        self, prompt: list[int], chooser: Chooser, limit: int, stats: GenerationStats, hooks: Hooks
    ) -> abc.Generator[int, None, None]:
        """As `tokens`, within a turn."""
        profiler = self.listeners.profiler
        self._end_warm_start()
        monitor = RequestMonitor(self.runner, self.listeners, hooks)
        stats.load_s, self._load_s = self._load_s, 0.0
        stats.prompt_tokens = len(prompt)
        self.prompts.heed(monitor.check)
        try:
            asked = Generation(self.sequence, prompt, chooser, monitor, limit)
            for token in self.kind.generate(self.runner, asked):
                stats.generated_tokens += 1
                profiler.lap("other")
                yield token
                profiler.restart()  # the caller's time is no part of a token's
        except NotFiniteError:
            self.sequence.forget()  # the next prompt must not build on keys and values that are no numbers
            raise
        except DeviceError:
            self.sequence.prefixes = None  # nothing can be copied from a GPU that is lost
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
        with self.turns.alone():
            self.sequence.clear()
            self.runner.cache.pictures = ()
            prefixes, self.sequence.prefixes = self.sequence.prefixes, None
            try:
                for _ in self._measured(prompt, Forced(continuation), len(continuation) + 1, stats, hooks):
                    pass
            finally:
                self.sequence.prefixes = prefixes
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
        with ExitStack() as parts:
            parts.callback(lambda: ended.append(self.runner.close()))
            parts.callback(self.__dict__.pop, "sequence")  # keys and values
            parts.callback(self.sequence.close)
            parts.callback(self._end_warm_start)
        return ended[-1]
