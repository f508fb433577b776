"""Opens a stored model: makes the parts that a Model holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.activation_file import ActivationFile
from moeinf.engine.answers.decoder_only import DecoderOnly, refuse_translation
from moeinf.engine.answers.drafting import Drafting, DraftSource, lookup
from moeinf.engine.answers.generator import Generator
from moeinf.engine.answers.model_draft import common_tokens, drafts_by
from moeinf.engine.answers.model_kind import ModelKind
from moeinf.engine.answers.mtp_draft import drafts_by_layer
from moeinf.engine.answers.prompts import Prompts
from moeinf.engine.answers.request_monitor import Listeners
from moeinf.engine.answers.sequences import Sequences
from moeinf.engine.answers.with_encoder import EncoderDecoder, refuse_prefixes
from moeinf.engine.approximate.approximation import approximate, key_of
from moeinf.engine.approximate.refusals import refuse_approximation
from moeinf.engine.build_context import BuildContext, Deciders, Host, Observation, open_kernels
from moeinf.engine.devices import runner_on_a_device
from moeinf.engine.disk_wait import DiskWait
from moeinf.engine.memory.footprint import kept_format, unequal_bytes
from moeinf.engine.memory.plan_notes import shortenings
from moeinf.engine.memory.side_by_side import RECURRENT_GUESSES, sessions, that_fit
from moeinf.engine.reporting import Notify, Reporting
from moeinf.engine.runner import ModelRunner
from moeinf.engine.stored.draft_beside import draft_of, left_by
from moeinf.engine.stored.hit_record import record_hits
from moeinf.engine.stored.tuned_file import chosen_policy
from moeinf.engine.stored_weights import Weights, read_weights
from moeinf.engine.vision.encoder import open_vision
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.gpu.cuda import find_cuda
from moeinf.hardware import Machine, machine
from moeinf.models.layers.decoder import Decoder
from moeinf.models.mtp import MODEL_TYPE, MtpDecoder
from moeinf.prefixes.prefix_opening import Kept, open_prefixes
from moeinf.prefixes.store import PrefixStore, beside
from moeinf.runtime.activity import Activity
from moeinf.runtime.decode_routing import DecodeRouting
from moeinf.runtime.policy.eviction import DEFAULT
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import DEFAULT as DEFAULT_PREDICTOR
from moeinf.runtime.policy.predictors import NO_PREDICTOR
from moeinf.runtime.turns import Turns
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.room import Room
from moeinf.store.library import StoredModel
from moeinf.store.naming.names import MTP
from moeinf.store.verify import check_files
from moeinf.text.quantities import binary_size_text
from moeinf.text.tokenizer import Tokenizer
from moeinf.traces.folder import TraceFacts
from moeinf.traces.recorder import TraceRecorder, open_recorder
from moeinf.traces.replayed import RecordedRouting
from moeinf.types import JsonMapping, Profiler

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.gpu.open_gpu import OpenGpu


class OpenOptions(TypedDict, total=False):
    """What open_model may be told by name."""

    on: Machine | None
    gpu: OpenGpu | None
    preload: bool
    recorded: RecordedRouting | None
    defaults: JsonMapping | None


@dataclass(frozen=True, slots=True)
class ModelParts:
    """An open model in parts, of which the generator knows those that answer."""

    stored: StoredModel
    generator: Generator
    tokenizer: Tokenizer
    kernels: Kernels
    activity: Activity | None  # for whoever watches from another thread
    deciders: Deciders
    activations: ActivationFile
    notify: Notify
    defaults: JsonMapping
    learns: bool  # whether what a run learns of its routing is kept
    draft: ModelParts | None = None  # a small model that guesses

    @property
    def planned_bytes(self) -> int:
        """Of host memory on a CPU, that it may take, with its draft model."""
        plan = self.generator.runner.plan
        return plan.total_bytes + plan.program_bytes + self.draft_bytes

    @property
    def draft_bytes(self) -> int:
        """What the draft model may take of them."""
        return 0 if self.draft is None else self.draft.planned_bytes

    def close(self) -> None:
        """Ends what a small model that guesses has: nothing of it is kept."""
        self.tokenizer.close()
        self.generator.close()

    def keep(self) -> None:
        """Keeps what this run has learned of its routing, once all reads have ended."""
        if self.learns:
            runner = self.generator.runner
            self.activations.save()
            if runner.knows_hits:
                record_hits(self.stored, round(runner.plan.held_experts), self.generator.decoded)


def open_model(
    stored: StoredModel,
    config: RuntimeConfig,
    reporting: Reporting | None = None,
    *,
    on: Machine | None = None,
    gpu: OpenGpu | None = None,
    preload: bool = True,
    recorded: RecordedRouting | None = None,
    defaults: JsonMapping | None = None,
    kernels: Kernels | None = None,
) -> ModelParts:
    """Reads the dense weights; experts come when they are needed.

    preload: where every expert fits, read all of them now.
    on, gpu: instead of the machine at hand, and of the device that the configuration names.
    defaults: sampling options that count more than the checkpoint's, and less than those of a request.
    recorded: a trace's routing in place of the routers' choice, for benchmarks on the CPU; nothing is kept of it.
    kernels: of the model that this one guesses for: the two never compute at once.
    Raises OutOfMemoryError before anything is read, StoreError for a damaged store, DeviceError for a GPU that was
    asked for and cannot be used.
    """
    started, replayed = time.perf_counter(), recorded is not None
    reporting = (reporting or Reporting()).once()
    look: Callable[[], Machine] = machine if on is None else (lambda: on)
    here = look()
    check_files(stored)
    weights = read_weights(stored, config, reporting.notify)
    approximates = config.experts.approx is not None
    asked_for, on_gpu = config.parallel, (config.parallel != 1 or approximates) and _goes_to_gpu(config, gpu)
    refuse_approximation(weights, config, on_gpu=on_gpu, replayed=replayed)
    config = _with_sessions(weights, config, here, on_gpu)
    if kernels is None:
        _refuse_layer(weights)
    kernels = kernels or open_kernels(config.compute.threads or here.cores, config.compute.isa)
    with ExitStack() as opened:
        draft = _open_draft(weights, config, here, kernels) if config.speculation.draft else None
        if draft is not None:
            opened.callback(draft.close)
            here, config = left_by(draft.planned_bytes, here, config)
            look = _told(here)
        host = Host(here, config, kernels, preload)
        activity = Activity(stored.manifest.moe) if config.many_conversations else None
        deciders = _deciders(stored, config, reporting.notify, replayed=replayed)
        learns = not replayed and not approximates  # of what the routers choose
        activations = ActivationFile(stored, reporting.notify, learns=learns)
        listeners = _listeners(weights, config, reporting, activations, replayed=replayed)
        wait, watch = listeners.disk_wait, _observation(listeners, activations, activity)
        tokenizer = Tokenizer(stored.path, where=stored.name, num_embeddings=stored.manifest.info.vocab_size)
        opened.callback(tokenizer.close)
        kind = _kind(weights, tokenizer, config, reporting.notify)
        beams, encoder = kind.num_beams, kind.encoder_layers
        context = BuildContext(weights, host, watch, reporting, wait, beams, encoder, recorded, deciders, wait.asked)
        if config.parallel > 1 and not on_gpu:
            context = _within_memory(context, asked_for)
        runner = runner_on_a_device(context, gpu, look)
        opened.callback(runner.close)
        for notice in shortenings(runner.plan, context.footprint, config):
            reporting.notify(notice)
        if runner.approx is not None:
            approximate(context, runner, runner.approx, tokenizer)
        load_s = time.perf_counter() - started
        generator = _generator(context, runner, kind, tokenizer, listeners, load_s, draft)
        opened.pop_all()
    notify, asked = reporting.notify, dict(defaults or {})
    return ModelParts(
        stored, generator, tokenizer, host.kernels, activity, deciders, activations, notify, asked, learns, draft
    )


def _refuse_layer(weights: Weights) -> None:
    """Raises UsageError for what is no model by itself."""
    if weights.family.name == MODEL_TYPE:
        raise UsageError(
            f"{weights.stored.name} is a layer that guesses tokens for another model, which uses it with --draft mtp"
        )


def _goes_to_gpu(config: RuntimeConfig, gpu: OpenGpu | None) -> bool:
    where, devices = config.compute.where, config.compute.devices
    return gpu is not None or (where != "cpu" and find_cuda(devices[0], lambda line: None) is not None)


def _within_memory(context: BuildContext, asked_for: int) -> BuildContext:
    """As many answers side by side as memory has room for, of those that the configuration has.

    asked_for: how many were; where there are fewer, a line says so.
    """
    host = context.host
    one = replace(context, host=replace(host, config=replace(host.config, parallel=1)))
    count = that_fit(one.footprint, host.config, host.machine)
    if count < asked_for:
        context.reporting.notify(
            f"memory is short: {count} of {asked_for} answers are made side by side, and others wait; free memory, "
            "raise --ram where it was given, or lower --num-ctx"
        )
    return replace(context, host=replace(host, config=replace(host.config, parallel=count)))


def _with_sessions(weights: Weights, config: RuntimeConfig, here: Machine, on_gpu: bool) -> RuntimeConfig:
    """The configuration with the number of answers that are made side by side. Raises UsageError."""
    name, info = weights.stored.name, weights.manifest.info
    if weights.family.encoder_input is not None:
        if config.parallel > 1:
            raise UsageError(f"--parallel: {name} is an encoder-decoder model, which makes one answer at a time")
        return replace(config, parallel=1)
    return replace(config, parallel=sessions(config, info, weights.stored.size_bytes, here, on_gpu=on_gpu))


def _deciders(stored: StoredModel, config: RuntimeConfig, notify: Notify, *, replayed: bool) -> Deciders:
    """replayed: the routing is a trace's, of which what was trained for the model tells nothing."""
    predictor = (config.experts.predictor or DEFAULT_PREDICTOR) if config.experts.prefetch else NO_PREDICTOR
    return Deciders(*chosen_policy(stored, config.experts.policy or (DEFAULT if replayed else ""), notify), predictor)


