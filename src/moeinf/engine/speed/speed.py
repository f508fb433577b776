"""How long tokens will take: products and layers at the machine's rates, and the reads that these do not hide.

Both the choice of a device and the forecast of a run go by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.memory.plan import MemoryPlan
from moeinf.engine.speed.rates import CardRates, Rates
from moeinf.engine.speed.weight_bytes import dense_weights, expert_weights, head_weights, product_s, token_weights_s
from moeinf.engine.stored.outline import Outline
from moeinf.types import AttentionSizes, DeltaSizes, IndexSizes, LatentSizes, LayerSizes, MambaSizes, MoeShape

# Of the shorter of reading and computing, the part that happens while the other is under way. A single token asks for
# a few experts of the next layer at a time, a prompt for nearly all of them.
HIDDEN_OF_TOKEN: Final = 0.5
HIDDEN_OF_PROMPT: Final = 0.75  # where the slots hold a layer's experts; with fewer, less is read ahead
HIDDEN_OF_SLICES: Final = 0.7  # of large experts, whose rows are computed as they land
PROMPT_TOKENS: Final = 512  # of the prompt that is forecast, or of a shorter context

DEVICE_SHARE: Final = 0.6  # share of its memory's rate that decoding on a GPU reaches
DEVICE_LAYER_S: Final = 50e-6  # time that a GPU spends on launches in each layer
MISSED: Final = 0.75  # share of a token's experts that misses, where next to none are on the GPU


@dataclass(frozen=True, slots=True)
class Step:
    """What is expected of a decode step, or of a prompt."""

    tokens: int
    compute_s: float
    read_bytes: float
    read_s: float
    hidden: float

    @property
    def seconds(self) -> float:
        both = min(self.compute_s, self.read_s)
        return self.compute_s + self.read_s - self.hidden * both

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def decode_step(outline: Outline, plan: MemoryPlan, rates: Rates, read_share: float) -> Step:
    """A step on the CPU behind a prompt of PROMPT_TOKENS, whose keys and values are all read.

    read_share: of a token's experts, those that the disk has to read; 0.0 where all are resident.
    """
    info, moe = outline.manifest.info, outline.manifest.moe
    streamed = plan.num_slots < moe.total_experts
    layer_s = rates.streamed_layer_s if streamed else rates.layer_s
    position = min(PROMPT_TOKENS, plan.context)
    cached = (plan.kv_bytes - info.state_bytes) * position / plan.context + info.state_bytes
    compute = token_weights_s(outline, rates) + layer_s * info.num_layers
    compute += cached / rates.memory if rates.memory else 0.0
    read_bytes = read_share * moe.top_k * sum(outline.manifest.layout_of(n).stride_bytes for n in _layers(outline))
    hidden = HIDDEN_OF_TOKEN if plan.slices is None else HIDDEN_OF_SLICES
    return Step(1, compute, read_bytes, _read_s(read_bytes, outline, rates), hidden)


def device_decode_step(plan: DevicePlan, moe: MoeShape, rates: CardRates) -> Step:
    """A step on a GPU in front of a host that holds every expert: what it misses comes over the link, in its own time.

    How much is missed is as measured for next-use at 10 to 80 %: docs/lab/policies.md.
    """
    used = moe.num_layers * moe.top_k  # experts of a token
    weights_s = (plan.dense_bytes + used * plan.sizes.mean_bytes) / (DEVICE_SHARE * rates.memory)
    missed = MISSED * (1 - plan.num_slots / moe.total_experts) ** 2 * used * plan.sizes.mean_bytes
    return Step(1, weights_s + moe.num_layers * DEVICE_LAYER_S, missed, missed / rates.link, 0.0)


def prefill(outline: Outline, plan: MemoryPlan, rates: Rates, num_tokens: int) -> Step:
    """A prompt that nothing is known of yet: its chunks, each through every layer and nearly every expert."""
    info, moe = outline.manifest.info, outline.manifest.moe
    compute, read_bytes, left = 0.0, 0.0, num_tokens
    missing = 1 - plan.held_experts / moe.total_experts
    while left:
        chunk = min(left, plan.most_at_once)
        left -= chunk
        for layer in _layers(outline):
            experts = moe.experts_of(layer)
            used = experts * (1 - (1 - moe.top_k / experts) ** chunk)
            weights = expert_weights(outline, layer)
            compute += used * product_s(weights, rates.experts, chunk * moe.top_k / used)
            read_bytes += used * missing * outline.manifest.layout_of(layer).stride_bytes
        compute += product_s(dense_weights(outline), rates.linear, chunk) + rates.layer_s * info.num_layers
    hidden = HIDDEN_OF_PROMPT * min(1.0, plan.num_slots / moe.num_experts)
    hidden = hidden if plan.slices is None else HIDDEN_OF_SLICES
    compute += product_s(head_weights(outline), rates.linear, 1) + _attention_s(outline, rates, num_tokens)
    return Step(num_tokens, compute, read_bytes, _read_s(read_bytes, outline, rates), hidden)


def _attention_s(outline: Outline, rates: Rates, num_tokens: int) -> float:
    """Scores and sums of a whole prompt, at the rate of products of many rows; of kinds of layers, the largest."""
    kinds = outline.footprint.workspace.layers
    numbers = max((_pair_numbers(sizes, num_tokens) for sizes in kinds), default=0.0) * outline.manifest.info.num_layers
    return num_tokens * numbers * rates.linear["bf16"].of(PROMPT_TOKENS) / PROMPT_TOKENS


def _pair_numbers(sizes: LayerSizes, num_tokens: int) -> float:
    """Multiplications for one token's scores and sums, in the mean over a prompt."""
    match sizes:
        case AttentionSizes():
            seen = min(num_tokens / 2, sizes.window or num_tokens)
            return 2 * sizes.num_heads * sizes.head_dim * seen
        case LatentSizes():
            seen = min(num_tokens / 2, sizes.most_chosen or num_tokens)
            return sizes.num_heads * (2 * sizes.rank + sizes.rotary_dim) * seen
        case IndexSizes():
            return sizes.num_heads * sizes.head_dim * num_tokens / 2
        case DeltaSizes():
            return 3.0 * sizes.num_value_heads * sizes.key_dim * sizes.value_dim
        case MambaSizes():
            return 3.0 * sizes.num_heads * sizes.head_dim * sizes.state_size


def _layers(outline: Outline) -> range:
    return range(outline.manifest.moe.num_layers)


def _read_s(num_bytes: float, outline: Outline, rates: Rates) -> float:
    return num_bytes / rates.disk_rate(outline.manifest.layout.stride_bytes) if num_bytes else 0.0
