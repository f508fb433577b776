"""Opens a stored model: joins store, model, runtime and text into the object that its users hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Completion, CutBy, GenerationStats
from moeinf.engine.dense_weights import DenseFile
from moeinf.engine.disk_wait import DiskWait, never
from moeinf.engine.memory_plan import shortenings
from moeinf.engine.opening import Run, open_kernels, put_together, read_config
from moeinf.engine.parts import ModelParts, Progress, no_progress
from moeinf.engine.request_stats import Meter
from moeinf.errors import ContextLengthError, NotFiniteError, StoreError, UsageError
from moeinf.hardware import Machine, machine, peak_rss_bytes
from moeinf.models import prompting
from moeinf.runtime.policy.eamc import MOST_BYTES, ActivationCollection
from moeinf.runtime.policy.trace import Phase, RequestRecorder
from moeinf.sampling.beam_search import Sources, answer_source
from moeinf.sampling.loop import CachedTokens, Chooser, Forced, Timing, generate
from moeinf.sampling.params import SamplingParams, not_done, resolve_params
from moeinf.sampling.sampler import Sampler
from moeinf.store.checksums import sums_of
from moeinf.store.dense_sums import DenseSums
from moeinf.store.files import publish, read_small
from moeinf.store.format import DENSE_FILE
from moeinf.store.formats import formats_text
from moeinf.store.library import StoredModel
from moeinf.store.verify import check_files
from moeinf.text.answer import AnswerText
from moeinf.text.quantities import count_text
from moeinf.text.thinking import template_variables
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Message, Profiler, Reader, SumRun

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.engine.gpu import OpenGpu


class Model:
    """A stored model, ready to generate. One request at a time, from one thread. Close it, or use `with`."""

    def __init__(
        self,
        stored: StoredModel,
        config: RuntimeConfig,
        progress: Progress | None = None,
        on: Machine | None = None,
        gpu: OpenGpu | None = None,
        pin_progress: Progress | None = None,
        preload: bool = True,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Reads the dense weights; experts come when they are needed. progress(bytes done, bytes in all).

        pin_progress: the same of host memory that is pinned for a GPU. Either may raise, and loading ends.
        preload: where every expert fits, read all of them now.
        say(line): told while the disk does not answer for seconds.
        on, gpu: instead of the machine at hand, and of the device that the configuration names.
        Raises OutOfMemoryError before anything is read, StoreError for a damaged store, DeviceError for a GPU that was
        asked for and cannot be used.
        """
        started = time.perf_counter()
        self.name = stored.name
        self.manifest = stored.manifest
        self.config = config
        self.notices: list[str] = []  # each fallback, said once
        self.last: Completion | None = None
        self._stored = stored
        self._profiler = Profiler()
        self._disk_wait = DiskWait(say)
        self._run: Run | None = None
        self._look: Callable[[], Machine] = machine if on is None else (lambda: on)
        here = self._look()
        check_files(stored)
        config_json, family, plan = read_config(stored)
        runs = self._sums_of_weights()
        dense = DenseFile(stored, plan, DenseSums(stored, runs, always=config.verify_reads))
        self.num_threads = config.threads or here.cores
        self.kernels = open_kernels(self.num_threads, config.isa)
        self._collection = self._load_collection()
        self._recorder = RequestRecorder(stored.manifest.moe, self._collection.add)
        parts = ModelParts(
            stored,
            config,
            here,
            family,
            config_json,
            plan.form,
            plan.work,
            dense,
            self.kernels,
            self._collection,
            [self._recorder],
            self._profiler,
            self.notices,
            progress or no_progress,
            self._disk_wait,
            pin_progress or no_progress,
            preload=preload,
            shard_sums=[run for run in runs if run.file != DENSE_FILE],
        )
        self.tokenizer = Tokenizer(stored.path, num_embeddings=stored.manifest.info.vocab_size)
        try:
            self._sources = self._open_sources(config_json)
            if self._sources is not None:
                parts.prompting, parts.num_beams = self._sources.prompting, self._sources.num_beams
            self._run = run = put_together(parts, gpu, self._look)
        except BaseException:
            self.close()
            raise
        self.plan, self.tier = run.plan, run.tier
        self.notices += shortenings(run.plan, parts.demands, config)
        self._sequence = CachedTokens(run.cache)
        self._load_s = time.perf_counter() - started

    def _sums_of_weights(self) -> Sequence[SumRun]:
        """The checksums that reads are compared with. Raises UsageError where --verify-reads asks for them in vain."""
        runs, notice = sums_of(self._stored)
        if notice and self.config.verify_reads:
            raise UsageError(f"--verify-reads: {notice}")
        self.notices += [notice] if notice else []
        return runs

    def _open_sources(self, config_json: dict[str, Any]) -> Sources | None:
        """Of an encoder-decoder model. Raises UsageError for an option that this model has no use for."""
        config, kind = self.config, prompting(config_json)
        if kind is not None:
            sources = Sources(kind, self.tokenizer, config_json, config.src_lang, config.tgt_lang, config.num_beams)
            self.notices += sources.notes()
            return sources
        for option, value in (
            ("src-lang", config.src_lang),
            ("tgt-lang", config.tgt_lang),
            ("num-beams", config.num_beams not in (None, 1)),
        ):
            if value:
                raise UsageError(f"--{option} is for encoder-decoder models, and {self.name} is none; leave it out")
        return None

    def _load_collection(self) -> ActivationCollection:
        """The collection of earlier runs, or an empty one."""
        path = self._stored.path / "eamc.npz"
        if not os.access(path.parent, os.W_OK):
            self.notices.append(f"{path.parent} is read-only: what this run learns about routing is not kept")
        try:
            return ActivationCollection.loads(read_small(path, MOST_BYTES), self.manifest.moe)
        except FileNotFoundError:
            return ActivationCollection(self.manifest.moe)
        except (OSError, StoreError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.notices.append(f"{path}: {reason}; starting without it")
            return ActivationCollection(self.manifest.moe)

    def load_all(self) -> float:
        """Reads the experts that are not resident yet, where all of them fit; returns the seconds that it took."""
        started = time.perf_counter()
        if self._opened().plan.num_slots == self.manifest.moe.total_experts == self.tier.num_slots:
            self.tier.load_all(no_progress)
        return time.perf_counter() - started

    # ---- generating

    def params(self, **given: Any) -> SamplingParams:
        """Sampling options: `given`, else the checkpoint's generation_config, else the defaults.

        An encoder-decoder model answers greedily unless asked for more, as its checkpoints expect. Raises UsageError.
        """
        if self._sources is None:
            asked = self.tokenizer.generation_config
            self.notices += [note for note in not_done(asked, beams=False) if note not in self.notices]
            return resolve_params(given, generation_config=asked)
        unused = [
            name
            for name, value in given.items()
            if value is not None and name not in ("num_predict", "stop") and (name, value) != ("temperature", 0)
        ]
        if self._sources.num_beams > 1 and unused:
            raise UsageError(f"{unused[0]}: a beam search draws nothing; leave it out, or give --num-beams 1")
        return resolve_params(given, generation_config={"do_sample": False} | dict(self._sources.asked))

    @property
    def encoder_decoder(self) -> bool:
        """Whether every prompt is a source of its own, which the model answers instead of going on with it."""
        return self._sources is not None

    def generate(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """The whole answer at once; arguments as for `stream`."""
        for _ in self.stream(prompt, params, **options):
            pass
        assert self.last is not None
        return self.last

    def stream(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        think: bool | str | None = None,
        variables: Mapping[str, Any] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_prefill: Progress = lambda done, total: None,
        on_thought: Callable[[str], None] = lambda piece: None,
    ) -> Iterator[str]:
        """Yields the answer piece by piece as it is made; afterwards `last` holds the Completion.

        prompt: text, or messages with role and content. raw: text is continued as it is, without the chat template.
        think: True, False, "low", "medium" or "high"; None leaves it to the template. variables: others that it reads.
        on_thought gets what a model thinks before it answers, piece by piece.
        should_stop is asked between layers and ends the answer within a token. A prompt that begins as the one
        before reuses its keys and values.
        Raises ContextLengthError before anything is computed, UsageError for what the template would ignore,
        ExpertReadError when a disk fails in the middle.
        """
        given = self.template_variables(think, variables or {}, raw=raw)
        ids = self.encode(prompt, raw=raw, variables=given)  # here, so that errors come with the call
        params = params or self.params()
        text = self._answer_text(ids, params.stop, chat=self.tokenizer.has_template and not raw)
        return self._answer(ids, params, text, should_stop, on_prefill, on_thought)

    def template_variables(
        self, think: bool | str | None, given: Mapping[str, Any], *, raw: bool = False
    ) -> dict[str, Any]:
        """What the chat template is told (see `stream`). Raises UsageError."""
        if think is None and not given:
            return {}
        facts = None if raw or self._sources is not None else self.tokenizer.template
        return template_variables(facts, None if think is None else str(think).lower(), given)

    def _answer(
        self,
        ids: list[int],
        params: SamplingParams,
        text: AnswerText,
        should_stop: Callable[[], bool],
        on_prefill: Progress,
        on_thought: Callable[[str], None],
    ) -> Iterator[str]:
        sampler = Sampler(params, num_ids=self._num_ids())
        limit, cut_by = self._limit(ids, params)
        answer = Completion("", text.token_ids, "interrupted", GenerationStats(seed=sampler.seed))
        with closing(self._tokens(ids, sampler, limit, answer.stats, should_stop, on_prefill)) as tokens:
            for piece in text.pieces(tokens):
                self.last = answer
                if piece.thought:
                    answer.thinking += piece.text
                    on_thought(piece.text)
                else:
                    answer.text += piece.text
                    yield piece.text
        if text.ended:
            answer.finish_reason = "stop"
        elif len(answer.token_ids) >= limit:
            answer.finish_reason, answer.cut_by = "length", cut_by
        self.last = answer

    def _limit(self, ids: list[int], params: SamplingParams) -> tuple[int, CutBy]:
        """The most tokens that the answer may have, and what sets that limit."""
        longest, start = params.num_predict, ids
        cut_by: CutBy = "num_predict"
        if self._sources is not None:
            start = self._sources.start
            if longest < 0:
                longest, cut_by = self._sources.max_tokens(), "max_length"
        room = self.plan.context - len(start) + 1
        return (longest, cut_by) if 0 <= longest <= room else (room, "context")

    def replay(self, prompt: Sequence[int], continuation: Sequence[int]) -> GenerationStats:
        """Feeds `continuation` token by token behind `prompt` instead of drawing: real text for a benchmark.

        Starts from an empty KV cache; the expert cache stays as it is. Raises UsageError for ids that are no tokens of
        the model and for no prompt, ContextLengthError for too many.
        """
        if len(prompt) == 0:
            raise UsageError("replay: the prompt is empty; give at least one token id")
        prompt, continuation = self._checked_ids("prompt", prompt), self._checked_ids("continuation", continuation)
        start = self._sources.start if self._sources else prompt  # of what the continuation follows in the cache
        if max(len(prompt), len(start) + len(continuation)) > self.plan.context:
            raise ContextLengthError(
                f"{len(prompt)} + {len(continuation)} tokens do not fit the context of "
                f"{self.plan.context}; raise --num-ctx or ask for fewer"
            )
        self._sequence.forget()
        stats = GenerationStats()
        self._opened()
        for _ in self._tokens(prompt, Forced(continuation), len(continuation) + 1, stats):
            pass
        return stats

    def _checked_ids(self, name: str, ids: Sequence[int]) -> list[int]:
        """The ids as plain numbers. Raises UsageError for one that has no row; a negative index would find one."""
        count = self.manifest.info.vocab_size
        for place, token in enumerate(ids):
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not (whole and 0 <= token < count):
                raise UsageError(
                    f"replay: {name}[{place}] is {token!r}; token ids of {self.name} are whole numbers "
                    f"from 0 to {count - 1}"
                )
        return [int(token) for token in ids]

    def encode(
        self, prompt: str | Sequence[Message], *, raw: bool = False, variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The prompt's token ids; variables: for the chat template.

        Raises ContextLengthError, TextError, StoreError for a closed model.
        """
        self._opened()
        if self._sources is not None:
            ids = self._sources.encode(prompt if isinstance(prompt, str) else str(prompt[-1]["content"]))
        elif isinstance(prompt, str) and (raw or not self.tokenizer.has_template):
            ids = self.tokenizer.encode(prompt, control_tokens=raw)
        elif not self.tokenizer.has_template:
            ids = self.tokenizer.encode("\n".join(str(m["content"]) for m in prompt if not isinstance(m, str)))
        else:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text, notes = self.tokenizer.render(messages, variables)
            self.notices += [note for note in notes if note not in self.notices]
            ids = self.tokenizer.encode_chat(text)
        if not ids:
            raise ContextLengthError("the prompt is empty: give at least one word")
        if len(ids) >= self.plan.context:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, the context {self.plan.context}: shorten it{self.longer_context()}"
            )
        return ids

    def _tokens(
        self,
        prompt: list[int],
        sampler: Chooser,
        limit: int,
        stats: GenerationStats,
        should_stop: Callable[[], bool] = lambda: False,
        on_prefill: Progress = lambda done, total: None,
    ) -> Generator[int, None, None]:
        """The generation loop, with the observers told of its phases and `stats` filled when it ends, however."""
        run = self._opened()
        started, timing, meter = time.perf_counter(), Timing(), Meter(self.tier, self._profiler)
        stats.load_s, self._load_s = self._load_s, 0.0
        stats.prompt_tokens = len(prompt)

        def on_phase(phase: Phase) -> None:
            for observer in run.observers:
                observer.begin(phase)
            meter.begin(phase)

        self._disk_wait.should_stop = should_stop
        try:
            for token in self._answer_to(
                run,
                prompt,
                sampler,
                max_tokens=limit,
                timing=timing,
                should_stop=should_stop,
                on_phase=on_phase,
                on_prefill=on_prefill,
            ):
                stats.generated_tokens += 1
                self._profiler.lap("other")
                yield token
                self._profiler.restart()  # the caller's time is no part of a token's
        except NotFiniteError:
            self._sequence.forget()  # the next prompt must not build on keys and values that are no numbers
            raise
        finally:
            self._disk_wait.should_stop = never
            self.tier.end_request()
            self._recorder.finish()
            meter.end(stats)
            stats.cached_tokens, stats.token_s = timing.cached_tokens, timing.token_s
            stats.prompt_s = timing.encode_s + timing.prefill_s
            stats.total_s = stats.load_s + time.perf_counter() - started
            stats.peak_rss_bytes = peak_rss_bytes()
            stats.peak_vram_bytes = run.peak_device_bytes()

    def _answer_to(self, run: Run, prompt: list[int], sampler: Chooser, **how: Any) -> Iterator[int]:
        if self._sources is None:
            return generate(run, self._sequence, prompt, sampler, chunk=self.plan.prefill_chunk, **how)
        search = self._sources.search() if isinstance(sampler, Sampler) else None
        return answer_source(
            run, self._sequence, prompt, self._sources.start, sampler, search, num_ids=self._num_ids(), **how
        )

    def _num_ids(self) -> int:
        """Of the tokens that may be answered: not the padding rows of the model."""
        return min(self.tokenizer.num_ids, self.manifest.info.vocab_size)

    def _answer_text(self, ids: list[int], stops: Sequence[str], *, chat: bool) -> AnswerText:
        sources = self._sources
        stream = (
            self.tokenizer.stream(ids, chat=chat)
            if sources is None
            else self.tokenizer.stream(skip_special=not sources.control_tokens)
        )
        return AnswerText(stream, self.tokenizer.eos_ids, stops)

    # ---- the rest

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        most = self.manifest.info.context_length
        if self.plan.context < most:
            return f", or raise --num-ctx (the model allows {most})"
        return f"; this model has no longer context than {most} tokens"

    @property
    def reader(self) -> Reader:
        """What reads the experts; for its counters. Raises StoreError once the model is closed."""
        return self._opened().reader

    def _opened(self) -> Run:
        if self._run is None:
            raise StoreError(f"model {self.name} is closed; load it again")
        return self._run

    def describe(self) -> str:
        """One line: what was loaded, and where its memory went."""
        info = self.manifest.info
        return (
            f"{self.name} · {count_text(info.num_params)} ({count_text(info.active_params)} active) "
            f"{formats_text(self.manifest)} · {self._opened().describe(self.manifest.moe.total_experts)} · "
            f"context {self.plan.context}"
        )

    def save_activations(self) -> None:
        """Writes the activation collection beside the model; where the store cannot be written, notes that once."""
        path = self._stored.path / "eamc.npz"
        if not os.access(path.parent, os.W_OK):
            return  # said when the model was opened
        try:
            publish(path, self._collection.dumps())
        except OSError as error:
            self.notices.append(f"the activation collection was not kept: {path}: {error.strerror}")

    def close(self) -> None:
        """Ends the reader and the tokenizer's process; a second call does nothing. A disk that hangs is left alone."""
        if self._run is not None:
            del self._sequence  # keys and values
            reads_have_ended = self._run.close()
            self._run = None
            if reads_have_ended:
                self.save_activations()
            else:
                self.notices.append("the disk does not answer: what this run learned about routing is not kept")
        self.tokenizer.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
