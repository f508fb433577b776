"""A stored model running on the CPU: slots in host memory, filled from the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moeinf._native import Arena, ExpertKernel
from moeinf.engine.memory_plan import MemoryPlan, plan_memory, reserve_bytes
from moeinf.engine.parts import ModelParts, expert_parts, prefetcher_of
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.layers.weights import StoredTensor
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import Observer, StreamedExperts
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.policy.eviction import make_policy
from moeinf.text.quantities import size_text


class CpuRun:
    """moeinf.engine.opening.Run on the CPU."""

    def __init__(self, parts: ModelParts) -> None:
        """Reads the dense weights, and the experts where all of them fit.

        Raises OutOfMemoryError before anything is read, StoreError for a damaged store.
        """
        stored, manifest, config = parts.stored, parts.manifest, parts.config
        shape = manifest.moe
        self.plan: MemoryPlan = plan_memory(parts.demands, config, parts.machine)
        fits = self.plan.num_slots == shape.total_experts
        total = parts.dense.memory_bytes + (self.plan.cache_bytes if fits else 0)
        tensors = parts.dense.read(config, lambda done, _: parts.progress(done, total), parts.on_wait)
        arena = Arena(self.plan.cache_bytes)
        self.reader = open_reader(
            stored.shard_paths, [s.num_bytes for s in manifest.shards], arena, config, parts.shard_sums, parts.on_wait
        )
        parts.notices += [self.reader.notice] if self.reader.notice else []
        try:
            self._assemble(parts, arena, tensors)
            self._watch.start()
            if fits and parts.preload:
                self.tier.load_all(lambda done, _: parts.progress(parts.dense.memory_bytes + done, total))
        except BaseException:
            self.close()
            raise

    def _assemble(self, parts: ModelParts, arena: Arena, tensors: Mapping[str, StoredTensor]) -> None:
        stored, manifest, config, profiler = parts.stored, parts.manifest, parts.config, parts.profiler
        shape, layout = manifest.moe, manifest.layout
        policy = make_policy(config.policy, shape, parts.collection, parts.encoder_layers)
        memory = arena.array()
        cache = ExpertCache(shape, layout.stride_bytes, SlotRegion(memory, 0, self.plan.num_slots), policy)
        errors = ReadErrors(stored.shard_paths, shape.num_experts, stored.name)
        self.tier = ExpertTier(cache, Loader(cache, self.reader, memory), errors, profiler)
        self._watch = MemoryWatch(
            self.tier, shape.top_k, layout.stride_bytes, reserve_bytes(self.plan, parts.machine), parts.notices.append
        )
        advisers: list[Observer] = [policy]
        prefetcher = prefetcher_of(parts, self.tier, self.reader, advisers, fits=False)  # it need not stay so
        self.observers = [*parts.observers, *advisers]
        kernel = ExpertKernel(parts.kernels, arena.array(), expert_parts(layout), parts.form)
        experts = StreamedExperts(self.tier, kernel, parts.observers, advisers, prefetcher, stored.name)
        layers = NativeLayers(parts.kernels, tensors, manifest.info.dtype)
        self.model = parts.family.build(parts.config_json, layers, experts, profiler)
        self.cache = self.model.new_cache(self.plan.context, parts.num_beams)
        self.forward = self.model.forward

    def encode(self, ids: Sequence[int], cache: Any, between_layers: Callable[[], None]) -> None:
        self.model.encode(ids, cache, between_layers)

    def describe(self, total_experts: int) -> str:
        plan = self.plan
        rest = " · rest on disk" if plan.num_slots < total_experts else ""
        return (
            f"CPU, RAM {size_text(plan.total_bytes)}: dense {size_text(plan.dense_bytes)}, "
            f"KV {size_text(plan.kv_bytes)}, experts {plan.num_slots}/{total_experts} "
            f"({size_text(plan.cache_bytes)}){rest}"
        )

    def peak_device_bytes(self) -> int:
        return 0

    def close(self) -> bool:
        if hasattr(self, "_watch"):
            self._watch.close()
        return self.reader.close()
