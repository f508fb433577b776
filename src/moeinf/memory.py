"""How the memory that this process may use is divided: dense weights, KV cache, activations, expert slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig, parse_size
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.types import ExpertLayout, ModelInfo, MoeShape

ATTENTION_TOKENS = 128  # of a prompt that attention takes at once (kernels/attention.cc)
ATTENTION_ROWS = 128  # queries whose scores a thread holds (kernels/attend_many.cc)
EXPERT_PLACES = 512  # whose intermediates exist at once (kernels/experts.cc)
MIN_CHUNK = 64  # what the prefill chunk is never shortened below for want of memory
MIN_CONTEXT = 512  # what an automatic context is never shortened below
OVERHEAD_BYTES = 64 << 20  # allocator, libraries and the tokenizer's process, still to be touched after this point


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
    prefill_chunk: int  # tokens
    num_slots: int
    slot_bytes: int

    @property
    def cache_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.cache_bytes


def activation_bytes(demands: Demands, chunk: int, context: int, num_threads: int) -> int:
    """Upper estimate of the working memory of a prefill chunk, all float32 but where the kernels prepare inputs."""
    info, moe, hidden = demands.info, demands.moe, demands.info.hidden_size
    width = 4 if info.dtype != "bf16" else 2  # of a prepared input
    state = chunk * hidden * (2 * 4 + width)  # hidden state, its norm
    projected = min(chunk, ATTENTION_TOKENS) * 8 * hidden * 4  # norm, queries, keys, values, mixture, output
    attended = num_threads * ATTENTION_ROWS * context * (4 + width)  # scores, twice
    attended += context * info.kv_bytes_per_token // info.num_layers  # values of a layer, transposed
    intermediate = max((spec.shape[0] for spec in demands.layout.tensors[:-1]), default=0)
    experts = chunk * moe.top_k * hidden * (4 + width)  # outputs and inputs of every place
    experts += min(chunk * moe.top_k, max(chunk, EXPERT_PLACES)) * intermediate * (4 + width)
    return state + projected + attended + experts + info.vocab_size * 8


def plan_memory(demands: Demands, config: RuntimeConfig, machine: Machine) -> MemoryPlan:
    """Reserves dense, KV at the context and activations first; the rest is expert slots, unless told otherwise.

    Where top_k slots do not fit, the prefill chunk is shortened, then a context that was not asked for.

    Raises OutOfMemoryError with the shortfall and the remedies, UsageError for a size or context that cannot be meant.
    """
    info, moe, stride = demands.info, demands.moe, demands.layout.stride_bytes
    context = _wanted_context(info, config)
    chunk = min(config.prefill_chunk, context)
    while True:
        activations = activation_bytes(demands, chunk, context, config.threads or machine.cores)
        kv_bytes = context * info.kv_bytes_per_token
        fixed = MemoryPlan(demands.dense_bytes, kv_bytes, activations, context, chunk, 0, stride)
        room = machine.available_bytes - fixed.total_bytes - OVERHEAD_BYTES
        if room >= moe.top_k * stride:
            break
        if chunk > MIN_CHUNK:  # prompts take longer, but nothing is lost
            chunk = max(MIN_CHUNK, chunk // 2)
        elif config.context is None and context > MIN_CONTEXT:
            context = max(MIN_CONTEXT, context // 2)
        else:
            break
    plan = replace(fixed, num_slots=_wanted_slots(moe, stride, config, room))
    if plan.total_bytes + OVERHEAD_BYTES > machine.available_bytes:
        raise _shortfall(plan, machine)
    return plan


def smallest_bytes(demands: Demands, num_threads: int) -> int:
    """The least memory that the model runs in, the process itself not counted: top_k slots, MIN_CONTEXT tokens."""
    info, moe = demands.info, demands.moe
    context = min(MIN_CONTEXT, info.context_length)
    activations = activation_bytes(demands, min(MIN_CHUNK, context), context, num_threads)
    kv_bytes, cache_bytes = context * info.kv_bytes_per_token, moe.top_k * demands.layout.stride_bytes
    return demands.dense_bytes + kv_bytes + OVERHEAD_BYTES + activations + cache_bytes


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
