"""What a device computes on hidden states besides matrix products, and the slot table that lies on the device.

Hidden states are contiguous float32 tensors [tokens, hidden]. Every operation writes into tensors that it is given,
does not wait for the device, and for up to MAX_ROWS tokens allocates nothing and can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moeinf.gpu.matrix import LAUNCH, MAX_ROWS
from moeinf.types import IntArray

MASK_ELEMENTS: Final = 1 << 25  # of the mask of one block of queries in prefill: 32 MiB, and 64 MiB as 16-bit bias
ATTENTION_SUMS: Final = 16 << 10  # that one program of decode adds up
QUERY_BLOCK: Final = 1024  # more queries at once save nothing: the mask alone grows
GATHER_ALIGN_BYTES: Final = 4096  # blocks of experts are a whole number of these


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """The slot table of device-resident decode: which expert lies in which slot, changed by `claim` alone.

    A key is layer * num_experts + expert. The host refreshes `scores` off the critical path, once a token: the least,
    less the layers until the key's own comes again, is evicted.
    """

    slot_of: Tensor  # int32 [layers * experts]: slot of each key, -1 where absent
    key_of: Tensor  # int32 [slots]: key in each slot, -1 where empty
    slot_address: Tensor  # int64 [slots]: on the device
    slot_class: Tensor  # int32 [slots]: the class of each slot's size
    host: Tensor  # int64 [layers * experts]: address of each expert in mapped, pinned host memory
    scores: Tensor  # f32 [layers * experts + 1]; the last: what the score of a key rises to that `claim` is asked for
    misses: Tensor  # int64 [classes]: counted since the host last set them
    num_experts: int  # of one layer
    step: int  # layers that a token visits, for the distance; 0: there is none
    layer_class: Sequence[int]  # of the slots that each layer's experts may have


@dataclass(frozen=True, slots=True)
class HeadForm:
    """What is done with the heads of a layer before its keys and values are stored, in this order.

    q and k get the rms norm of each head by the weights q_norm and k_norm, f32 [D]; q, k and v are clipped to
    -clip..clip (0: they are not); cos and sin, f32 [capacity, R / 2], rotate the first R numbers of each head of q and
    k (R may be 0), in pairs (i, i + R / 2), or interleaved, (2 i, 2 i + 1).
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 0.0
    clip: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The cache of a layer: keys and values [kv_heads, capacity, D], both f32, f16 or bf16."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How a token attends to the positions up to its own: to the last `window` of them (0: to all).

    chunked: instead of these to those in its own one of the chunks of `window` positions.

    sinks f32 [heads]: a further score, whose weight goes nowhere (arXiv 2309.17453; per head as in gpt-oss); for at
    most MAX_ROWS tokens also [tokens * heads], of each token.
    bias f32 [n, extent], for at most MAX_ROWS tokens: added to the scores, indexed by how many positions back a key
    lies; nothing is from `extent` on. Of head h it is row h % n, n a divisor of the heads, or n is tokens * heads.
    ends int64 [tokens], on the host: token t sees the positions before ends[t], of which some may be behind its own, as
    those of a picture are. In place of what VectorOps.attend says; not for work that is captured.
    cap, for at most MAX_ROWS tokens: scores s become cap * tanh(s / cap); 0: they stay.
    """

    scale: float
    window: int = 0
    sinks: Tensor | None = None
    bias: Tensor | None = None
    chunked: bool = False
    ends: IntArray | None = None
    cap: float = 0.0


class VectorOps(Protocol):
    """Has two implementations: TritonVectorOps, and tests/oracles/torch_vector.py to compare it with."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out = x / rms(x) * weight of each row. x, out f32 [tokens, hidden], weight f32 [hidden]; out may be x."""
        ...

    def rope_store(self, q: Tensor, k: Tensor, v: Tensor, form: HeadForm, position: Tensor, cache: KeyValues) -> None:
        """Finishes the heads of a layer as `form` says, and stores keys and values; of k and v the cache alone changes.

        q f32 [tokens, heads * D], in place; k, v f32 [tokens, kv_heads * D]; position int32 [1]: of the first token.
        """
        ...

    def attend(
        self, q: Tensor, cache: KeyValues, position: Tensor, start: int, form: AttentionForm, out: Tensor
    ) -> None:
        """Causal attention: token t sees the positions up to position + t, as far as `form` lets it.

        q, out f32 [tokens, heads * D]; cache as rope_store left it. q is rounded to the cache's type; for up to
        MAX_ROWS tokens scores and sums are f32, and a token's result does not depend on the others of the call. Beyond,
        and with `form.ends`, the result may be rounded to the type of the cache. `start` is position on the host, used
        only there.
        """
        ...

    def softmax_topk(self, logits: Tensor, k: int, normalise: bool, ids: Tensor, weights: Tensor) -> None:
        """The k largest of the softmax of each row, best first, ties to the lowest id; a NaN counts as the smallest.

        logits f32 [tokens, experts]; ids int32 [tokens, k], weights f32 [tokens, k]; normalise: they sum to 1.
        """
        ...

    def combine(self, pairs: Tensor, weights: Tensor, out: Tensor) -> None:
        """out [tokens, hidden] += weights [tokens, k] times the outputs of the token-expert pairs, one after the other.

        pairs [tokens * k, hidden]: these outputs.
        """
        ...

    def claim(self, ids: Tensor, layer: int, table: SlotTensors, addresses: Tensor, copies: Tensor) -> None:
        """Gives each of the distinct experts `ids` (int32 [P], of a layer) a slot, and says what has to be copied.

        addresses int64 [P]: of the slots. copies int64 [P, 2]: source in host memory and destination, (0, 0) where the
        expert is resident. Victims are, of the layer's class, the lowest empty slots, then the slots of least score
        (ties: the lowest) that this call does not use; the class must have at least P slots. The score of a
        key of layer j counts less j - layer where that is positive, else less j - layer + step. For decode: P is at
        most a few dozen.
        """
        ...

    def gather(self, copies: Tensor, num_bytes: int) -> None:
        """Copies num_bytes, a multiple of 4096, for each row (source, destination) of copies int64 [P, 2] but source 0.

        Addresses are those that the device sees (mapped, pinned memory for the sources), on 16-byte borders.
        """
        ...


