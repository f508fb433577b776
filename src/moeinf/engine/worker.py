"""A stored model on a worker: its experts alone, in a tier of their own, for whoever is rank 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf._native import Arena, ExpertKernel
from moeinf.config import RuntimeConfig
from moeinf.distributed.frames import Request, RequestForm
from moeinf.distributed.kernels import PartKernel
from moeinf.distributed.meeting import Facts, Offer
from moeinf.distributed.replies import ReplyForm, numbers_of
from moeinf.engine.build_context import BuildContext, Host, Observation, open_kernels, policy_of, prefetcher_of
from moeinf.engine.joining import capacity_of, expert_width, facts_of
from moeinf.engine.memory.footprint import footprint_of
from moeinf.engine.memory.plan import MemoryPlan, plan_memory, reserve_bytes
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored_weights import read_weights
from moeinf.engine.weights.expert_files import parts_of_layers, placed_reads
from moeinf.hardware import Machine, machine
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.table import BoolArray, SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.runtime.prefetch import FEW_TOKENS
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest
from moeinf.store.verify import check_files
from moeinf.text.quantities import size_text
from moeinf.types import Float32Array, Profiler, Routing, Workspace

_NO_EXPERTS = np.empty(0, np.int64)


class WorkerExperts:
    """moeinf.distributed.serving.ServedExperts, streamed as on a single machine. Close it, or use `with`."""

    def __init__(self, stored: StoredModel, config: RuntimeConfig, reporting: Reporting | None = None) -> None:
        """Raises OutOfMemoryError, StoreError and UsageError as Model does."""
        reporting = (reporting or Reporting()).once()
        check_files(stored)
        weights, here = read_weights(stored, config, reporting.notify), machine()
        manifest = weights.manifest
        self.kernels = open_kernels(config.compute.threads or here.cores, config.compute.isa)
        self.facts: Facts = facts_of(weights, self.kernels.isa)
        self.plan = _plan(manifest, config, here)
        self._shape, self._width = manifest.moe, expert_width(manifest)
        observation = Observation(ActivationCollection(manifest.moe), Profiler())
        self._context = BuildContext(weights, Host(here, config, self.kernels), observation, reporting)
        self._arena = Arena(self.plan.cache_bytes)
        files = stored.shard_paths, stored.shard_sizes
        self._reader = open_reader(*files, self._arena, config, weights.expert_sums, others=weights.others)
        try:
            self._assemble(self._shape.top_k)
            capacity = capacity_of(self.tier, self._reader, manifest.layout.stride_bytes)
            self.offer = Offer(capacity.num_slots, capacity.bytes_per_s)
        except BaseException:
            self._reader.close()
            raise

    def _assemble(self, top_k: int) -> None:
        """Puts empty slots together with policy and predictor of tokens with so many experts."""
        self._top_k, context = top_k, replace(self._context, top_k=top_k)
        weights, manifest, stored = context.weights, context.manifest, context.weights.stored
        memory = self._arena.array()
        policy = policy_of(context, self.plan.num_slots)
        cache = ExpertCache(self._shape, SlotRegion(memory, 0, self.plan.num_slots, self.plan.sizes), policy)
        shards = stored.shard_paths if manifest.in_place is None else ()
        errors = ReadErrors(shards, self._shape.num_experts, stored.name, stored.remedy)
        loader = Loader(cache, self._reader, memory, placed=placed_reads(manifest, self._reader))
        self.tier = ExpertTier(cache, loader, errors, context.observation.profiler)
        advisers: list[Listener] = [policy]
        self._prefetcher = prefetcher_of(context, self.tier, self._reader, advisers, fits=False, on_cpu=True)
        native = ExpertKernel(self.kernels, memory, parts_of_layers(manifest), weights.family.tensors.forms)
        self._kernel = PartKernel(native, self.tier)
        self._experts = StreamedExperts(self.tier, self._kernel, (), advisers, self._prefetcher, stored.name)
        reserve = reserve_bytes(self.plan, context.host.machine)
        self._watch = MemoryWatch(self.tier, self.plan.sizes.least_slots, reserve, context.reporting.notify)
        self._watch.start()

    def forms(self) -> tuple[RequestForm, ReplyForm]:
        """How requests to this model, and replies, look."""
        return RequestForm(self._shape, self._width), ReplyForm(self._width)

    def only(self, mine: BoolArray, top_k: int) -> None:
        """mine [keys]: which experts are this rank's. Reads them where all have room.

        top_k: of the routing to come, which policy and predictor are made for.
        """
        if top_k != self._top_k:
            self._watch.close()
            self.tier.only(np.zeros_like(mine))  # waits for what is on its way into the slots
            self._assemble(top_k)
        self.tier.only(mine)
        self._kernel.only(mine.reshape(self._shape.num_layers, -1))
        if self.tier.has_room_for_all:
            self.tier.load_all(lambda done, total: None)

    def counted(self) -> tuple[float, ...]:
        return numbers_of(self.tier.stats, self._reader)

    def run(self, request: Request, rows: Float32Array) -> None:
        """Raises ExpertReadError."""
        self.kernels.begin_pass(request.pass_tokens)
        experts = self._experts
        if request.guess is not None and experts.wants_expectations:
            experts.expect(request.guess_layer, request.guess)
        if not request.num_rows:
            self._read_ahead(request)
        else:
            weights = np.zeros(request.ids.shape, np.float32)  # rank 0 multiplies by them
            experts.run(request.layer, request.hidden, Routing(request.ids, weights), rows)

    def _read_ahead(self, request: Request) -> None:
        """Goes by the guess at the next layer alone, as none of this rank's experts is needed now."""
        guessed = 0 if request.guess is None else len(request.guess.ids)
        with self.tier.lock:
            if self._prefetcher is None or not 0 < guessed <= FEW_TOKENS or self.tier.all_resident:
                return
            with self.tier.visit(request.layer, _NO_EXPERTS, _NO_EXPERTS, guessed) as visit:
                self._prefetcher.after_routing(visit)

    def end(self) -> None:
        self.tier.end_request()

    def describe(self) -> str:
        return (
            f"RAM {size_text(self.plan.total_bytes)}: experts {self.plan.num_slots}/{self._shape.total_experts} "
            f"({size_text(self.plan.cache_bytes)})"
        )

    def close(self) -> None:
        try:
            self._watch.close()
        finally:
            self._reader.close()

    def __enter__(self) -> WorkerExperts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plan(manifest: Manifest, config: RuntimeConfig, here: Machine) -> MemoryPlan:
    """As for a whole model without dense weights, keys and values, and in whole experts, as these are shared out."""
    footprint = footprint_of(manifest, 0, Workspace(), 1)
    info = replace(footprint.info, kv_bytes_per_token=0, state_bytes=0)
    return plan_memory(replace(footprint, info=info, slices=None), config, here)