def _listeners(
    weights: Weights, config: RuntimeConfig, reporting: Reporting, activations: ActivationFile, *, replayed: bool
) -> Listeners:
    """Raises UsageError for a trace that cannot be recorded, or replayed."""
    if weights.family.repeats and (config.recording.trace or replayed):
        raise UsageError(
            f"layers of {weights.stored.name}, or their experts, run several times for a token, for which a trace has "
            f"no place; leave out {'--trace' if config.recording.trace else '--routing'}"
        )
    recorder = RequestRecorder(weights.manifest.moe, activations.add)
    trace = _trace(weights, config, reporting.notify)
    routing = None if config.compute.workers else DecodeRouting(weights.manifest.moe)
    return Listeners(recorder, Profiler(), DiskWait(reporting.on_slow_disk), reporting.notify, trace, routing)


def _observation(listeners: Listeners, activations: ActivationFile, activity: Activity | None) -> Observation:
    """A server's models are watched, too: by its page."""
    watching: tuple[Listener | None, ...] = (listeners.recorder, activity, listeners.trace, listeners.routing)
    observers = [each for each in watching if each is not None]
    return Observation(activations.collection, listeners.profiler, observers)


def _trace(weights: Weights, config: RuntimeConfig, notify: Notify) -> TraceRecorder | None:
    stored, manifest, form = weights.stored, weights.manifest, weights.family.encoder_input
    facts = TraceFacts(stored.name, manifest.moe, stored.id, expert_bytes=unequal_bytes(manifest))
    return open_recorder(config, facts, notify, 0 if form is None else form.encoder_layers)


