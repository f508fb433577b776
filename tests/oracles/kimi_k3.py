"""Kimi K3's language model in plain torch, without a cache, as no released transformers has it.

Written from what vLLM (vllm/models/kimi_k3) and llama.cpp (src/models/kimi-k3.cpp) compute; nothing of moeinf is used.
Recurrences run token by token, and heads of latent attention have keys and values of their own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.reference import Reference

LATENT_EPS = 1e-6  # the default of the published norm, which latents are left at


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


class Activation:
    def __init__(self, config: dict[str, Any]) -> None:
        self.kind = config["hidden_act"]
        self.beta: float = config["activation_situ_beta"]
        self.of_up: float | None = config["activation_situ_linear_beta"]

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.kind == "silu":
            return gate * torch.sigmoid(gate) * up
        bounded = up if self.of_up is None else self.of_up * torch.tanh(up / self.of_up)
        return self.beta * torch.tanh(gate / self.beta) * torch.sigmoid(gate) * bounded


class Mlp(nn.Module):
    def __init__(self, config: dict[str, Any], hidden: int, size: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names, self.activation = names, Activation(config)
        for name, (into, out) in zip(names, ((hidden, size), (hidden, size), (size, hidden)), strict=True):
            self.add_module(name, linear(into, out))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (self.get_submodule(name) for name in self.names)
        result: Tensor = down(self.activation(gate(x), up(x)))
        return result


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Moe(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, count, size = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
        self.config, narrow = config, config["routed_expert_hidden_size"]
        self.gate = linear(hidden, count)
        self.gate.register_parameter("e_score_correction_bias", nn.Parameter(torch.zeros(count)))
        if narrow is not None:
            self.routed_expert_down_proj, self.routed_expert_up_proj = linear(hidden, narrow), linear(narrow, hidden)
            if config["latent_moe_use_norm"]:
                self.routed_expert_norm = Norm(narrow, config["rms_norm_eps"])
        self.experts = nn.ModuleList(Mlp(config, narrow or hidden, size, ("w1", "w3", "w2")) for _ in range(count))
        if config["num_shared_experts"]:
            self.shared_experts = Mlp(config, hidden, size * config["num_shared_experts"], PROJECTIONS)

    def weights(self, x: Tensor) -> Tensor:
        """[tokens, experts], 0 of those that a token does not use."""
        config, scores = self.config, torch.sigmoid(x @ self.gate.weight.T)
        by = scores + self.gate.get_parameter("e_score_correction_bias")
        groups = by.unflatten(-1, (config["num_expert_group"], -1))
        best = groups.topk(2, -1).values.sum(-1).topk(config["topk_group"], -1).indices
        inside = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best, True)
        by = groups.masked_fill(~inside[..., None], -torch.inf).flatten(1)
        chosen = by.topk(config["num_experts_per_token"], -1).indices
        weights = scores.gather(1, chosen)
        if config["moe_renormalize"]:
            weights = weights / weights.sum(-1, keepdim=True)
        return torch.zeros_like(scores).scatter(1, chosen, weights * config["routed_scaling_factor"])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x)
        narrow = self.config["routed_expert_hidden_size"] is not None
        given = self.routed_expert_down_proj(x) if narrow else x
        found = sum(weights[:, i, None] * expert(given) for i, expert in enumerate(self.experts))
        if narrow:
            if self.config["latent_moe_use_norm"]:
                found = self.routed_expert_norm(found)
            found = self.routed_expert_up_proj(found)
        result: Tensor = found + self.shared_experts(x) if self.config["num_shared_experts"] else found
        return result


class DeltaAttention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        own, hidden = config["linear_attn_config"], config["hidden_size"]
        self.heads, self.size, self.kernel = own["num_heads"], own["head_dim"], own["short_conv_kernel_size"]
        self.bound, self.whole = own["gate_lower_bound"], own["use_full_rank_gate"]
        width = self.heads * self.size
        for name in "qkv":
            self.add_module(f"{name}_proj", linear(hidden, width))
            self.add_module(f"{name}_conv1d", nn.Conv1d(width, width, self.kernel, groups=width, bias=False))
        self.f_a_proj, self.f_b_proj = linear(hidden, self.size), linear(self.size, width)
        if self.whole:
            self.g_proj = linear(hidden, width)
        else:
            self.g_a_proj, self.g_b_proj = linear(hidden, self.size), linear(self.size, width)
        self.b_proj, self.o_proj = linear(hidden, self.heads), linear(width, hidden)
        self.A_log = nn.Parameter(torch.zeros(max(self.heads, self.size)))  # as published, filled up with zeros
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.o_norm = Norm(self.size, config["rms_norm_eps"])

    def convolved(self, x: Tensor, name: str) -> Tensor:
        made = self.get_submodule(f"{name}_proj")(x).T[None]
        seen = self.get_submodule(f"{name}_conv1d")(nn.functional.pad(made, (self.kernel - 1, 0)))[0].T
        result: Tensor = (seen * torch.sigmoid(seen)).unflatten(-1, (self.heads, self.size))
        return result

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.convolved(x, name) for name in "qkv")
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        steps = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, (self.heads, self.size))
        speed = self.A_log[: self.heads, None].exp()
        if self.bound is None:
            decays = -speed * nn.functional.softplus(steps)
        else:
            decays = self.bound * torch.sigmoid(speed * steps)
        rates, state, outs = torch.sigmoid(self.b_proj(x)), torch.zeros(self.heads, self.size, self.size), []
        for t in range(len(x)):
            state = state * decays[t].exp()[..., None]
            missing = v[t] - torch.einsum("hk,hkv->hv", k[t], state)
            state = state + torch.einsum("hk,hv->hkv", k[t] * rates[t][:, None], missing)
            outs.append(torch.einsum("hk,hkv->hv", q[t], state) * self.size**-0.5)
        gates = self.g_proj(x) if self.whole else self.g_b_proj(self.g_a_proj(x))
        out = self.o_norm(torch.stack(outs)) * torch.sigmoid(gates.unflatten(-1, (self.heads, self.size)))
        result: Tensor = self.o_proj(out.flatten(1))
        return result


class LatentAttention(nn.Module):
    """Without positions."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, self.heads, rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
        self.rank, self.value = config["kv_lora_rank"], config["v_head_dim"]
        self.plain, self.common = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        queries = self.heads * (self.plain + self.common)
        if rank is None:
            self.q_proj = linear(hidden, queries)
        else:
            self.q_a_proj, self.q_a_layernorm = linear(hidden, rank), Norm(rank, LATENT_EPS)
            self.q_b_proj = linear(rank, queries)
        self.kv_a_proj_with_mqa = linear(hidden, self.rank + self.common)
        self.kv_a_layernorm = Norm(self.rank, LATENT_EPS)
        self.kv_b_proj = linear(self.rank, self.heads * (self.plain + self.value))
        self.gated, self.compressed = config["mla_use_output_gate"], rank is not None
        if self.gated:
            self.g_proj = linear(hidden, self.heads * self.value)
        self.o_proj = linear(self.heads * self.value, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.compressed else self.q_proj(x)
        q = q.unflatten(-1, (self.heads, -1))
        latents, common = self.kv_a_proj_with_mqa(x).split([self.rank, self.common], -1)
        both = self.kv_b_proj(self.kv_a_layernorm(latents)).unflatten(-1, (self.heads, -1))
        k, v = both.split([self.plain, self.value], -1)
        k = torch.cat([k, common[:, None].expand(-1, self.heads, -1)], -1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (self.plain + self.common) ** -0.5
        ahead = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(ahead, -torch.inf).softmax(-1), v).flatten(1)
        result: Tensor = self.o_proj(mixed * torch.sigmoid(self.g_proj(x)) if self.gated else mixed)
        return result


def chosen(present: Tensor, left: list[Tensor], norm: Norm, proj: nn.Linear) -> Tensor:
    """A mixture of what blocks have left and of the present state, as they are, scored by what a norm makes of them."""
    states = torch.stack([*left, present], 1)
    shares = (norm(states) @ proj.weight[0]).softmax(-1)
    result: Tensor = (shares[..., None] * states).sum(1)
    return result


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], layer: int) -> None:
        super().__init__()
        hidden, eps, self.every = config["hidden_size"], config["rms_norm_eps"], config["attn_res_block_size"]
        full = layer + 1 in config["linear_attn_config"]["full_attn_layers"]
        self.layer, self.sparse = layer, layer >= config["first_k_dense_replace"]
        self.self_attn = LatentAttention(config) if full else DeltaAttention(config)
        if self.sparse:
            self.block_sparse_moe = Moe(config)
        else:
            self.mlp = Mlp(config, hidden, config["intermediate_size"], PROJECTIONS)
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)
        if self.every is not None:
            self.self_attention_res_norm, self.mlp_res_norm = Norm(hidden, eps), Norm(hidden, eps)
            self.self_attention_res_proj, self.mlp_res_proj = linear(hidden, 1), linear(hidden, 1)

    def forward(self, x: Tensor, left: list[Tensor]) -> Tensor:
        block = self.block_sparse_moe if self.sparse else self.mlp
        if self.every is None:
            x = x + self.self_attn(self.input_layernorm(x))
            plain: Tensor = x + block(self.post_attention_layernorm(x))
            return plain
        given = chosen(x, left, self.self_attention_res_norm, self.self_attention_res_proj) if left else x
        out = self.self_attn(self.input_layernorm(given))
        if self.layer % self.every == 0:
            left.append(x)
            x = out
        else:
            x = x + out
        given = chosen(x, left, self.mlp_res_norm, self.mlp_res_proj)
        result: Tensor = x + block(self.post_attention_layernorm(given))
        return result


class Decoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = Norm(hidden, eps)
        self.chooses = config["attn_res_block_size"] is not None
        if self.chooses:
            self.output_attn_res_norm, self.output_attn_res_proj = Norm(hidden, eps), linear(hidden, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.of_rows(self.embed_tokens(ids))

    def of_rows(self, x: Tensor) -> Tensor:
        """x: embeddings, or what stands for them."""
        left = list[Tensor]()
        for layer in self.layers:
            x = layer(x, left)
        if self.chooses:
            x = chosen(x, left, self.output_attn_res_norm, self.output_attn_res_proj)
        result: Tensor = self.norm(x)
        return result


class Language(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.lm_head = Decoder(config), linear(config["hidden_size"], config["vocab_size"])


class KimiK3Reference(Reference):
    """With as much of transformers' interface as the parity tests use: one sequence at a time, greedy."""

    def __init__(self, whole: dict[str, Any]) -> None:
        super().__init__()
        self.config, text = whole, whole["text_config"]
        self.language_model = Language(text)
        for name, parameter in self.named_parameters():
            if name.endswith("A_log"):
                heads = text["linear_attn_config"]["num_heads"]
                nn.init.uniform_(parameter[:heads], -1.0, 1.0)
            elif name.endswith(("dt_bias", "correction_bias")):
                nn.init.normal_(parameter, std=0.5)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=text["initializer_range"])

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.language_model.lm_head(self.language_model.model(ids[0]))[None])
