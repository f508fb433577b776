"""Runs a stored model on a GPU, with expert slots in its memory, behind them slots in host memory, and the disk."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from moeinf._native import ExpertKernel
from moeinf.engine.build_context import BuildContext
from moeinf.engine.cards.card import ExpertCard, parts_of, readers_of
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.memory.plan_notes import prefixes_text
from moeinf.engine.runner import OfOneSequence
from moeinf.engine.weights.device_form import conversion_notice, device_layouts, for_device
from moeinf.engine.weights.expert_files import expert_parts
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.cuda import explain, is_out_of_memory
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.models.cpu.paged_rows import SequencePages
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.encoder_decoder import EncoderDecoder, SourceCache
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.models.layers.weights import TensorBytes
from moeinf.runtime.approximate import ApproximateExperts
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.gpu.cpu_experts import CpuExperts
from moeinf.runtime.gpu.cpu_share import CpuShare
from moeinf.runtime.gpu.device_experts import DeviceExperts
from moeinf.runtime.gpu.device_table import DeviceTable
from moeinf.runtime.gpu.divided_experts import Card, DividedExperts
from moeinf.runtime.io.reader_protocol import ReadFacts
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.text.quantities import size_text
from moeinf.types import ExpertLayout, Float32Array, MoeShape

T = TypeVar("T")


class GpuRunner(OfOneSequence):
    """moeinf.engine.runner.ModelRunner on a GPU, or on several: the first has all but experts of the others.

    Where it does not hold the dense layers, each card has some of them.
    """

    row_pages: SequencePages | None = None
    approx: ApproximateExperts | None = None
    cuts_prompts = False  # cuBLAS may add up in an order that depends on the number of rows

    def __init__(self, context: BuildContext, gpu: OpenGpu, others: Sequence[OpenGpu] = ()) -> None:
        """Takes the dense weights to the device, then fills host or device memory where that holds every expert.

        others: cards that own some of the experts. Raises OutOfMemoryError before anything is read, StoreError for a
        damaged store, DeviceError.
        """
        self._context, self._gpu, self._notify = context, gpu, context.reporting.notify
        weights, footprint = context.weights, context.device_footprint
        self._cards: list[ExpertCard] = []
        parts = parts_of(context, gpu, others)
        self.plan: DevicePlan = parts[0].plan
        experts_bytes = footprint.sizes.num_bytes(weights.manifest.moe.total_experts)
        if notice := conversion_notice(weights.manifest, weights.dense, experts_bytes, footprint.dense_bytes):
            self._notify(notice)
        layouts, stats = device_layouts(weights.manifest), CacheStats()
        try:
            for part in parts:
                self._cards.append(ExpertCard(context, part, layouts, stats))
            with gpu.device.computing():
                self._assemble(context, layouts)
        except BaseException as error:
            self.close()
            if is_out_of_memory(error):
                raise OutOfMemoryError(
                    "the GPU's memory ran out while the model was loaded: end what else uses it "
                    "(nvidia-smi lists that), or lower --num-ctx or --vram"
                ) from error
            raise self._named(error) from error
        if self.reader.notice:
            self._notify(self.reader.notice)

    def _assemble(self, context: BuildContext, layouts: Sequence[ExpertLayout]) -> None:
        weights, plan, info = context.weights, self.plan, context.manifest.info
        first, config = self._cards[0], context.host.config
        self.observers: list[Listener] = [*context.observation.observers]
        for card in self._cards[1:]:
            card.assemble(self.observers)
        first.assemble(self.observers, [card.tier for card in self._cards[1:]])
        self.tier = first.tier
        self._table = DeviceTable(
            first.compute,
            first.slots,
            first.policy,
            self.observers,
            allowed=not config.compute.cpu_experts and len(self._cards) == 1,
            encoder_layers=context.encoder_layers,
        )
        self._experts = experts = self._open_experts(context, layouts)
        with weights.dense.streamed(config, self._progress(0), context.on_wait) as tensors:
            given = for_device(tensors, context.manifest.scales.dense)
            layers = self._layers_of(context, first, given)
            self.network = weights.family.build(layers, experts, context.observation.profiler)
            if first.stage is not None:
                self._divide(context, self.network, experts, given)
        self.cache = self.network.new_cache(plan.context, context.num_beams)
        whole = plan.context if weights.family.workspace.source else context.device_footprint.whole_tokens
        layers.staging.take(max(plan.prefill_chunk, whole), info.hidden_size, context.num_beams * info.vocab_size)
        for card in self._cards:
            with card.gpu.device.computing():
                card.take_slots()
                card.fill(self._progress(plan.dense_bytes))

    def _layers_of(self, context: BuildContext, card: ExpertCard, tensors: Mapping[str, TensorBytes]) -> DeviceLayers:
        """Layers on a card. Where it has not all of them, no step is recorded, as that would be of one card."""
        lookups, stage = context.weights.dense.lookups(), card.stage
        elsewhere = stage.lacks if stage is not None else (lambda name: False)
        weights = DeviceWeights(card.gpu.device, card.gpu.ops, tensors, lookups, elsewhere)
        program = card.program if stage is None else None
        return DeviceLayers(weights, context.manifest.info.dtype, self.plan.context, program)

    def _divide(
        self,
        context: BuildContext,
        network: Decoder | EncoderDecoder,
        experts: DeviceExperts | DividedExperts,
        tensors: Mapping[str, TensorBytes],
    ) -> None:
        """Has each further card compute its layers, in a network of its own without memory for those of the others."""
        assert isinstance(network, Decoder) and isinstance(experts, DividedExperts), "others are refused before"
        family, profiler, others = context.weights.family, context.observation.profiler, list[tuple[Decoder, range]]()
        for number, card in enumerate(self._cards[1:], start=1):
            with card.gpu.device.computing():
                layers = self._layers_of(context, card, tensors)
                other = family.build(layers, experts.of_card(number), profiler)
            assert isinstance(other, Decoder) and card.stage is not None
            others.append((other, card.stage.layers))
        network.divide(others)

    def _open_experts(self, context: BuildContext, layouts: Sequence[ExpertLayout]) -> DeviceExperts | DividedExperts:
        first, name = self._cards[0], context.weights.stored.name
        if len(self._cards) > 1:
            cards = [Card(each.compute, each.slots, each.prefetcher, each.mine) for each in self._cards]
            return DividedExperts(cards, self.observers, name)
        cpu = None
        if context.host.config.compute.cpu_experts and not first.fits:
            on_cpu = [expert_parts(layout) for layout in layouts]
            forms = context.weights.family.tensors.forms
            kernel = ExpertKernel(context.host.kernels, first.host.array(), on_cpu, forms)
            _, _, width, _ = on_cpu[0]["up"]  # what experts are given: of the model's width, or narrower
            share = CpuShare(self._notify)
            cpu = CpuExperts(first.gpu.device, first.slots.host, first.gpu.copier, kernel, share, width)
        return DeviceExperts(first.compute, first.slots, self.observers, first.prefetcher, self._table, cpu, name)

    @property
    def reader(self) -> ReadFacts:
        return readers_of(self._cards)

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None] = lambda: None) -> Float32Array:
        """Raises DeviceError for a GPU that is lost, OutOfMemoryError at last."""
        return self._in_memory(lambda: self._step(parts, between_layers))

    def encode(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> None:
        """See EncoderDecoder.encode. Raises as `step`."""

        def encode() -> None:
            self._choose_slots(by_device=False)
            assert isinstance(self.network, EncoderDecoder), "only an encoder-decoder encodes"
            self.network.encode(token_ids, self.cache, between_layers)
            self._gpu.device.synchronise()

        self._in_memory(encode)

    def keep_beams(self, beams: Sequence[int]) -> None:
        assert isinstance(self.cache, SourceCache), "only an encoder-decoder decodes beams"
        self.cache.keep(beams)

    def _in_memory(self, step: Callable[[], T]) -> T:
        """Returns what a step gives. Where memory runs out, the step is repeated with fewer slots."""
        with ExitStack() as stack:
            for card in reversed(self._cards):  # each on a stream of its own; the first begins
                stack.enter_context(card.gpu.device.computing())
            while True:
                try:
                    with self._experts.step():
                        return step()
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise self._named(error) from error
                    self._shrink(error)

    def _step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        rows = sum(len(part.ids) for part in parts)
        decode = len(parts) == 1 and rows == self.cache.beams
        self._choose_slots(by_device=rows == 1)
        if decode:
            self._cards[0].program.keep_for(self._table.mode)
            between_layers()  # the layers of a token may run without the host
        logits = self.network.step(parts, None if decode else between_layers)
        self._table.after_token()
        return logits

    def _choose_slots(self, *, by_device: bool) -> None:
        """Hands the slots to the device where that is possible, or back to the host."""
        table = self._table
        if table.active != (by_device and table.possible):
            if table.active:
                table.leave()
            else:
                table.enter()

    def _shrink(self, error: BaseException) -> None:
        """Gives up some slots for another process or a longer prompt. Raises OutOfMemoryError when none are left."""
        cards = self._cards
        left = [card.arena.smaller() for card in cards]
        if any(few <= card.plan.sizes.least_slots for few, card in zip(left, cards, strict=True)):
            raise OutOfMemoryError(
                f"the GPU's memory does not suffice, even with {cards[left.index(min(left))].arena.num_slots} experts "
                "in it: end what else uses it (nvidia-smi lists that), or lower --num-ctx or --prefill-chunk"
            ) from error
        traceback.clear_frames(error.__traceback__)  # they hold the activations of the step that failed
        self._table.leave()
        self._table.forget()
        before = sum(card.arena.num_slots for card in cards)
        for card, num_slots in zip(cards, left, strict=True):
            card.shrink(num_slots)
        self._notify(f"the GPU's memory ran out: {before - sum(left)} of {before} experts left it, the run goes on")

    def _progress(self, before: int) -> Callable[[int, int], None]:
        """Returns the progress of a step before which `before` bytes were loaded."""
        fits = self._context.manifest.moe.total_experts in (self.plan.num_slots, self.plan.host_slots)
        experts = self.plan.sizes.num_bytes(len(self.plan.sizes.order)) if fits else 0
        return lambda done, _: self._context.reporting.progress(before + done, self.plan.dense_bytes + experts)

    def _named(self, error: BaseException) -> BaseException:
        return explain(error) or error

    @property
    def stats(self) -> CacheStats:
        """Those of all cards."""
        return self.tier.stats.snapshot()

    @property
    def arithmetic(self) -> str:
        return f"gpu {self._gpu.name}, {self.plan.prefill_chunk} tokens at once"

    def describe(self, moe: MoeShape) -> str:
        plan, first = self.plan, self._cards[0]
        others = "".join(f" · {card.describe(moe)}" for card in self._cards[1:])
        return (
            f"{self._gpu.name}, VRAM {size_text(first.used_bytes)} of {size_text(plan.limit_bytes)}: "
            f"{first.layers_text()}{first.experts_text(moe)}{others}{prefixes_text(plan)}"
        )

    def peak_device_bytes(self) -> int:
        return sum(card.gpu.device.peak_bytes() for card in self._cards)

    @property
    def can_warm(self) -> bool:
        return False

    @property
    def knows_hits(self) -> bool:
        return False

    def spare_first(self, spare: Callable[[int], int]) -> None:
        """Its slots of host memory are pinned, and do not follow what the machine has."""

    def close(self) -> bool:
        """Ends reads and copies, and gives back all of the device's memory, whoever still holds this object."""
        ended = list[bool]()
        with ExitStack() as parts:  # each is closed, whatever another raises
            for card in self._cards:
                parts.callback(card.gpu.close)
            for name in ("network", "cache", "_table", "_experts"):
                parts.callback(self.__dict__.pop, name, None)
            for card in self._cards:
                parts.callback(lambda card: ended.append(card.close()), card)
        return all(ended)
