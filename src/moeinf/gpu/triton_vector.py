"""Triton kernels for what vector_ops.VectorOps says but attention: norms, heads, routing, slots, copies.

BLOCK is a power of two that covers the dimension it is named for; masks cut the rest. Pointers to caches and copies
are 64-bit offsets from their base, since a cache has more than 2^31 numbers.
"""

# Triton's language has Python's syntax alone: its functions take pointers and blocks, which have no types to write.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, out, eps, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row of COUNT; all is loaded before anything is stored, so out may be x."""
    start = tl.program_id(0).to(tl.int64) * COUNT
    at = tl.arange(0, BLOCK)
    inside = at < COUNT
    row = tl.load(x + start + at, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(row * row, axis=0) / COUNT + eps)
    tl.store(out + start + at, row * scale * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def _pairs(at, HALF: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Where in a head of 2 * HALF numbers the two of each pair lie: TURNED of them at its front, then, behind these,
    the rest, which no position turns."""
    if INTERLEAVED:
        return 2 * at, 2 * at + 1
    elif TURNED == HALF:
        return at, HALF + at
    else:
        return tl.where(at < TURNED, at, at + TURNED), tl.where(at < TURNED, at + TURNED, at + HALF)


@triton.jit
def _finished(left, right, norm, eps, cos, sin, first, second, inside, HALF: tl.constexpr, CLIP: tl.constexpr):
    """Head norm, clip and rotary positions of one head, given and returned as the two numbers of its pairs."""
    if norm is not None:
        scale = tl.rsqrt((tl.sum(left * left, axis=0) + tl.sum(right * right, axis=0)) / (2 * HALF) + eps)
        left = left * scale * tl.load(norm + first, mask=inside, other=0.0)
        right = right * scale * tl.load(norm + second, mask=inside, other=0.0)
    left, right = _clipped(left, CLIP), _clipped(right, CLIP)
    return left * cos - right * sin, right * cos + left * sin


@triton.jit
def _clipped(x, CLIP: tl.constexpr):
    if CLIP > 0:
        x = tl.minimum(tl.maximum(x, -CLIP), CLIP)
    return x


@triton.jit
def rope_store(
    q, k, v, q_norm, k_norm, cos, sin, position, keys, values, capacity, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
    CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a token and head: first the query heads, then the key/value heads. BLOCK covers half a head, the
    pairs; TURNED of these have positions."""
    token, head = tl.program_id(0), tl.program_id(1)
    at_position = tl.load(position) + token
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    first, second = _pairs(at, HALF, TURNED, INTERLEAVED)
    angles = at_position.to(tl.int64) * TURNED + at
    c = tl.load(cos + angles, mask=at < TURNED, other=1.0)
    s = tl.load(sin + angles, mask=at < TURNED, other=0.0)
    if head < HEADS:
        row = q + (token.to(tl.int64) * HEADS + head) * 2 * HALF
        left = tl.load(row + first, mask=inside, other=0.0)
        right = tl.load(row + second, mask=inside, other=0.0)
        left, right = _finished(left, right, q_norm, eps, c, s, first, second, inside, HALF, CLIP)
        tl.store(row + first, left, mask=inside)
        tl.store(row + second, right, mask=inside)
    else:
        kv_head = head - HEADS
        taken = (token.to(tl.int64) * KV_HEADS + kv_head) * 2 * HALF
        cell = (kv_head.to(tl.int64) * capacity + at_position) * 2 * HALF
        left = tl.load(k + taken + first, mask=inside, other=0.0)
        right = tl.load(k + taken + second, mask=inside, other=0.0)
        left, right = _finished(left, right, k_norm, eps, c, s, first, second, inside, HALF, CLIP)
        tl.store(keys + cell + first, left.to(keys.dtype.element_ty), mask=inside)
        tl.store(keys + cell + second, right.to(keys.dtype.element_ty), mask=inside)
        left = _clipped(tl.load(v + taken + first, mask=inside, other=0.0), CLIP)
        right = _clipped(tl.load(v + taken + second, mask=inside, other=0.0), CLIP)
        tl.store(values + cell + first, left.to(values.dtype.element_ty), mask=inside)
        tl.store(values + cell + second, right.to(values.dtype.element_ty), mask=inside)


@triton.jit
def softmax_topk(
    logits, ids, weights, NORMALISE: tl.constexpr, COUNT: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program a token. Each choice is one maximum over (bits of the power, inverted id) in 64 bits.

    A float's bits are in the order of its values where it is not negative; the inverted id lets the lowest win ties.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    logit = tl.load(logits + row * COUNT + at, mask=at < COUNT, other=-float("inf"))
    num_nan = tl.sum((logit != logit).to(tl.int32), axis=0)
    logit = tl.where(logit == logit, logit, -float("inf"))
    largest = tl.max(logit, axis=0)
    largest = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)  # nothing but NaN: all count alike
    power = tl.exp(logit - largest)
    total = tl.where(num_nan == 0, tl.sum(power, axis=0), float("nan"))  # every weight shows what the choice is worth
    order = (power.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (BLOCK - 1 - at)
    order = tl.where(at < COUNT, order, -1)
    choice = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.float32)
    chosen_ids = tl.zeros([BLOCK_K], tl.int32)
    for j in range(K):
        best = tl.max(order, axis=0)
        order = tl.where(order == best, -1, order)
        weight = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True) / total
        chosen = tl.where(choice == j, weight, chosen)
        chosen_ids = tl.where(choice == j, BLOCK - 1 - (best & 0xFFFFFFFF).to(tl.int32), chosen_ids)
    if NORMALISE:
        chosen = chosen / tl.sum(chosen, axis=0)
    tl.store(ids + row * K + choice, chosen_ids, mask=choice < K)
    tl.store(weights + row * K + choice, chosen, mask=choice < K)


@triton.jit
def combine(pairs, weights, out, COUNT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program a token and BLOCK of its COUNT numbers; the choices are added one after the other."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < COUNT
    total = tl.load(out + token * COUNT + at, mask=inside, other=0.0)
    for j in tl.static_range(K):
        output = tl.load(pairs + (token * K + j) * COUNT + at, mask=inside, other=0.0)
        total += tl.load(weights + token * K + j) * output
    tl.store(out + token * COUNT + at, total, mask=inside)


@triton.jit(do_not_specialize=["layer", "size_class"])  # or some would be compiled apart, maybe while capturing
def claim(
    ids, layer, num_experts, slot_of, key_of, slot_address, slot_class, host, scores, misses, addresses, copies,
    size_class, num_slots, num_keys, STEP: tl.constexpr, P: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program. Each victim is one minimum over (rank of its score in the order of floats, slot) in 64 bits."""
    choice = tl.arange(0, BLOCK_P)
    valid = choice < P
    key = layer * num_experts + tl.load(ids + choice, mask=valid, other=0)
    held = tl.load(slot_of + key, mask=valid, other=0)  # choices past P count as hits
    address = tl.load(slot_address + tl.maximum(held, 0), mask=valid, other=0)
    tl.store(addresses + choice, address, mask=valid & (held >= 0))
    tl.store(copies + 2 * choice, tl.zeros([BLOCK_P], tl.int64), mask=valid & (held >= 0))
    tl.store(copies + 2 * choice + 1, tl.zeros([BLOCK_P], tl.int64), mask=valid & (held >= 0))
    num_misses = tl.sum((held < 0).to(tl.int32), axis=0)
    if num_misses > 0:
        slot = tl.arange(0, BLOCK)
        old_key = tl.load(key_of + slot, mask=slot < num_slots, other=-1)
        score = tl.load(scores + tl.maximum(old_key, 0), mask=old_key >= 0, other=0.0)
        if STEP > 0:
            ahead = old_key // num_experts - layer
            score -= tl.where(ahead > 0, ahead, ahead + STEP).to(tl.float32)
        bits = score.to(tl.int32, bitcast=True)
        bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # negative floats: the larger their bits, the smaller
        order = (tl.where(old_key >= 0, bits, -0x80000000).to(tl.int64) << 32) | slot
        out_of_reach = 0x7FFFFFFFFFFFFFFF
        of_slot = tl.load(slot_class + slot, mask=slot < num_slots, other=-1)
        order = tl.where(of_slot == size_class, order, out_of_reach)
        for p in range(P):
            used = tl.sum(tl.where(choice == p, held, 0), axis=0)
            order = tl.where(slot == used, out_of_reach, order)  # a miss has -1, which no slot is
        # Nothing may be stored in the table before every thread has loaded its part of it.
        tl.debug_barrier()
        for p in range(P):
            if tl.sum(tl.where(choice == p, held, 0), axis=0) < 0:
                best = tl.min(order, axis=0)
                order = tl.where(order == best, out_of_reach, order)
                victim = (best & 0xFFFFFFFF).to(tl.int32)
                leaving = tl.load(key_of + victim)  # of no earlier turn: victims are distinct
                entering = tl.sum(tl.where(choice == p, key, 0), axis=0)
                destination = tl.load(slot_address + victim)
                tl.store(slot_of + leaving, -1, mask=leaving >= 0)
                tl.store(slot_of + entering, victim)
                tl.store(key_of + victim, entering)
                tl.store(addresses + p, destination)
                tl.store(copies + 2 * p, tl.load(host + entering))
                tl.store(copies + 2 * p + 1, destination)
        tl.store(misses + size_class, tl.load(misses + size_class) + num_misses)
    raised = tl.maximum(tl.load(scores + key, mask=valid, other=0.0), tl.load(scores + num_keys))
    tl.store(scores + key, raised, mask=valid)


@triton.jit
def gather(copies, NUM_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Programs [rows of copies, several]: each moves every several-th piece of BLOCK 8-byte words of its row."""
    source = tl.load(copies + 2 * tl.program_id(0))
    if source != 0:
        destination = tl.load(copies + 2 * tl.program_id(0) + 1)
        # The hint is what makes the loads and stores 16 bytes wide: nothing else tells how the addresses are aligned.
        read = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
        write = tl.multiple_of(destination.to(tl.pointer_type(tl.int64)), 16)
        for piece in range(tl.program_id(1), NUM_WORDS // BLOCK, tl.num_programs(1)):
            at = piece * BLOCK + tl.arange(0, BLOCK)
            tl.store(write + at, tl.load(read + at, cache_modifier=".cg"))  # read once: no room in L1 for it
