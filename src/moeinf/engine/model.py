"""A stored model, opened: what its users hold."""

from __future__ import annotations

import sys
import time
import warnings
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from moeinf.config import RuntimeConfig
from moeinf.engine.activation_file import ActivationFile
from moeinf.engine.answers.generator import Attendants, Generator
from moeinf.engine.answers.model_kind import DecoderOnly, EncoderDecoder, ModelKind, refuse_prefixes, refuse_translation
from moeinf.engine.build_context import BuildContext, Host, Observation, open_kernels
from moeinf.engine.completion import NO_HOOKS, Completion, GenerationStats, Hooks
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.disk_wait import DiskWait
from moeinf.engine.memory.footprint import kept_format, unequal_bytes
from moeinf.engine.memory.plan import DevicePlan, shortenings
from moeinf.engine.opening import put_together
from moeinf.engine.reporting import Reporting, no_progress
from moeinf.engine.runner import ModelRunner
from moeinf.engine.stored.hit_record import record_hits
from moeinf.engine.stored.tuned_file import chosen_policy
from moeinf.engine.stored_weights import Weights, read_weights
from moeinf.engine.vision.encoder import open_vision
from moeinf.errors import StoreError, UsageError
from moeinf.hardware import Machine, machine
from moeinf.models.layers.decoder import Decoder
from moeinf.prefixes.opening import Kept, open_prefixes
from moeinf.prefixes.store import PrefixStore
from moeinf.runtime.activity import Activity
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eviction import DEFAULT
from moeinf.runtime.policy.predictors import DEFAULT as DEFAULT_PREDICTOR
from moeinf.runtime.policy.predictors import NO_PREDICTOR
from moeinf.runtime.policy.protocol import Listener
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.runtime.turns import Turns
from moeinf.runtime.warm_start import WarmStart
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.params import SamplingParams
from moeinf.store.formats import formats_text
from moeinf.store.library import StoredModel
from moeinf.store.verify import check_files
from moeinf.text.quantities import count_text
from moeinf.text.stream import Piece
from moeinf.text.thinking import template_variables
from moeinf.text.tokenizer import Tokenizer
from moeinf.traces.folder import TraceFacts
from moeinf.traces.recorder import open_recorder
from moeinf.traces.replayed import RecordedRouting
from moeinf.types import Message, Profiler, Tool

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.gpu.open_gpu import OpenGpu