def _kind(weights: Weights, tokenizer: Tokenizer, config: RuntimeConfig, notify: Notify) -> ModelKind:
    """Raises UsageError for an option that this model has no use for."""
    form, name = weights.family.encoder_input, weights.stored.name
    if form is not None:
        refuse_prefixes(config, name)
        return EncoderDecoder(form, tokenizer, config, weights.config_json, notify)
    refuse_translation(config, name)
    return DecoderOnly(tokenizer, notify, json_calls=config.calls.json_calls)


def _generator(
    context: BuildContext,
    runner: ModelRunner,
    kind: ModelKind,
    tokenizer: Tokenizer,
    listeners: Listeners,
    load_s: float,
    draft: ModelParts | None,
) -> Generator:
    weights, host = context.weights, context.host
    network, prefixes, whole_pictures = runner.network, None, False
    if isinstance(network, Decoder):
        prefixes = _prefixes(context, runner, network, tokenizer)
        whole_pictures = network.sees_whole_pictures
    vision = open_vision(weights, tokenizer, host.config, host.kernels, listeners.disk_wait)
    name, info = weights.stored.name, weights.manifest.info
    prompts = Prompts(name, kind, tokenizer, info, runner.plan.context, vision)
    caches = iter([runner.cache])

    def sequence() -> CachedTokens:
        cache = next(caches, None) or network.new_cache(runner.plan.context)
        own = None if prefixes is None else beside(prefixes, cache)
        return CachedTokens(cache, own, whole_pictures=whole_pictures, exact=host.config.in_bulk)

    sequences = Sequences(sequence, host.config.parallel, _room(context, runner, prefixes))
    turns = Turns(name, host.config.parallel)
    drafting = _drafting(context, runner, draft)
    isa = host.kernels.isa

    def kept_bytes() -> int:
        return 0 if prefixes is None else prefixes.memory.used_bytes

    return Generator(runner, kind, prompts, listeners, sequences, turns, load_s, isa, drafting, kept_bytes)