class TritonVectorOps:
    """VectorOps in Triton kernels, on the current CUDA device (or anywhere in Triton's interpreter).

    Buffers for attention are made at the first call with heads of a new shape, which must not be a captured one.
    attention_programs: for one token, rounded up; 256 keep all parts of a large device busy, less suit an interpreter.
    """

    def __init__(self, attention_programs: int = 256) -> None:
        # Here, since only torch builds with CUDA bring triton along, and everyone imports the protocol.
        from moeinf.gpu import triton_attention, triton_vector

        self._vector, self._attention = triton_vector, triton_attention
        self._programs = attention_programs
        self._partial: dict[tuple[torch.device, int, int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        tokens, hidden = x.shape
        block = _power_of_two(hidden)
        self._vector.rms_norm[(tokens,)](
            x, weight, out, eps, COUNT=hidden, BLOCK=block, num_warps=_warps(block), **LAUNCH
        )

    def rope_store(self, q: Tensor, k: Tensor, v: Tensor, form: HeadForm, position: Tensor, cache: KeyValues) -> None:
        kv_heads, capacity, head_dim = cache.keys.shape
        heads, half, turned = q.shape[1] // head_dim, head_dim // 2, form.cos.shape[1]
        if head_dim % 2:
            store_odd_heads(q, k, v, form, position, cache)
            return
        self._vector.rope_store[(len(q), heads + kv_heads)](
            q,
            k,
            v,
            form.q_norm,
            form.k_norm,
            form.cos,
            form.sin,
            position,
            cache.keys,
            cache.values,
            capacity,
            form.eps,
            HEADS=heads,
            KV_HEADS=kv_heads,
            HALF=half,
            TURNED=turned,
            INTERLEAVED=form.interleaved and turned > 0,
            CLIP=form.clip,
            BLOCK=_power_of_two(half),
            num_warps=1,
            **LAUNCH,
        )

    def attend(
        self, q: Tensor, cache: KeyValues, position: Tensor, start: int, form: AttentionForm, out: Tensor
    ) -> None:
        keys, values, bias = cache.keys, cache.values, form.bias
        tokens, (kv_heads, capacity, head_dim) = len(q), keys.shape
        if tokens > MAX_ROWS or form.ends is not None:
            assert bias is None and not form.cap, "biases and caps are for a few tokens"
            attend_many(q, cache, start, form, out)
            return
        heads = q.shape[1] // head_dim
        cut = _attention_blocks(heads, kv_heads, head_dim, keys.itemsize, self._programs)
        block_d, block_g, block_n, programs, splits = cut
        shape = {"WINDOW": form.window, "CHUNKED": form.chunked, "SPLITS": splits, "BLOCK_N": block_n}
        partial = self._buffers(q.device, heads, splits, head_dim)
        self._attention.attend_split[(tokens * programs, splits)](
            q,
            keys,
            values,
            bias,
            position,
            *partial,
            capacity,
            0 if bias is None else bias.shape[1],
            form.scale,
            HEADS=heads,
            KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_G=block_g,
            BLOCK_D=block_d,
            STEP_D=block_d if block_d * keys.itemsize <= 2048 else 128,  # of more, 1024 floats spilled
            BIASES=1 if bias is None else len(bias),
            CAP=form.cap,
            WIDEN=self._attention.INTERPRETED and keys.dtype == torch.bfloat16,
            **shape,
            num_warps=8 if 2 * block_g * block_d >= ATTENTION_SUMS or keys.dtype == torch.float32 else 4,
            num_stages=1 if block_d > 256 else 2,
            **LAUNCH,
        )
        piece = min(64, block_d)
        self._attention.attend_merge[(tokens * heads, -(-head_dim // piece))](
            *partial,
            position,
            form.sinks,
            out,
            HEADS=heads,
            HEAD_DIM=head_dim,
            BLOCK_D=piece,
            SINKS=1 if form.sinks is None else form.sinks.numel(),
            **shape,
            **LAUNCH,
        )

    def softmax_topk(self, logits: Tensor, k: int, normalise: bool, ids: Tensor, weights: Tensor) -> None:
        tokens, experts = logits.shape
        self._vector.softmax_topk[(tokens,)](
            logits,
            ids,
            weights,
            NORMALISE=normalise,
            COUNT=experts,
            K=k,
            BLOCK=_power_of_two(experts),
            BLOCK_K=_power_of_two(k),
            num_warps=1,  # of one warp: maxima without a round through shared memory
            **LAUNCH,
        )

    def combine(self, pairs: Tensor, weights: Tensor, out: Tensor) -> None:
        tokens, hidden = out.shape
        block = 256
        self._vector.combine[(tokens, -(-hidden // block))](
            pairs, weights, out, COUNT=hidden, K=weights.shape[1], BLOCK=block, num_warps=2, **LAUNCH
        )

    def claim(self, ids: Tensor, layer: int, table: SlotTensors, addresses: Tensor, copies: Tensor) -> None:
        num_slots = len(table.key_of)
        assert len(ids) <= num_slots, "every expert of the call needs a slot"
        block = max(32, _power_of_two(num_slots))
        self._vector.claim[(1,)](
            ids,
            layer,
            table.num_experts,
            table.slot_of,
            table.key_of,
            table.slot_address,
            table.slot_class,
            table.host,
            table.scores,
            table.misses,
            addresses,
            copies,
            table.layer_class[layer],
            num_slots,
            len(table.slot_of),
            STEP=table.step,
            P=len(ids),
            BLOCK_P=_power_of_two(len(ids)),
            BLOCK=block,
            num_warps=_warps(block),
            **LAUNCH,
        )

    def gather(self, copies: Tensor, num_bytes: int) -> None:
        assert num_bytes % GATHER_ALIGN_BYTES == 0, "blocks are a whole number of 4 KiB"
        # 64 programs with 4 KiB under way each are several times what a link holds in flight; idle ones cost nothing.
        programs = min(64, num_bytes // GATHER_ALIGN_BYTES)
        self._vector.gather[(len(copies), programs)](
            copies, NUM_WORDS=num_bytes // 8, BLOCK=GATHER_ALIGN_BYTES // 8, **LAUNCH
        )

    def _buffers(self, device: torch.device, heads: int, splits: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted sums of values, maxima and sums of powers of each share; layers take turns with them."""
        key = device, heads, splits, head_dim
        if key not in self._partial:
            rows = MAX_ROWS * heads
            mixed = torch.empty((rows, splits, head_dim), dtype=torch.float32, device=device)
            self._partial[key] = mixed, mixed.new_empty((rows, splits)), mixed.new_empty((rows, splits))
        return self._partial[key]


def _attention_blocks(heads: int, kv_heads: int, head_dim: int, itemsize: int, wanted: int) -> tuple[int, ...]:
    """How attention is cut: numbers of a head, heads and positions of a block; programs a token; splits to be merged.

    itemsize: of the numbers in the cache; wanted: programs that keep the device busy.
    """
    block_d = max(16, _power_of_two(head_dim))
    # What heads share a program's loads: 16 of 1024 numbers fill the registers of its 256 threads.
    block_g = max(16, min(_power_of_two(heads // kv_heads), ATTENTION_SUMS // block_d))
    # Of keys and of values 16 KiB a block, twice since the next is loaded meanwhile: what any card has room for.
    # A product takes 16 heads and 16 positions at least: Triton before 3.5 has no smaller ones.
    block_n = max(16, min(64, (16 << 10) // (block_d * itemsize)))
    programs = kv_heads * -(-heads // kv_heads // block_g)
    splits = min(64, _power_of_two(-(-wanted // programs)))  # so few are cheap to merge
    return block_d, block_g, block_n, programs, splits


def attend_many(q: Tensor, cache: KeyValues, start: int, form: AttentionForm, out: Tensor) -> None:
    """VectorOps.attend for prefill, by torch's kernels in the cache's type; out is rounded to it.

    In one piece where the whole of it is a causal square, else in blocks of queries with a mask of at most
    MASK_ELEMENTS. What query heads share is broadcast, not copied: [kv_heads, group, positions, D] with a stride of 0.
    Sinks are one more key in front of the others, with a value of 0, and one more query, so that a square stays one.
    """
    keys, values, window, sinks, scale = cache.keys, cache.values, form.window, form.sinks, form.scale
    tokens, (kv_heads, _, head_dim) = len(q), keys.shape
    queries = q.view(tokens, kv_heads, -1, head_dim).permute(1, 2, 0, 3).to(keys.dtype)
    outs = out.view(tokens, kv_heads, -1, head_dim).permute(1, 2, 0, 3)

    def attend(block: slice, seen: slice, mask: Tensor | None) -> None:
        shape = (-1, queries.shape[1], -1, -1)
        wanted, k, v = queries[:, :, block], keys[:, None, seen].expand(shape), values[:, None, seen].expand(shape)
        if sinks is not None:
            wanted, k, v = _with_sinks(wanted, keys[:, seen], values[:, seen], sinks / scale)
            k, v = k[:, None].expand(shape), v[:, None].expand(shape)
            mask = None if mask is None else torch.nn.functional.pad(mask, (1, 0, 1, 0), value=True)
        # Only kernels that take strides of 0; those of cuDNN are not known to.
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            mixed = torch.nn.functional.scaled_dot_product_attention(
                wanted, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
            )
        outs[:, :, block] = mixed if sinks is None else mixed[:, :, 1:, :head_dim]

    if start == 0 and not 0 < window < tokens and form.ends is None:
        attend(slice(0, tokens), slice(0, tokens), None)
        return
    size = max(1, min(QUERY_BLOCK, MASK_ELEMENTS // (start + tokens)))
    for first in range(0, tokens, size):
        last = min(first + size, tokens)
        row = start + first
        begin = row - row % window if form.chunked else max(0, row - window + 1) if window else 0
        rows = torch.arange(row, start + last, device=q.device)[:, None]
        ends, end = rows + 1, start + last
        if form.ends is not None:
            ends, end = torch.from_numpy(form.ends[first:last]).to(q.device)[:, None], int(form.ends[first:last].max())
        seen = torch.arange(begin, end, device=q.device)
        mask = seen < ends
        if form.chunked:
            mask &= seen >= rows - rows % window
        elif window:
            mask &= seen > rows - window
        attend(slice(first, last), slice(begin, end), mask)


def _with_sinks(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [kv_heads, group, n, D], keys and values [kv_heads, positions, D], with the sinks as a further key.

    All become longer by one position, in front, and by 8 numbers (a multiple, as torch's kernels ask for). In two of
    these a query meets the first key alone, with the product `sinks` [heads]: as a sum of two numbers of the cache's
    type, since one would have too few bits.
    """
    kv_heads, group, _, head_dim = queries.shape
    pad = torch.nn.functional.pad
    queries, keys, values = pad(queries, (0, 8, 1, 0)), pad(keys, (0, 8, 1, 0)), pad(values, (0, 8, 1, 0))
    high = sinks.to(queries.dtype)
    queries[..., head_dim] = high.view(kv_heads, group, 1)
    queries[..., head_dim + 1] = (sinks - high.float()).to(queries.dtype).view(kv_heads, group, 1)
    keys[:, 0, head_dim : head_dim + 2] = 1
    return queries, keys, values


def store_odd_heads(q: Tensor, k: Tensor, v: Tensor, form: HeadForm, position: Tensor, cache: KeyValues) -> None:
    """VectorOps.rope_store of heads that have no pairs: no position turns them, and no family norms them."""
    assert form.cos.shape[1] == 0 and form.q_norm is None and form.k_norm is None
    if form.clip > 0:
        q.clamp_(-form.clip, form.clip)
    kv_heads, _, head_dim = cache.keys.shape
    places = position.long() + torch.arange(len(q), device=q.device)
    for rows, kept in ((k, cache.keys), (v, cache.values)):
        rows = rows.clamp(-form.clip, form.clip) if form.clip > 0 else rows
        kept.index_copy_(1, places, rows.view(-1, kv_heads, head_dim).transpose(0, 1).to(kept.dtype))


def _power_of_two(count: int) -> int:
    """Returns the least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def _warps(block: int) -> int:
    """Returns the warps of a program over `block` numbers: a thread takes eight, as far as that goes."""
    return min(16, max(1, block // 256))
