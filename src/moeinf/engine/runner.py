"""What runs a model, on whichever device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from moeinf.engine.memory.plan import MemoryPlan
from moeinf.models.cpu.paged_rows import SequencePages
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.kv_cache import Cache, NewTokens
from moeinf.runtime.approximate import ApproximateExperts
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.io.reader_protocol import ReadFacts
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.sampling.beam_search import EncoderDecoderModel
from moeinf.sampling.step_queue import StepModel
from moeinf.types import Float32Array, MoeShape


class ModelRunner(EncoderDecoderModel, StepModel, Protocol):
    """A network on a device, with its experts and the cache of a sequence: CpuRunner (cpu.py), GpuRunner (gpu.py).

    Only encoder-decoder models have a use for `encode` and `keep_beams`.
    """

    tier: ExpertTier  # of the device that computes
    observers: list[Listener]
    network: Decoder | EncoderDecoder
    cache: Cache
    row_pages: SequencePages | None  # that sequences share; None: each has memory of its own
    approx: ApproximateExperts | None  # None: answers are exact
    cuts_prompts: bool  # whether a prompt's numbers are the same in whatever chunks it is read

    @property
    def plan(self) -> MemoryPlan: ...

    @property
    def reader(self) -> ReadFacts: ...

    @property
    def stats(self) -> CacheStats:
        """What the caches of experts have counted, those of other ranks too, as a copy. From any thread."""
        ...

    @property
    def arithmetic(self) -> str:
        """What its rounding depends on: the device, and how its kernels compute."""
        ...

    def describe(self, moe: MoeShape) -> str:
        """Says where its memory went."""
        ...

    def peak_device_bytes(self) -> int:
        """The most memory that was ever taken of a GPU; 0 on the CPU."""
        ...

    @property
    def can_warm(self) -> bool:
        """Whether free slots may be filled while nobody waits for an answer."""
        ...

    @property
    def knows_hits(self) -> bool:
        """Whether its hits tell what a later run of as many slots in host memory may expect: of a part of the experts,
        all of them its own."""
        ...

    def spare_first(self, spare: Callable[[int], int]) -> None:
        """What gives memory of the host back before experts do, where these follow what the machine has: see
        MemoryWatch.look."""
        ...

    def close(self) -> bool:
        """Gives back what it holds; returns whether all reads have ended."""
        ...


class OfOneSequence:
    """What a runner can do with the cache that it has by itself."""

    cache: Cache
    step: Callable[..., Float32Array]

    def forward(
        self, token_ids: Sequence[int], between_layers: Callable[[], None] = lambda: None, *, of_tokens: int = 0
    ) -> Float32Array:
        """Logits of the last token, or of each beam's; of_tokens: see NewTokens. Raises as `step`."""
        return self.step([NewTokens(token_ids, self.cache, of_tokens)], between_layers)
