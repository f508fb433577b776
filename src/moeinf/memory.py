"""How the memory that this process may use is divided: dense weights, KV cache, activations, expert slots."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig, parse_size
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.types import DTYPE_BYTES, ExpertLayout, ModelInfo, MoeShape

MIN_CONTEXT = 512  # what an automatic context is never shortened below
OVERHEAD_BYTES = 96 << 20  # allocator, interpreter and libraries still to be touched after this point; measured: 60


@dataclass(frozen=True, slots=True)
class Demands:
    """What of a model the plan depends on."""

    info: ModelInfo
    moe: MoeShape
    layout: ExpertLayout
    dense_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    dense_bytes: int
    kv_bytes: int
    activation_bytes: int
    context: int  # tokens
    num_slots: int
    slot_bytes: int

    @property
    def cache_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.cache_bytes


def activation_bytes(info: ModelInfo, moe: MoeShape, chunk: int, context: int) -> int:
    """Upper estimate for a prefill chunk: the largest of its steps, and the logits of one token."""
    width = DTYPE_BYTES[info.dtype]
    hidden = chunk * info.hidden_size * (6 * width + 3 * 4)  # residual, norms (float32 too), q/k/v, sums
    experts = chunk * moe.top_k * info.hidden_size * width
    mask = chunk * context * 5  # bool and float32
    return hidden + max(experts, mask) + info.vocab_size * 8


def plan_memory(demands: Demands, config: RuntimeConfig, machine: Machine) -> MemoryPlan:
    """Reserves dense, KV at the context and activations first; the rest is expert slots, unless told otherwise.

    Raises OutOfMemoryError with the shortfall and the remedies, UsageError for a size or context that cannot be meant.
    """
    info, moe, stride = demands.info, demands.moe, demands.layout.stride_bytes
    context = _wanted_context(info, config)
    while True:
        fixed = MemoryPlan(
            demands.dense_bytes, context * info.kv_bytes_per_token,
            activation_bytes(info, moe, min(config.prefill_chunk, context), context), context, 0, stride,
        )
        room = machine.available_bytes - fixed.total_bytes - OVERHEAD_BYTES
        if config.context is not None or room >= moe.top_k * stride or context <= MIN_CONTEXT:
            break
        context = max(MIN_CONTEXT, context // 2)
    slots = _wanted_slots(moe, stride, config, room)
    plan = MemoryPlan(fixed.dense_bytes, fixed.kv_bytes, fixed.activation_bytes, context, slots, stride)
    if plan.total_bytes + OVERHEAD_BYTES > machine.available_bytes:
        raise _shortfall(plan, machine)
    return plan


def smallest_bytes(demands: Demands) -> int:
    """The least memory that the model runs in, the process itself not counted: top_k slots and MIN_CONTEXT tokens."""
    info, moe = demands.info, demands.moe
    context = min(MIN_CONTEXT, info.context_length)
    return (demands.dense_bytes + context * info.kv_bytes_per_token + OVERHEAD_BYTES
            + activation_bytes(info, moe, context, context) + moe.top_k * demands.layout.stride_bytes)


def _wanted_context(info: ModelInfo, config: RuntimeConfig) -> int:
    if config.context is None:
        return min(info.context_length, DEFAULT_CONTEXT)
    if config.context > info.context_length:
        raise UsageError(f"context {config.context} is beyond the model's {info.context_length} tokens")
    return config.context


def _wanted_slots(moe: MoeShape, stride: int, config: RuntimeConfig, room: int) -> int:
    if config.expert_cache == "auto":
        return max(moe.top_k, min(moe.total_experts, room // stride))
    asked = parse_size("--expert-cache", config.expert_cache, moe.total_experts * stride)
    slots = min(moe.total_experts, asked // stride)
    if slots < moe.top_k:
        raise UsageError(f"--expert-cache {config.expert_cache} holds {slots} experts of {_mib(stride)} MiB; "
                         f"a token needs {moe.top_k} at once: give at least {_mib(moe.top_k * stride)} MiB")
    return slots


def _shortfall(plan: MemoryPlan, machine: Machine) -> OutOfMemoryError:
    need = plan.total_bytes + OVERHEAD_BYTES
    return OutOfMemoryError(
        f"not enough memory: {_mib(need)} MiB needed (dense {_mib(plan.dense_bytes)}, KV cache {_mib(plan.kv_bytes)} "
        f"for {plan.context} tokens, experts {_mib(plan.cache_bytes)}, rest "
        f"{_mib(plan.activation_bytes + OVERHEAD_BYTES)}), {_mib(machine.available_bytes)} available "
        f"({machine.limited_by}); lower --num-ctx, --prefill-chunk or --expert-cache, or free memory"
    )


def _mib(num_bytes: int) -> int:
    return -(-num_bytes // (1 << 20))
