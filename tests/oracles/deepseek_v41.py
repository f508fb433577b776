"""DeepSeek-V4.1's language model in plain torch, without a cache, as no released transformers has it.

Written from how transformers' source has it (models/deepseek_v41, October 2026); nothing of moeinf is used. Rounding is
by torch's own types of floats.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference

_FOUR_BITS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def power_above(x: Tensor) -> Tensor:
    """2 ** ceil(log2 x), by the bits of x."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).int()
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent).float()


def to_four_bits(x: Tensor) -> Tensor:
    """The nearest of the values, of two that are as near the one whose number is even."""
    far = (x.abs()[..., None].double() - _FOUR_BITS.double()).abs()
    first, second = far.sort(stable=True, dim=-1).indices[..., :2].unbind(-1)
    tied = far.gather(-1, first[..., None]) == far.gather(-1, second[..., None])
    number = torch.where(tied[..., 0] & (first % 2 == 1), second, first)
    return torch.copysign(_FOUR_BITS[number], x)


def in_blocks(x: Tensor, size: int) -> Tensor | None:
    return x.unflatten(-1, (-1, size)) if x.shape[-1] % size == 0 else None


def window_row(x: Tensor) -> Tensor:
    blocks = in_blocks(x, 32)
    if blocks is None:
        return x
    scale = power_above(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448))
    return ((blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def entry(x: Tensor) -> Tensor:
    blocks = in_blocks(x, 16)
    if blocks is None:
        return x
    scale = (blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9) / 6).to(torch.float8_e4m3fn).float()
    return (to_four_bits((blocks / scale).clamp(-6, 6)) * scale).flatten(-2)


def index_key(x: Tensor) -> Tensor:
    blocks = in_blocks(x, 32)
    if blocks is None:
        return x
    scale = power_above(blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / 6))
    return (to_four_bits((blocks / scale).clamp(-6, 6)) * scale).flatten(-2)


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