def _open_draft(weights: Weights, config: RuntimeConfig, here: Machine, kernels: Kernels) -> ModelParts:
    """What --draft names, all of it in memory. Raises UsageError where it cannot guess for the other one."""
    stored = weights.stored
    if weights.family.encoder_input is not None:
        raise UsageError(f"--draft: {stored.name} is an encoder-decoder model; leave it out")
    draft, own = draft_of(stored, config)
    if config.speculation.draft != MTP:
        common_tokens(draft, stored)
    parts = open_model(draft, own, on=here, kernels=kernels)
    plan = parts.generator.runner.plan
    if not isinstance(parts.generator.runner.network, Decoder) or plan.held_experts < draft.manifest.moe.total_experts:
        parts.close()
        raise OutOfMemoryError(
            f"--draft: not all of {draft.name} ({binary_size_text(draft.size_bytes)}) fits in memory, and one that is "
            "read from the disk guesses too slowly; free memory, name a smaller one, or leave --draft out"
        )
    return parts


def _told(here: Machine) -> Callable[[], Machine]:
    return lambda: here


def _room(context: BuildContext, runner: ModelRunner, prefixes: PrefixStore | None) -> Room | None:
    """The memory that sequences share. None where one has all, or each its own: on a GPU."""
    pages = runner.row_pages
    if pages is None:
        return None
    num_bytes = runner.plan.kv_bytes - context.footprint.info.state_bytes
    lend = None if prefixes is None else partial(prefixes.spare, lends=True)
    return Room(num_bytes, runner.cache.token_bytes, pages.used_bytes, lend)


def _drafting(context: BuildContext, runner: ModelRunner, draft: ModelParts | None) -> Drafting | None:
    """Raises UsageError where tokens are to be guessed at that cannot be."""
    config, name = context.host.config, context.weights.stored.name
    why = ""
    if context.weights.family.encoder_input is not None:
        why = f"{name} is an encoder-decoder model"
    elif not runner.cuts_prompts:
        why = "on a GPU a token computed beside others is rounded otherwise"
    elif config.experts.approx is not None:
        why = "--approx reads fewer experts for single tokens alone"
    elif config.recording.trace:
        why = "--trace records the tokens of answers alone"
    elif context.recorded is not None:
        why = "recorded routing has no place for tokens that were not answered"
    asked = "--speculate always" if draft is None else f"--draft {config.speculation.draft}"
    if why and (draft is not None or config.speculation.speculate == "always"):
        raise UsageError(f"{asked}: {why}; leave it out")
    if why or config.speculation.speculate == "off":
        return None
    most = config.speculation.draft_max if runner.cache.rewinds else RECURRENT_GUESSES
    sources: list[DraftSource] = [lookup]
    if draft is not None:
        assert isinstance(runner.network, Decoder)
        sources.append(_source_of(draft, runner.network, context.weights.stored))
    return Drafting(config.speculation, sources, most=most)


def _source_of(draft: ModelParts, network: Decoder, stored: StoredModel) -> DraftSource:
    """network: of the stored model that is guessed for."""
    small, room = draft.generator.runner.network, draft.generator.runner.plan.context
    if isinstance(small, MtpDecoder):
        small.lend(network)
        return drafts_by_layer(small, room)
    assert isinstance(small, Decoder)
    return drafts_by(small, room, common_tokens(draft.stored, stored))


def _prefixes(context: BuildContext, runner: ModelRunner, network: Decoder, tokenizer: Tokenizer) -> PrefixStore | None:
    """What is kept of earlier prompts, as the plan has room for it."""
    stored, config, notify = context.weights.stored, context.host.config, context.reporting.notify
    room = network.room_that_rotates(runner.cache.capacity)
    approx = "" if config.experts.approx is None else key_of(config)
    kept = Kept(stored.id, kept_format(stored.manifest.info, config), runner.arithmetic, room, approx)
    memory_bytes, home = runner.plan.prefix_bytes, stored.path.parent.parent
    store = open_prefixes(runner.cache, kept, config, memory_bytes, home, lambda: tokenizer.special_ids, notify)
    if store is not None:
        runner.spare_first(store.spare)
    return store
