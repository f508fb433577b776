"""The way of a request: from the prompt through network and sampler to the pieces of an answer."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from moeinf.engine.answers.model_kind import ModelKind
from moeinf.engine.answers.request_monitor import RequestMonitor
from moeinf.engine.completion import NO_HOOKS, Completion, CutBy, GenerationStats, Hooks
from moeinf.engine.disk_wait import DiskWait, never
from moeinf.engine.runner import ModelRunner
from moeinf.engine.vision.encoder import Prompt, VisionEncoder, required
from moeinf.engine.vision.parts import text_alone, without_pictures
from moeinf.errors import ContextLengthError, DeviceError, NotFiniteError, UsageError
from moeinf.models.layers.decoder import Decoder
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.runtime.turns import Turns
from moeinf.runtime.warm_start import WarmStart
from moeinf.sampling.constraint import AnswerFormat, GrammarConstraint
from moeinf.sampling.logprobs import ChosenToken, ReportingSampler
from moeinf.sampling.loop import CachedTokens, Chooser, Forced, Prefixes
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.sampler import Sampler, check_token_ids
from moeinf.sampling.thought_budget import BudgetedSampler
from moeinf.text.answer import AnswerText
from moeinf.text.forms.thought_marks import ThoughtMarks
from moeinf.text.process import Stopped
from moeinf.text.stream import Piece
from moeinf.text.tokenizer import Tokenizer
from moeinf.traces.recorder import TraceRecorder
from moeinf.types import Message, ModelInfo, Profiler, Tool


@dataclass(frozen=True, slots=True)
class Attendants:
    """Who attends to the request that runs."""

    recorder: RequestRecorder  # of what policies and predictors learn from the routing
    profiler: Profiler
    disk_wait: DiskWait
    notify: Callable[[str], None]  # told each line once
    trace: TraceRecorder | None = None


class Generator:
    """Generates on an open model: one request at a time (turns.py).

    `pieces` is the way of a prompt; what depends on the model's kind are verbs of model_kind.py.
    """

    def __init__(
        self,
        runner: ModelRunner,
        kind: ModelKind,
        tokenizer: Tokenizer,
        info: ModelInfo,
        attendants: Attendants,
        turns: Turns,
        load_s: float,
        prefixes: Prefixes | None = None,
        vision_encoder: VisionEncoder | str = "this model takes text alone",
        isa: str = "",
    ) -> None:
        """load_s: seconds that opening took, which the first request is charged with. prefixes: of earlier requests.
        vision_encoder: how the model sees, or why it does not. isa: the instruction set that draws tokens."""
        self.runner, self.kind = runner, kind
        self.last: Completion | None = None
        whole = isinstance(runner.network, Decoder) and runner.network.sees_whole_pictures
        self.sequence, self._vision_encoder = CachedTokens(runner.cache, prefixes, whole_pictures=whole), vision_encoder
        self._tokenizer, self._info, self._isa = tokenizer, info, isa
        self.attendants, self.turns, self._load_s = attendants, turns, load_s
        self.warm_start: WarmStart | None = None  # while no request has come
        self.decoded = CacheStats()  # what the decode steps of all requests asked of the expert cache

    def pieces(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams,
        *,
        raw: bool,
        variables: Mapping[str, Any],
        tools: Sequence[Tool],
        format: AnswerFormat | None,
        continues: bool,
        hooks: Hooks,
    ) -> abc.Generator[Piece, None, None]:
        """See Model.pieces; variables: all that the chat template is told."""
        hooks = self._heeding_close(hooks)
        try:
            # here, so that errors come with the call
            with self.turns.alone(), self._tokenizer.until(hooks.should_stop):
                self.kind.check(params, format)
                check_token_ids(params, self._num_ids)
                if continues and format is not None:
                    raise UsageError("format: an answer that was begun is held to no form; leave one of the two out")
                given = self._prompt(prompt, raw=raw, variables=variables, continues=continues)
                chat = self._tokenizer.has_template and not raw
                stream = self.kind.text_stream(given.text_ids, chat=chat, tools=tools)
                text = AnswerText(stream, self._tokenizer.eos_ids, params.stop, params.min_tokens)
                try:
                    constraint = None if format is None else GrammarConstraint(stream, format, self._num_ids)
                    marks = stream.thought_marks() if params.thought_tokens >= 0 else None
                except BaseException:
                    text.close()
                    raise
        except Stopped:
            return self.turns.answer(self._never_begun())
        sampler = self._sampler(params, constraint, marks)
        return self.turns.answer(self._answer(given, sampler, params, text, constraint, hooks))

    def _never_begun(self) -> abc.Generator[Piece, None, None]:
        """The answer to a prompt that was given up before its tokens were known."""
        self.last = Completion("", [], "interrupted", GenerationStats())
        yield from ()

    def _heeding_close(self, hooks: Hooks) -> Hooks:
        """Hooks of a request that ends where the model is closed meanwhile."""
        asked, turns = hooks.should_stop, self.turns
        return replace(hooks, should_stop=lambda: turns.ending or asked())

    def _sampler(
        self, params: SamplingParams, constraint: GrammarConstraint | None, marks: ThoughtMarks | None
    ) -> Sampler:
        """marks: of thoughts that are bounded."""
        ends, isa = self._tokenizer.eos_ids, self._isa
        if marks is None:
            return Sampler(params, num_ids=self._num_ids, ends=ends, constraint=constraint, isa=isa)
        return BudgetedSampler(params, marks, num_ids=self._num_ids, ends=ends, constraint=constraint, isa=isa)

    @property
    def _num_ids(self) -> int:
        """Ids that mean something; the others are padding rows of the model."""
        return min(self._tokenizer.num_ids, self._info.vocab_size)

    def encode(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool = False,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """See Model.encode."""
        return self._prompt(prompt, raw=raw, variables=variables, continues=continues).ids

    def _prompt(
        self, prompt: str | Sequence[Message], *, raw: bool, variables: Mapping[str, Any] | None, continues: bool
    ) -> Prompt:
        def check(at_least: int) -> None:
            check_least(at_least, self.runner.plan.context, self._info.context_length)

        messages, given = ([], []) if isinstance(prompt, str) else without_pictures(prompt)
        if given:
            pictures = [required(self._vision_encoder).prepared(each) for each in given]
            templated = self._tokenizer.has_template and not raw
            shown = messages if templated else text_alone(messages)
            ids = self.kind.encode(shown, raw=raw, variables=variables, continues=continues, check_length=check)
            begun = ids[:1] == [self._tokenizer.bos_id]
            made = required(self._vision_encoder).placed(ids, pictures, None if templated else int(begun))
        else:
            made = Prompt(
                self.kind.encode(prompt, raw=raw, variables=variables, continues=continues, check_length=check)
            )
        check_length(len(made.ids), self.runner.plan.context, self._info.context_length)
        return made

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        return longer_context(self.runner.plan.context, self._info.context_length)

    def _answer(
        self,
        given: Prompt,
        sampler: Sampler,
        params: SamplingParams,
        text: AnswerText,
        constraint: GrammarConstraint | None,
        hooks: Hooks,
    ) -> abc.Generator[Piece, None, None]:
        """Yields the pieces of the answer as they are made; `last` then holds all of it."""
        prompt, self.runner.cache.pictures = given.ids, given.pictures
        limit, cut_by = self._limit(prompt, params)
        answer = Completion("", text.token_ids, "interrupted", GenerationStats(seed=sampler.seed))
        chooser = self._reporting(sampler, params.top_logprobs, hooks)
        try:
            with closing(text), closing(self._tokens(prompt, chooser, limit, answer.stats, hooks)) as tokens:
                for piece in text.pieces(tokens if constraint is None else constraint.until_complete(tokens)):
                    self.last = answer
                    if piece.call is not None:
                        answer.call_parts.append(piece.call)
                    elif piece.thought:
                        answer.thinking += piece.text
                        hooks.on_thought(piece.text)
                    else:
                        answer.text += piece.text
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

        ends = self._tokenizer.eos_ids
        return ReportingSampler(sampler, num_top, report) if num_top >= 0 else sampler

    def _limit(self, prompt: list[int], params: SamplingParams) -> tuple[int, CutBy]:
        """The most tokens that the answer may have, and what sets that limit."""
        longest = params.num_predict
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
        return self.turns.answer(self._tokens(prompt, chooser, limit, stats, self._heeding_close(hooks)))

    def _tokens(
        self, prompt: list[int], chooser: Chooser, limit: int, stats: GenerationStats, hooks: Hooks
    ) -> abc.Generator[int, None, None]:
        attendants, profiler = self.attendants, self.attendants.profiler
        self._end_warm_start()
        monitor = RequestMonitor(self.runner, profiler, hooks)
        stats.load_s, self._load_s = self._load_s, 0.0
        stats.prompt_tokens = len(prompt)
        attendants.disk_wait.should_stop = hooks.should_stop
        if isinstance(self._vision_encoder, VisionEncoder):
            self._vision_encoder.check = monitor.check
        try:
            for token in self.kind.tokens(self.runner, self.sequence, prompt, chooser, monitor, max_tokens=limit):
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
            attendants.disk_wait.should_stop = never
            self.runner.tier.end_request()
            attendants.recorder.finish()
            if attendants.trace is not None:
                attendants.trace.finish()
            monitor.end(stats)
            if notice := self.runner.reader.notice:  # a file system may refuse any block
                attendants.notify(notice)
            self.decoded = self.decoded.plus(stats.decode_cache)

    def replay(self, prompt: Sequence[int], continuation: Sequence[int]) -> GenerationStats:
        """Feeds `continuation` token by token behind `prompt` instead of drawing: real text for a benchmark.

        Starts from an empty KV cache; the expert cache stays as it is. Raises UsageError for ids that are no tokens of
        the model and for no prompt, ContextLengthError for too many.
        """
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
                for _ in self._tokens(prompt, Forced(continuation), len(continuation) + 1, stats, hooks):
                    pass
            finally:
                self.sequence.prefixes = prefixes
        return stats

    def _checked(self, name: str, token_ids: Sequence[int]) -> list[int]:
        """The ids as plain numbers. Raises UsageError for one that has no row; a negative index would find one."""
        for place, token in enumerate(token_ids):
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not (whole and 0 <= token < self._info.vocab_size):
                raise UsageError(
                    f"replay: {name}[{place}] is {token!r}; token ids of this model are whole numbers "
                    f"from 0 to {self._info.vocab_size - 1}"
                )
        return [int(token) for token in token_ids]

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


def check_least(num_tokens: int, context: int, longest: int) -> None:
    """Raises ContextLengthError for a prompt of at least num_tokens that a context has no room for.

    longest: the context that the model allows.
    """
    if num_tokens >= context:
        raise ContextLengthError(_no_room(f"at least {num_tokens}", context, longest))


def check_length(num_tokens: int, context: int, longest: int) -> None:
    """Raises UsageError for a prompt of no tokens, ContextLengthError for one that a context has no room for.

    longest: the context that the model allows.
    """
    if not num_tokens:
        raise UsageError("the prompt is empty: give at least one word")
    if num_tokens >= context:
        raise ContextLengthError(_no_room(str(num_tokens), context, longest))


def _no_room(tokens: str, context: int, longest: int) -> str:
    return f"the prompt has {tokens} tokens, the context {context}: shorten it{longer_context(context, longest)}"


def longer_context(context: int, longest: int) -> str:
    """How to get a longer context than this, to be put behind another remedy."""
    if context < longest:
        return f", or raise --num-ctx (the model allows {longest})"
    return f"; this model has no longer context than {longest} tokens"