class Model:
    """A stored model, ready to generate, one request at a time. Close it, or use `with`.

    A request raises UsageError while one of another thread computes or is read. An answer that the same thread has
    read in part ends where its next request begins. `close` may come from any thread: what computes ends within a
    layer, and raises StoreError where it is read. Other threads may look on: at `activity` (None but for a server),
    `bytes_read`, `plan`, `stats`, `tier.states`. In a forked process every request raises UsageError.
    """

    def __init__(
        self,
        stored: StoredModel,
        config: RuntimeConfig,
        reporting: Reporting | None = None,
        *,
        on: Machine | None = None,
        gpu: OpenGpu | None = None,
        preload: bool = True,
        recorded: RecordedRouting | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads the dense weights; experts come when they are needed.

        preload: where every expert fits, read all of them now.
        on, gpu: instead of the machine at hand, and of the device that the configuration names.
        defaults: sampling options that count more than the checkpoint's, and less than those of a request.
        recorded: a trace's routing in place of the routers' choice, for benchmarks on the CPU; nothing is kept of it.
        Raises OutOfMemoryError before anything is read, StoreError for a damaged store, DeviceError for a GPU that was
        asked for and cannot be used.
        """
        started = time.perf_counter()
        reporting = (reporting or Reporting()).once()
        self._stored, self.name, self.manifest, self.config = stored, stored.name, stored.manifest, config
        self._generator: Generator | None = None
        self._defaults = dict(defaults or {})
        self._learns = recorded is None
        self._notify = reporting.notify
        look: Callable[[], Machine] = machine if on is None else (lambda: on)
        here = look()
        check_files(stored)
        weights = read_weights(stored, config, self._notify)
        self.num_threads = config.threads or here.cores
        self.kernels = open_kernels(self.num_threads, config.isa)
        self.activity = Activity(stored.manifest.moe) if config.many_conversations else None
        asked = config.policy or (DEFAULT if recorded is not None else "")  # a trace's routing is not the model's
        self.policy, tuned = chosen_policy(stored, asked, self._notify)
        self.predictor = (config.predictor or DEFAULT_PREDICTOR) if config.prefetch else NO_PREDICTOR
        self._activations = ActivationFile(stored, self._notify, learns=self._learns)
        collection, disk_wait = self._activations.collection, DiskWait(reporting.on_slow_disk)
        form, moe = weights.family.encoder_input, stored.manifest.moe
        if weights.family.repeats and (config.trace or recorded is not None):
            raise UsageError(
                f"layers of {stored.name}, or their experts, run several times for a token, for which a trace has no "
                f"place; leave out {'--trace' if config.trace else '--routing'}"
            )
        facts = TraceFacts(stored.name, moe, stored.id, expert_bytes=unequal_bytes(stored.manifest))
        trace = open_recorder(config, facts, self._notify, 0 if form is None else form.encoder_layers)
        attendants = Attendants(RequestRecorder(moe, self._activations.add), Profiler(), disk_wait, self._notify, trace)
        with ExitStack() as opened:
            self.tokenizer = Tokenizer(stored.path, where=stored.name, num_embeddings=stored.manifest.info.vocab_size)
            opened.callback(self.tokenizer.close)
            kind = self._kind(weights)
            context = BuildContext(
                weights,
                Host(here, config, self.kernels, preload),
                Observation(collection, attendants.profiler, self._observers(attendants)),
                reporting,
                disk_wait,
                kind.num_beams,
                kind.encoder_layers,
                recorded,
                tuned,
                self.predictor,
                lambda: disk_wait.should_stop(),
            )
            runner = put_together(context, gpu, look)
            opened.callback(runner.close)
            self.plan, self.tier = runner.plan, runner.tier
            for notice in shortenings(runner.plan, context.footprint, config):
                self._notify(notice)
            load_s = time.perf_counter() - started
            prefixes = self._prefixes(stored, runner)
            vision = open_vision(weights, config, self.kernels, disk_wait)
            info, turns = stored.manifest.info, Turns(stored.name)
            self._generator = Generator(
                runner, kind, self.tokenizer, info, attendants, turns, load_s, prefixes, vision, self.kernels.isa
            )
            opened.pop_all()

    def _observers(self, attendants: Attendants) -> list[Listener]:
        """A server's models are watched, too: by its page."""
        watching: tuple[Listener | None, ...] = (attendants.recorder, self.activity, attendants.trace)
        return [each for each in watching if each is not None]

    def _kind(self, weights: Weights) -> ModelKind:
        """Raises UsageError for an option that this model has no use for."""
        form = weights.family.encoder_input
        if form is not None:
            refuse_prefixes(self.config, self.name)
            return EncoderDecoder(form, self.tokenizer, self.config, weights.config_json, self._notify)
        refuse_translation(self.config, self.name)
        return DecoderOnly(self.tokenizer, self._notify)

    def _prefixes(self, stored: StoredModel, runner: ModelRunner) -> PrefixStore | None:
        """What is kept of earlier prompts, as the plan has room for it."""
        if not isinstance(runner.network, Decoder):
            return None
        room = runner.network.room_that_rotates(runner.cache.capacity)
        kept = Kept(stored.id, kept_format(stored.manifest.info, self.config), runner.arithmetic, room)
        memory_bytes, home, tokenizer = runner.plan.prefix_bytes, stored.path.parent.parent, self.tokenizer
        store = open_prefixes(
            runner.cache, kept, self.config, memory_bytes, home, lambda: tokenizer.special_ids, self._notify
        )
        if store is not None and isinstance(runner, CpuRunner):
            runner.spare_first(store.spare)
        return store

    @property
    def generator(self) -> Generator:
        """What answers. Raises StoreError once the model is closed."""
        if self._generator is None:
            raise StoreError(f"model {self.name} is closed; load it again")
        return self._generator

    @property
    def runner(self) -> ModelRunner:
        """The network on its device, with its experts. Raises StoreError once the model is closed."""
        return self.generator.runner

    def bytes_read(self) -> int:
        """Bytes of experts that all ranks have read so far. Raises StoreError once the model is closed."""
        return self.runner.reader.bytes_read()

    @property
    def stats(self) -> CacheStats:
        """What the caches of all ranks have counted so far. Raises StoreError once the model is closed."""
        return self.runner.stats

    @property
    def last(self) -> Completion | None:
        """The last answer, as far as it has come. Raises StoreError once the model is closed."""
        return self.generator.last

    @property
    def encoder_decoder(self) -> bool:
        """Whether the model answers each text on its own instead of going on with it."""
        return isinstance(self.generator.kind, EncoderDecoder)

    def load_all(self) -> float:
        """Reads the experts that are not resident yet, where all of them fit; returns the seconds that it took."""
        started = time.perf_counter()
        with self.generator.turns.alone():
            if self.runner.plan.num_slots == self.manifest.moe.total_experts == self.tier.num_slots:
                self.tier.load_all(no_progress)
        return time.perf_counter() - started

    def warm_up(self) -> None:
        """Begins to read the experts that earlier runs used most, and ends with the first request.

        For whoever opens a model before anybody asks it something. Does nothing on a GPU, without prefetch, and where
        nothing is known or every expert is there.
        """
        generator = self.generator
        wanted = self.config.prefetch and len(self._activations.collection) and not self.tier.all_resident
        if wanted and generator.warm_start is None and isinstance(generator.runner, CpuRunner):
            with generator.turns.alone():
                generator.warm_start = WarmStart(self.tier, self._activations.collection, self._notify)

    def params(self, **given: Any) -> SamplingParams:
        """Sampling options: `given`, else the model's own, else the checkpoint's generation_config, else the defaults.

        An encoder-decoder model answers greedily unless asked for more, as its checkpoints expect. Raises UsageError.
        """
        said = {name: value for name, value in given.items() if value is not None}
        return self.generator.kind.params({**self._defaults, **said})

    def generate(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """The whole answer at once; arguments as for `stream`."""
        for _ in self.stream(prompt, params, **options):
            pass
        assert self.last is not None
        return self.last

    def stream(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Iterator[str]:
        """Yields the text of the answer as it is made; arguments as for `pieces`, afterwards `last` holds the rest."""
        return _texts(self.pieces(prompt, params, **options))

    def pieces(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        think: bool | str | None = None,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] | None = None,
        format: AnswerFormat | None = None,
        continues: bool = False,
        hooks: Hooks = NO_HOOKS,
    ) -> abc.Generator[Piece, None, None]:
        """Yields the answer as it is made, piece by piece: text, thoughts, calls; then `last` holds the Completion.

        prompt: text, or messages with role and content, and calls and results of tools in OpenAI's form. A content is
        text, or a list of {"type": "text", "text": ...} and {"type": "image", "image": bytes of a PNG or JPEG}. raw:
        text is continued as it is, without the chat template.
        think: True, False, "low", "medium" or "high"; None leaves it to the template. variables: others that it reads.
        tools: those that the model may call. format: "json" for an object, the JSON schema of the answer, or "call" for
        calls of tools, which may also stand instead of JSON. Thoughts before it are free; num_predict or a full context
        may cut it. continues: the last message is the beginning of the answer, which goes on behind it; without a
        format. hooks: what is asked and told while the answer is made.
        A prompt that begins as the one before reuses its keys and values.
        Raises ContextLengthError before anything is computed, UsageError for what the template would ignore and for a
        schema that is not supported, ExpertReadError when a disk fails in the middle.
        """
        told = self.template_variables(think, variables or {}, tools=tools or (), raw=raw)
        params = params or self.params()
        pieces = self.generator.pieces(
            prompt, params, raw=raw, variables=told, tools=tools or (), format=format, continues=continues, hooks=hooks
        )
        return _holding(self, pieces)

    def template_variables(
        self, think: bool | str | None, given: Mapping[str, Any], *, tools: Sequence[Tool] = (), raw: bool = False
    ) -> dict[str, Any]:
        """What the chat template is told (see `pieces`). Raises UsageError."""
        if think is None and not given and not tools:
            return {}
        facts = None if raw else self.generator.kind.template
        if tools and not (facts and facts.tools):
            raise UsageError(f"{'a raw prompt' if raw else self.name} does not support tools; leave them out")
        told = template_variables(facts, None if think is None else str(think).lower(), given)
        return told | ({"tools": list(tools)} if tools else {})

    def encode(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool = False,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """The prompt's token ids; variables: for the chat template. continues: as for `pieces`.

        Raises ContextLengthError, TextError, StoreError for a closed model.
        """
        return self.generator.encode(prompt, raw=raw, variables=variables, continues=continues)

    def replay(self, prompt: Sequence[int], continuation: Sequence[int]) -> GenerationStats:
        """Feeds `continuation` token by token behind `prompt` instead of drawing: real text for a benchmark.

        Starts from an empty KV cache; the expert cache stays as it is. Raises UsageError for ids that are no tokens of
        the model and for no prompt, ContextLengthError for too many.
        """
        return self.generator.replay(prompt, continuation)

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        return self.generator.longer_context()

    def describe(self) -> str:
        """One line: what was loaded, and where its memory went."""
        info = self.manifest.info
        return (
            f"{self.name} · {count_text(info.num_params)} ({count_text(info.active_params)} active) "
            f"{formats_text(self.manifest)} · {self.runner.describe(self.manifest.moe.total_experts)} · "
            f"context {self.plan.context}"
        )

    def close(self) -> None:
        """Ends the reader and the tokenizer's process; a second call does nothing. A disk that hangs is left alone.

        Waits for what computes in another thread, which ends within a layer. Each part is closed, whatever another
        raises. Raises UsageError where a hook of a request calls it.
        """
        generator = self._generator
        if generator is not None and not generator.turns.forked:
            generator.turns.close()
        self._generator = None
        with ExitStack() as parts:
            parts.callback(self.tokenizer.close)
            if generator is None or generator.turns.forked:  # the reader is that of the other process
                return
            if not generator.close():
                self._notify("the disk does not answer: what this run learned about routing is not kept")
            elif self._learns:
                self._activations.save()
                self._record_hits(generator.decoded)

    def __del__(self) -> None:
        """Nothing holds what a forgotten model had: its threads end with it, and its tokenizer's process here."""
        if getattr(self, "_generator", None) is not None and not sys.is_finalizing():
            warnings.warn(f"model {self.name} was not closed", ResourceWarning, stacklevel=2)
            self.tokenizer.close()

    def _record_hits(self, decoded: CacheStats) -> None:
        """Keeps them for forecasts, of an expert cache in host memory that does not hold everything."""
        if self.config.workers:
            return  # it holds a part of them, and is asked for that part alone
        if not isinstance(self.plan, DevicePlan) and self.plan.num_slots < self.manifest.moe.total_experts:
            record_hits(self._stored, round(self.plan.held_experts), decoded)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holding(model: Model, pieces: abc.Generator[Piece, None, None]) -> abc.Generator[Piece, None, None]:
    """The answer, with which a model that nobody holds otherwise stays open to its end."""
    yield from pieces
    del model


def _texts(pieces: abc.Generator[Piece, None, None]) -> Iterator[str]:
    with closing(pieces):
        for piece in pieces:
            if piece.text and not piece.thought:
                yield piece.text
