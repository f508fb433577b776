"""The operations of vector_ops.VectorOps in plain torch, on any device: short, slow, and the oracle of the kernels."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues, SlotTensors


class TorchVectorOps:
    """VectorOps. Allocates, and waits for the device where it reads positions and ids: not for graphs."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        out.copy_(_normed(x, weight, eps))

    def rope_store(self, q: Tensor, k: Tensor, v: Tensor, form: HeadForm, position: Tensor, cache: KeyValues) -> None:
        keys, values, eps, clip = cache.keys, cache.values, form.eps, form.clip
        tokens, kv_heads, _, head_dim = len(q), *keys.shape
        positions = position + torch.arange(tokens, device=q.device)
        turns = (form.cos[positions], form.sin[positions], form.interleaved) if form.cos.shape[1] else None
        queries = _finished(q.view(tokens, -1, head_dim), form.q_norm, eps, clip, turns)
        new_keys = _finished(k.view(tokens, kv_heads, head_dim), form.k_norm, eps, clip, turns)
        q.copy_(queries.reshape(tokens, -1))
        keys[:, positions] = new_keys.transpose(0, 1).to(keys.dtype)
        values[:, positions] = _clipped(v, clip).view(tokens, kv_heads, head_dim).transpose(0, 1).to(values.dtype)

    def attend(
        self, q: Tensor, cache: KeyValues, position: Tensor, start: int, form: AttentionForm, out: Tensor
    ) -> None:
        keys, values, window, scale = cache.keys, cache.values, form.window, form.scale
        sinks, bias = form.sinks, form.bias
        tokens, (kv_heads, _, head_dim) = len(q), keys.shape
        first, num_heads = int(position), q.shape[1] // head_dim
        queries = q.view(tokens, kv_heads, -1, head_dim).to(keys.dtype).float()  # [tokens, kv_heads, group, D]
        for token in range(tokens):
            end = first + token + 1
            begin = end - 1 - (end - 1) % window if form.chunked else max(0, end - window) if window else 0
            end = end if form.ends is None else int(form.ends[token])
            seen = slice(begin, end)
            scores = scale * queries[token] @ keys[:, seen].float().transpose(1, 2)  # [kv_heads, group, seen]
            if bias is not None:
                heads = token * num_heads + torch.arange(num_heads, device=q.device).view(kv_heads, -1)
                back = end - 1 - torch.arange(end, device=q.device)[seen]
                near = back < bias.shape[1]
                scores[..., near] += bias[heads % len(bias)][..., back[near]]
            if form.cap:
                scores = form.cap * torch.tanh(scores / form.cap)
            if sinks is not None:
                of_token = sinks.view(-1, num_heads)[token % (sinks.numel() // num_heads)]
                scores = torch.cat([scores, of_token.view(kv_heads, -1, 1)], dim=-1)
            powers = scores.softmax(-1)[..., : keys[:, seen].shape[1]]
            out[token] = (powers @ values[:, seen].float()).reshape(-1)

    def softmax_topk(self, logits: Tensor, k: int, normalise: bool, ids: Tensor, weights: Tensor) -> None:
        bad = torch.where(logits.isnan().any(1, keepdim=True), torch.nan, 0.0)  # makes every weight of the row NaN
        logits = torch.where(logits.isnan(), -torch.inf, logits)
        largest = logits.amax(1, keepdim=True)
        powers = torch.exp(logits - torch.where(largest.isfinite(), largest, 0))  # nothing but NaN: all count alike
        best = powers.sort(dim=1, descending=True, stable=True)  # stable: ties stay in the order of their ids
        chosen = best.values[:, :k] / (powers.sum(1, keepdim=True) + bad)
        ids.copy_(best.indices[:, :k])
        weights.copy_(chosen / chosen.sum(1, keepdim=True) if normalise else chosen)

    def combine(self, pairs: Tensor, weights: Tensor, out: Tensor) -> None:
        tokens, k = weights.shape
        for choice in range(k):
            out += weights[:, choice, None] * pairs.view(tokens, k, -1)[:, choice]

    def claim(self, ids: Tensor, layer: int, table: SlotTensors, addresses: Tensor, copies: Tensor) -> None:
        wanted = [layer * table.num_experts + expert for expert in ids.tolist()]
        assert len(wanted) <= len(table.key_of), "every expert of the call needs a slot"
        copies.zero_()
        for choice, key in enumerate(wanted):
            slot = int(table.slot_of[key])
            if slot < 0:
                slot = _victim(table, layer, wanted)
                old = int(table.key_of[slot])
                if old >= 0:
                    table.slot_of[old] = -1
                table.key_of[slot], table.slot_of[key] = key, slot
                copies[choice, 0], copies[choice, 1] = table.host[key], table.slot_address[slot]
                table.misses[table.layer_class[layer]] += 1
            addresses[choice] = table.slot_address[slot]
        table.scores[wanted] = table.scores[wanted].maximum(table.scores[-1])

    def gather(self, copies: Tensor, num_bytes: int) -> None:
        for source, destination in copies.tolist():
            if source:
                memory_at(destination, num_bytes, copies.device).copy_(memory_at(source, num_bytes, copies.device))


def memory_at(address: int, num_bytes: int, device: torch.device) -> Tensor:
    """The bytes at an address that `device` sees, which has to outlive the tensor: uint8 [num_bytes]."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    memory = SimpleNamespace(
        __cuda_array_interface__={"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 2}
    )
    return torch.as_tensor(memory, device=device)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _clipped(x: Tensor, clip: float) -> Tensor:
    return x.clamp(-clip, clip) if clip else x


def _finished(
    heads: Tensor, norm: Tensor | None, eps: float, clip: float, turns: tuple[Tensor, Tensor, bool] | None
) -> Tensor:
    """heads [tokens, heads, D], normed, clipped and turned by cos, sin [tokens, rotary_dim / 2] (and: interleaved)."""
    if norm is not None:
        heads = _normed(heads, norm, eps)
    heads = _clipped(heads, clip)
    if turns is None:
        return heads.clone()
    cos, sin, interleaved = turns[0][:, None], turns[1][:, None], turns[2]
    turned, rest = heads[..., : 2 * cos.shape[-1]], heads[..., 2 * cos.shape[-1] :]
    left, right = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pairs = left * cos - right * sin, right * cos + left * sin
    turned = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
    return torch.cat([turned, rest], dim=-1)


def _victim(table: SlotTensors, layer: int, wanted: list[int]) -> int:
    """Of the layer's class the lowest empty slot, else of least score among those that hold nothing of `wanted`."""

    def score(key: int) -> float:
        ahead = key // table.num_experts - layer if table.step else 0
        return float(table.scores[key] - (ahead if ahead > 0 else ahead + table.step))

    slots = [each for each in enumerate(table.key_of.tolist()) if table.slot_class[each[0]] == table.layer_class[layer]]
    free = [slot for slot, key in slots if key < 0]
    if free:
        return free[0]
    return min((score(key), slot) for slot, key in slots if key not in wanted)[1]