class Positions:
    """Pairs of neighbours at the end of a head; yarn where layers see entries."""

    def __init__(self, config: dict[str, Any], *, of_entries: bool) -> None:
        size, theta = config["qk_rope_head_dim"], config["compress_rope_theta" if of_entries else "rope_theta"]
        places = torch.arange(0, size, 2, dtype=torch.float32)
        self.size, self.frequencies = size, 1.0 / theta ** (places / size)
        yarn = config.get("rope_scaling")
        if of_entries and yarn:
            trained = yarn["original_max_position_embeddings"]

            def pair(turns: float) -> float:
                turned: float = size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
                return turned

            low, high = math.floor(pair(yarn["beta_fast"])), math.ceil(pair(yarn["beta_slow"]))
            low, high = max(low, 0), min(high, size - 1)
            kept = 1 - ((torch.arange(size // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
            self.frequencies = self.frequencies * kept + self.frequencies / yarn["factor"] * (1 - kept)

    def turned(self, x: Tensor, at: Tensor, *, back: bool = False) -> Tensor:
        """x [tokens, ..., head_dim]."""
        angles = at.float()[:, None] * self.frequencies
        angles = angles.view(len(x), *(1,) * (x.dim() - 2), -1)
        cos, sin = angles.cos(), angles.sin() * (-1 if back else 1)
        front, end = x[..., : -self.size], x[..., -self.size :]
        even, odd = end[..., ::2], end[..., 1::2]
        return torch.cat([front, torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)], -1)


class Compressor(nn.Module):
    def __init__(self, config: dict[str, Any], rate: int) -> None:
        super().__init__()
        self.rate, hidden, size = rate, config["hidden_size"], config["head_dim"]
        self.wkv = linear(hidden, size)
        if rate > 1:
            self.wgate = linear(hidden, size)
        self.norm = Norm(size, config["rms_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        whole = x[: len(x) // self.rate * self.rate]
        made = self.wkv(whole)
        if self.rate > 1:
            gates = self.wgate(whole).unflatten(0, (-1, self.rate)).softmax(1)
            made = (made.unflatten(0, (-1, self.rate)) * gates).sum(1)
        result: Tensor = self.norm(made)
        return result


class Indexer(nn.Module):
    def __init__(self, config: dict[str, Any], layer: int) -> None:
        super().__init__()
        heads, size = config["index_n_heads"], config["index_head_dim"]
        self.heads, self.size, self.layer, self.config = heads, size, layer, config
        self.wq_b = linear(config["q_lora_rank"], heads * size)
        self.weights_proj = linear(config["hidden_size"], heads)
        if layer in config["kv_source_layer_ids"]:
            self.wk = linear(config["head_dim"], size)
            self.k_norm = Norm(size, config["rms_norm_eps"])

    def forward(self, x: Tensor, compressed: Tensor, rope: Positions, rate: int, shared: dict[str, Any]) -> None:
        """Leaves which entries each token sees, and candidates."""
        tokens, config = torch.arange(len(x)), self.config
        queries = index_key(rope.turned(self.wq_b(compressed).unflatten(-1, (self.heads, self.size)), tokens))
        scores = torch.einsum("qhd,kd->qkh", queries, shared["keys"]).relu() * self.size**-0.5
        scores = (scores * (self.weights_proj(x) * self.heads**-0.5)[:, None]).sum(-1)
        seen = (tokens + 1) // rate
        numbers = torch.arange(scores.shape[1])
        scores = scores.masked_fill(numbers >= seen[:, None], -math.inf)
        source = config["candidate_source_layer_id"]
        if self.layer == source:
            size = config["candidate_block_size"]
            blocks = F.pad(scores, (0, -scores.shape[1] % size), value=-math.inf).unflatten(-1, (-1, size)).amax(-1)
            blocks[torch.arange(blocks.shape[1]) == (seen[:, None] - 1) // size] = math.inf
            kept = first(blocks, config["candidate_topk_blocks"])
            shared["candidates"] = kept.repeat_interleave(size, 1)[:, : scores.shape[1]]
        elif 0 <= source < self.layer:
            scores = scores.masked_fill(~shared["candidates"], -math.inf)
        shared["chosen"] = first(scores, config["index_topk"])


def first(scores: Tensor, count: int) -> Tensor:
    """Whether each is one of the best of its row, of equals the first."""
    order = scores.sort(stable=True, dim=-1, descending=True)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    return chosen.scatter(-1, order.indices[:, :count], order.values[:, :count] > -math.inf)


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any], layer: int) -> None:
        super().__init__()
        hidden, heads, size = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
        self.heads, self.size, self.window = heads, size, config["sliding_window"]
        self.groups, eps, rank = config["o_groups"], config["rms_norm_eps"], config["q_lora_rank"]
        self.rate = config["compress_ratios"][layer]
        self.rope = Positions(config, of_entries=self.rate > 0)
        self.wq_a, self.q_norm, self.wq_b = linear(hidden, rank), Norm(rank, eps), linear(rank, heads * size)
        self.wkv, self.kv_norm = linear(hidden, size), Norm(size, eps)
        self.wo_a = linear(heads * size // self.groups, self.groups * config["o_lora_rank"])
        self.wo_b = linear(self.groups * config["o_lora_rank"], hidden)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.compressor = Compressor(config, self.rate) if layer in config["kv_source_layer_ids"] else None
        self.indexer = Indexer(config, layer) if layer in config["index_source_layer_ids"] else None

    def forward(self, x: Tensor, shared: dict[str, Any]) -> Tensor:
        tokens = torch.arange(len(x))
        compressed = self.q_norm(self.wq_a(x))
        queries = self.rope.turned(self.wq_b(compressed).unflatten(-1, (self.heads, self.size)), tokens)
        rows = window_row(self.rope.turned(self.kv_norm(self.wkv(x)), tokens))
        back = tokens[:, None] - tokens
        sees = (back >= 0) & (back < self.window)
        if self.rate:
            if self.compressor is not None:
                made = self.compressor(x)
                places = torch.arange(len(made)) * self.rate
                assert self.indexer is not None
                shared["keys"] = index_key(self.rope.turned(self.indexer.k_norm(self.indexer.wk(made)), places))
                shared["entries"] = entry(self.rope.turned(made, places))
            if self.indexer is not None:
                self.indexer(x, compressed, self.rope, self.rate, shared)
            rows, sees = torch.cat([rows, shared["entries"]]), torch.cat([sees, shared["chosen"]], 1)
        scores = torch.einsum("qhd,kd->hqk", queries, rows) * self.size**-0.5
        scores = scores.masked_fill(~sees, -math.inf)
        scores = torch.cat([scores, self.attn_sink[:, None, None].expand(-1, len(x), 1)], -1)
        mixed = torch.einsum("hqk,kd->qhd", scores.softmax(-1)[..., :-1], rows)
        mixed = self.rope.turned(mixed, tokens, back=True).reshape(len(x), self.groups, -1)
        weights = self.wo_a.weight.unflatten(0, (self.groups, -1))
        result: Tensor = self.wo_b(torch.einsum("tgd,grd->tgr", mixed, weights).flatten(1))
        return result


class Mlp(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, size = config["hidden_size"], config["moe_intermediate_size"]
        self.w1, self.w2, self.w3 = linear(hidden, size), linear(size, hidden), linear(hidden, size)
        self.limit = config["swiglu_limit"]

    def forward(self, x: Tensor) -> Tensor:
        up = self.w3(x).clamp(-self.limit, self.limit)
        result: Tensor = self.w2(F.silu(self.w1(x).clamp(max=self.limit)) * up)
        return result


class Moe(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.top_k, self.scale, count = (
            config["num_experts_per_tok"],
            config["routed_scaling_factor"],
            config["n_routed_experts"],
        )
        self.gate = linear(config["hidden_size"], count)
        for name in ("bias", "bias_vl") if config.get("sees") else ("bias",):
            self.gate.register_parameter(name, nn.Parameter(torch.zeros(count)))
        self.experts = nn.ModuleList(Mlp(config) for _ in range(count))
        self.shared_experts = Mlp(config)

    def forward(self, x: Tensor, pictures: Tensor) -> Tensor:
        """pictures: whether each row is of one."""
        scores = F.softplus(x @ self.gate.weight.T).sqrt()
        gate: Any = self.gate
        bias = torch.where(pictures[:, None], gate.bias_vl, gate.bias) if pictures.any() else gate.bias
        chosen = (scores + bias).topk(self.top_k).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale
        spread = torch.zeros_like(scores).scatter(1, chosen, weights)
        routed = sum(spread[:, i, None] * expert(x) for i, expert in enumerate(self.experts))
        result: Tensor = routed + self.shared_experts(x)
        return result


class Hashes:
    """The rows of the tables that n-grams choose."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.size, heads, layers = config["engram_max_ngram_size"], config["engram_n_heads"], config["engram_layer_ids"]
        self.map, least = config["engram_token_map"], config["engram_vocab_size"]
        found = (n for n in itertools.count(least) if all(n % d for d in range(2, math.isqrt(n) + 1)))
        self.primes = [[[next(found) for _ in range(heads)] for _ in range(self.size - 1)] for _ in layers]
        bound = max(1, (np.iinfo(np.int64).max // config["engram_compressed_vocab_size"]) // 2)
        self.multipliers = [
            np.random.default_rng(10007 * i).integers(low=0, high=bound, size=(self.size,), dtype=np.int64) * 2 + 1
            for i in layers
        ]
        self.pad = self.map[config["engram_pad_token_id"]]

    def rows(self, table: int, ids: list[int], pictures: list[bool]) -> Tensor:
        """pictures: whether each token is of one, from which on n-grams have nothing but pads."""
        kinds, found = [self.map[token] for token in ids], []
        for place in range(len(ids)):
            mixed, start, row = kinds[place] * int(self.multipliers[table][0]), 0, []
            blocked = pictures[place]
            for back in range(1, self.size):
                blocked = blocked or place < back or pictures[place - back]
                token = self.pad if blocked else kinds[place - back]
                mixed ^= token * int(self.multipliers[table][back])
                for prime in self.primes[table][back - 1]:
                    row.append(mixed % prime + start)
                    start += prime
            found.append(row)
        return torch.tensor(found)


class Engram(nn.Module):
    def __init__(self, config: dict[str, Any], table: int) -> None:
        super().__init__()
        self.hidden, self.count, self.eps = config["hidden_size"], config["hc_mult"], config["rms_norm_eps"]
        size, columns = config["engram_head_dim"], (config["engram_max_ngram_size"] - 1) * config["engram_n_heads"]
        self.embed = nn.Embedding(config["engram_num_embeddings"][table], size)
        self.wkv = linear(columns * size, self.hidden * (self.count + 1))
        self.q_weight = nn.Parameter(torch.ones(self.count, self.hidden))
        self.k_weight = nn.Parameter(torch.ones(self.count, self.hidden))

    def forward(self, streams: Tensor, rows: Tensor) -> Tensor:
        both = self.wkv(self.embed(rows).flatten(1))
        keys, value = both[:, : -self.hidden].unflatten(-1, (self.count, -1)), both[:, None, -self.hidden :]
        scale = torch.rsqrt(streams.square().mean(-1) + self.eps) * torch.rsqrt(keys.square().mean(-1) + self.eps)
        dot = (streams * self.q_weight * self.k_weight * keys).sum(-1) * scale * self.hidden**-0.5
        gates = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
        result: Tensor = streams + gates[..., None] * value
        return result


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], layer: int) -> None:
        super().__init__()
        hidden, count, self.eps = config["hidden_size"], config["hc_mult"], config["rms_norm_eps"]
        self.count, self.rounds, self.hc_eps = count, config["hc_sinkhorn_iters"], config["hc_eps"]
        self.attn, self.ffn = Attention(config, layer), Moe(config)
        self.attn_norm, self.ffn_norm = Norm(hidden, self.eps), Norm(hidden, self.eps)
        tables = config["engram_layer_ids"]
        self.engram = Engram(config, tables.index(layer)) if layer in tables else None
        numbers = (2 + count) * count
        for part in ("attn", "ffn"):
            self.register_parameter(f"hc_{part}_fn", nn.Parameter(torch.empty(numbers, count * hidden)))
            self.register_parameter(f"hc_{part}_base", nn.Parameter(torch.zeros(numbers)))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.ones(3)))

    def numbers(self, streams: Tensor, part: str) -> tuple[Tensor, Tensor, Tensor]:
        fn, base, scale = (getattr(self, f"hc_{part}_{name}") for name in ("fn", "base", "scale"))
        flat, count = streams.flatten(1), self.count
        mixes = (flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.eps)) @ fn.T
        pre = torch.sigmoid(mixes[:, :count] * scale[0] + base[:count]) + self.hc_eps
        post = 2 * torch.sigmoid(mixes[:, count : 2 * count] * scale[1] + base[count : 2 * count])
        comb = (mixes[:, 2 * count :] * scale[2] + base[2 * count :]).unflatten(-1, (count, count)).softmax(-1)
        comb = comb + self.hc_eps
        comb = comb / (comb.sum(-2, keepdim=True) + self.hc_eps)
        for _ in range(self.rounds - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + self.hc_eps)
            comb = comb / (comb.sum(-2, keepdim=True) + self.hc_eps)
        return pre, post, comb

    def forward(self, streams: Tensor, pre: Tensor, shared: dict[str, Any], pictures: Tensor) -> tuple[Tensor, Tensor]:
        for part, norm in (("attn", self.attn_norm), ("ffn", self.ffn_norm)):
            following, post, comb = self.numbers(streams, part)
            given = norm((pre[..., None] * streams).sum(1))
            out = self.attn(given, shared) if part == "attn" else self.ffn(given, pictures)
            streams = post[..., None] * out[:, None] + torch.einsum("tjk,tjd->tkd", comb, streams)
            pre = following
        return streams, pre


class DeepseekV41Reference(Reference):
    """With as much of transformers' interface as the parity tests use: one sequence at a time, greedy."""

    def __init__(self, whole: dict[str, Any]) -> None:
        super().__init__()
        config = whole.get("text_config", whole)
        self.config, self.text = whole, config
        hidden, vocabulary, std = config["hidden_size"], config["vocab_size"], config["initializer_range"]
        self.embed = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = Norm(hidden, config["rms_norm_eps"])
        self.head = linear(hidden, vocabulary)
        self.hashes = Hashes(config) if config["engram_layer_ids"] else None
        for name, parameter in self.named_parameters():
            if name.endswith(("attn_sink", "_base", "q_weight", "k_weight")):
                nn.init.normal_(parameter, 0.0 if parameter.dim() == 1 else 1.0, 0.5)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=std)

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(
            logits=self.of_rows(ids, self.embed(ids[0]), torch.zeros(ids.shape[1], dtype=torch.bool))
        )

    def of_rows(self, ids: Tensor, rows: Tensor, pictures: Tensor) -> Tensor:
        """rows: embeddings, or what stands for them where tokens are pictures."""
        tokens, count = ids[0].tolist(), self.text["hc_mult"]
        streams, shared = rows[:, None].repeat(1, count, 1), dict[str, Any]()
        pre = F.one_hot(torch.zeros(len(tokens), dtype=torch.long), count).float()
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if layer.engram is not None:
                assert self.hashes is not None
                table = self.text["engram_layer_ids"].index(i)
                added = layer.engram(streams, self.hashes.rows(table, tokens, pictures.tolist()))
                streams = torch.where(pictures[:, None, None], streams, added)
            streams, pre = layer(streams, pre, shared, pictures)
        logits: Tensor = self.head(self.norm((pre[..., None] * streams).sum(1)))[None]
        return logits
