"""What a model is put together from, on whichever device it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint, footprint_of
from moeinf.engine.memory.side_by_side import with_sessions
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored.outline import Outline
from moeinf.engine.stored_weights import Weights
from moeinf.engine.vision.tower_sizes import seeing_footprint
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import DEFAULT, TUNED, make_policy
from moeinf.runtime.policy.policy_protocol import DevicePolicy, Listener
from moeinf.runtime.policy.predictors import DEFAULT as DEFAULT_PREDICTOR
from moeinf.runtime.policy.predictors import make_predictor
from moeinf.runtime.policy.tuned import TunedNetwork
from moeinf.runtime.prefetch import MEASURED, Link, Prefetcher
from moeinf.store.manifest import Manifest
from moeinf.traces.replayed import RecordedRouting
from moeinf.types import MoeShape, Profiler


@dataclass(frozen=True, slots=True)
class Host:
    """The machine, and how the user wants the model to be run on it."""

    machine: Machine
    config: RuntimeConfig
    kernels: Kernels  # of the CPU
    preload: bool = True  # read every expert where all fit; else the first request finds an empty cache


def open_kernels(num_threads: int, isa: str) -> Kernels:
    """Opens the kernels. Raises UsageError for an instruction set that is unknown or that this CPU lacks."""
    try:
        return Kernels(num_threads, isa)
    except ValueError as error:
        raise UsageError(f"MOEINF_ISA: {error}") from error


@dataclass(frozen=True, slots=True)
class Observation:
    """Who learns from the routing, and the stopwatch that tells where the time goes."""

    collection: ActivationCollection
    profiler: Profiler
    observers: Sequence[Listener] = ()  # told every routing, wherever experts lie


@dataclass(frozen=True, slots=True)
class Deciders:
    """Who evicts and who predicts, and what was trained for them on this model."""

    policy: str = DEFAULT
    tuned: TunedNetwork | None = None  # what the policy "tuned" goes by, the default where there is one
    predictor: str = DEFAULT_PREDICTOR


NOTHING_TRAINED = Deciders()


@dataclass(frozen=True, slots=True)
class BuildContext:
    weights: Weights
    host: Host
    observation: Observation
    reporting: Reporting
    on_wait: OnWait | None = None  # called while a read is waited for
    num_beams: int = 1  # answers that are decoded side by side
    encoder_layers: int = 0  # MoE layers, the first ones, that only an encoder visits
    recorded: RecordedRouting | None = None  # a trace's, in place of the routers' choice; on the CPU alone
    deciders: Deciders = NOTHING_TRAINED
    should_stop: Callable[[], bool] = lambda: False  # whether the answer that is being made is to end; any thread
    top_k: int | None = None  # experts of a token, where rank 0 says it to a worker

    @property
    def manifest(self) -> Manifest:
        return self.weights.manifest

    @property
    def moe(self) -> MoeShape:
        """The shape that policies and predictors see: a trace may route to fewer experts a token than the model."""
        top_k = self.top_k if self.recorded is None else self.recorded.top_k
        return self.manifest.moe if top_k is None else replace(self.manifest.moe, top_k=top_k)

    def on(self, machine: Machine) -> BuildContext:
        """The same on a machine whose memory is used otherwise."""
        return replace(self, host=replace(self.host, machine=machine))

    @property
    def footprint(self) -> Footprint:
        """The sizes that memory is planned by."""
        weights = self.weights
        held = weights.dense.memory_bytes + (0 if self.deciders.tuned is None else self.deciders.tuned.num_bytes)
        found = footprint_of(
            weights.manifest, held, weights.family.workspace, self.num_beams, weights.family.cache_bytes
        )
        threads = self.host.config.compute.threads or self.host.machine.cores
        found = with_sessions(found, self.host.config.parallel)
        return seeing_footprint(found, weights.stored, weights.family.vision, self.host.config, threads)

    @property
    def outline(self) -> Outline:
        return Outline(self.manifest, self.footprint, self.weights.dense)

    @property
    def device_footprint(self) -> Footprint:
        """The same on a GPU, where weights may have another form."""
        return self.outline.device_footprint


def policy_of(context: BuildContext, num_slots: int) -> DevicePolicy:
    """The eviction policy of a cache of so many slots. Raises UsageError for an unknown one."""
    tuned = context.deciders.tuned
    if tuned is not None and tuned.shape != context.moe:
        raise UsageError(f"--policy {TUNED} knows tokens of {tuned.shape.top_k} experts; name another")
    name = context.host.config.experts.policy or (DEFAULT if tuned is None else TUNED)
    collection = context.observation.collection
    return make_policy(name, context.moe, collection, num_slots, context.encoder_layers, tuned)


def prefetcher_of(
    context: BuildContext,
    tier: ExpertTier,
    link: Link,
    observers: list[Listener],
    *,
    fits: bool,
    on_cpu: bool = False,
    slices: int = 1,
) -> Prefetcher | None:
    """The prefetcher that the configuration asks for; its predictor joins the observers.

    slices: of an expert, with a slot each.

    on_cpu: the times of single tokens decide whether they go with prefetch, unless a recording wants every guess. None
    where every expert fits: nothing needs to be predicted. Raises UsageError for an unknown predictor.
    """
    predictor = make_predictor(context.deciders.predictor, context.moe, context.observation.collection)
    if fits or not context.host.config.experts.prefetch or predictor is None:
        return None
    observers.append(predictor)
    tries = on_cpu and not any(each.wants_guesses for each in context.observation.observers)
    admission = context.host.config.experts.admission or MEASURED
    return Prefetcher(
        tier, predictor, link, context.moe, context.encoder_layers, slices, tries=tries, admission=admission
    )
