"""Runs a stored model on the CPU, with expert slots in host memory that are filled from the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moeinf._native import Arena, ExpertKernel
from moeinf.engine.build_context import BuildContext, policy_of, prefetcher_of
from moeinf.engine.joining import RankReaders, join, shared
from moeinf.engine.memory.footprint import kept_format
from moeinf.engine.memory.plan import MemoryPlan, plan_memory, reserve_bytes
from moeinf.engine.memory.plan_notes import prefixes_text, sequence_text
from moeinf.engine.memory.side_by_side import with_guesses
from moeinf.engine.runner import OfOneSequence
from moeinf.engine.weights.expert_files import (
    Parts,
    parts_of_layers,
    parts_of_slices,
    placed_reads,
    sliced_reads,
    slices_that_exist,
)
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.paged_rows import sequence_pages
from moeinf.models.layers.encoder_decoder import EncoderDecoder, SourceCache
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.models.layers.weights import StoredTensor, narrowed, with_scales
from moeinf.runtime.approximate import ApproximateExperts, Within
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.lending import Lending
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slices import SliceScores, shape_of_slices
from moeinf.runtime.cache.slot_sizes import equal_slots
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.read_places import PlacedReads
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.io.reader_protocol import ReadFacts
from moeinf.runtime.policy.policy_protocol import DevicePolicy, Listener
from moeinf.text.quantities import size_text
from moeinf.traces.replayed import ReplayedExperts
from moeinf.types import ByteArray, Float32Array, MoeShape

if TYPE_CHECKING:  # loads torch
    from moeinf.distributed.kernels import JoiningKernel
    from moeinf.distributed.star import Star


SPARES: Final = 8  # experts behind the chosen ones, one of which may stand in for one that would be read


@dataclass(frozen=True, slots=True)
class _Slots:
    """The cache of experts, how they are read into its slots, and what lies there, as ExpertKernel takes it."""

    cache: ExpertCache
    reads: PlacedReads | None
    parts: Parts | list[Parts] | list[list[Parts]]


class CpuRunner(OfOneSequence):
    """moeinf.engine.runner.ModelRunner on the CPU."""

    cuts_prompts = True
    approx: ApproximateExperts | None = None

    def __init__(self, context: BuildContext) -> None:
        """Reads the dense weights, and the experts where all of them fit.

        Raises OutOfMemoryError before anything is read, StoreError for a damaged store.
        """
        weights, host, report = context.weights, context.host, context.reporting
        manifest, dense = weights.manifest, weights.dense
        self._isa, self._parallel = host.kernels.isa, host.config.parallel
        self.plan: MemoryPlan = plan_memory(with_guesses(context.footprint, host.config), host.config, host.machine)
        self._joining: JoiningKernel | None = None
        self._fits = fits = self.plan.num_slots == manifest.moe.total_experts
        total = dense.memory_bytes + (self.plan.cache_bytes if fits else 0)
        tensors = dense.read(host.config, lambda done, _: report.progress(done, total), context.on_wait)
        arena = Arena(self.plan.cache_bytes)
        self._reader = open_reader(
            weights.stored.shard_paths,
            weights.stored.shard_sizes,
            arena,
            host.config,
            weights.expert_sums,
            context.on_wait,
            weights.others,
        )
        if self._reader.notice:
            report.notify(self._reader.notice)
        try:
            self._assemble(context, arena, tensors)
            self._watch.start()
            if host.preload and self.tier.has_room_for_all:
                self.tier.load_all(lambda done, _: report.progress(dense.memory_bytes + done, total))
        except BaseException:
            self.close()
            raise

    def _assemble(self, context: BuildContext, arena: Arena, tensors: Mapping[str, StoredTensor]) -> None:
        weights, host, watch = context.weights, context.host, context.observation
        stored, profiler = weights.stored, watch.profiler
        shape, manifest, memory = context.moe, weights.manifest, arena.array()
        policy = policy_of(context, self.plan.num_slots)
        slots = self._slots(context, memory, policy)
        own_files = manifest.in_place is None
        errors = ReadErrors(
            stored.shard_paths if own_files else (), shape.num_experts, stored.name, stored.remedy, slots.cache.slices
        )
        loader = Loader(slots.cache, self._reader, memory, placed=slots.reads)
        self.tier = ExpertTier(slots.cache, loader, errors, profiler)
        reserve, least_slots = reserve_bytes(self.plan, host.machine), self.plan.sizes.least_slots
        if self.plan.slices is not None:
            least_slots = shape.top_k * manifest.layout.stride_bytes // self.plan.slices.slot_bytes
        self._watch = MemoryWatch(self.tier, least_slots, reserve, context.reporting.notify)
        advisers: list[Listener] = [policy]
        prefetcher = prefetcher_of(
            context,
            self.tier,
            self._reader,
            advisers,
            fits=False,  # it need not stay so
            on_cpu=True,
            slices=slots.cache.slices,
        )
        self.observers = [*watch.observers, *advisers]
        self.kernel = kernel = ExpertKernel(host.kernels, memory, slots.parts, weights.family.tensors.forms)

        def release() -> None:
            kernel.release_scratch()
            host.kernels.release_scratch()

        self._lending = Lending(self.tier, release)
        if host.config.compute.workers:
            self._joining = join(context, self.tier, self._reader, kernel)
        computes = self._joining or kernel
        streamed = StreamedExperts(self.tier, computes, watch.observers, advisers, prefetcher, stored.name)
        self.streamed = streamed
        whole = streamed if self._joining is None else shared(streamed, self._joining, host.config)
        recorded, budget = context.recorded, host.config.experts.approx
        if budget is not None:
            states = slots.cache.table.state.reshape(shape.num_layers, -1)
            self.approx = ApproximateExperts(streamed, states, slots.cache.slices, Within(budget))
        experts = self.approx or (whole if recorded is None else ReplayedExperts(whole, recorded))
        tensors = with_scales(narrowed(tensors), weights.manifest.scales.dense)
        kept = kept_format(weights.manifest.info, host.config)
        self.row_pages = sequence_pages() if self._parallel > 1 else None
        layers = NativeLayers(host.kernels, tensors, kept, self.row_pages, SPARES if self.approx else 0)
        self.weights = layers.weights
        self.network = weights.family.build(layers, experts, profiler)
        self.cache = self.network.new_cache(self.plan.context, context.num_beams)

    def _slots(self, context: BuildContext, memory: ByteArray, policy: DevicePolicy) -> _Slots:
        """Slots of experts, or of their slices where the plan says so."""
        manifest, shape, cut = context.manifest, context.moe, self.plan.slices
        slices = context.footprint.slices
        if cut is None or slices is None:
            region = SlotRegion(memory, 0, self.plan.num_slots, self.plan.sizes)
            reads = placed_reads(manifest, self._reader)
            return _Slots(ExpertCache(shape, region, policy), reads, parts_of_layers(manifest))
        of_slices = shape_of_slices(shape, cut.of_expert)
        cache = ExpertCache(
            of_slices,
            SlotRegion(memory, 0, cut.num_slots, equal_slots(cut.slot_bytes, of_slices)),
            SliceScores(policy, cut.of_expert),
            cut.of_expert,
            slices_that_exist(manifest, slices),
        )
        return _Slots(cache, sliced_reads(manifest, slices, self._reader), parts_of_slices(manifest, slices))

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None] | None = None) -> Float32Array:
        if (long := self.plan.long_pieces) is not None:
            self._lending.lend(long.bytes_of(sum(len(part.ids) for part in parts)))
        if self.approx is not None:
            self.approx.begin_pass(decodes=all(len(part.ids) == 1 and not part.of_tokens for part in parts))
        logits = self.network.step(parts, between_layers)
        return logits

    def encode(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> None:
        assert isinstance(self.network, EncoderDecoder), "only an encoder-decoder encodes"
        self.network.encode(token_ids, self.cache, between_layers)

    def keep_beams(self, beams: Sequence[int]) -> None:
        assert isinstance(self.cache, SourceCache), "only an encoder-decoder decodes beams"
        self.cache.keep(beams)

    @property
    def arithmetic(self) -> str:
        return f"cpu {self._isa}"

    def describe(self, moe: MoeShape) -> str:
        plan = self.plan
        rest = " · rest on disk" if plan.num_slots < moe.total_experts else ""
        return (
            f"CPU, RAM {size_text(plan.total_bytes - plan.prefix_bytes)}: dense {size_text(plan.dense_bytes)}, "
            f"KV {sequence_text(plan, self._parallel)}, {moe.kind} {plan.num_slots}/{moe.total_experts} "
            f"({size_text(plan.cache_bytes)}){rest}{prefixes_text(plan)}"
            + ("" if self._joining is None else f" · {self._joining.star.describe()}")
        )

    @property
    def star(self) -> Star | None:
        """The ranks that compute together, where there are others."""
        return None if self._joining is None else self._joining.star

    @property
    def reader(self) -> ReadFacts:
        """What it tells is of all ranks."""
        return self._reader if self._joining is None else RankReaders(self._reader, self._joining.star)

    @property
    def stats(self) -> CacheStats:
        """What the caches of all ranks have counted, as a copy."""
        counted, joining = self.tier.stats.snapshot(), self._joining
        if joining is None:
            return counted
        counted.stall_s += joining.stall_s
        return counted.plus(joining.star.counted().cache)

    @property
    def can_warm(self) -> bool:
        return True

    @property
    def knows_hits(self) -> bool:
        return self._joining is None and not self._fits

    def spare_first(self, spare: Callable[[int], int]) -> None:
        self._watch.spare = spare

    def peak_device_bytes(self) -> int:
        return 0

    def close(self) -> bool:
        ended = [False]
        with ExitStack() as parts:  # each is closed, whatever another raises
            parts.callback(lambda: ended.append(self._reader.close()))
            if self._joining is not None:
                parts.callback(self._joining.star.close)
            if hasattr(self, "_watch"):
                parts.callback(self._watch.close)
        return ended[-1]
