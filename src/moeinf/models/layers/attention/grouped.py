"""Attention with grouped keys and values, under Hugging Face names, and the norm in front of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, Shapes
from moeinf.models.layers.protocol import AttentionOf, P, Part, R
from moeinf.types import AttentionSizes, Workspace

SCORES_AT_ONCE: Final = 1 << 22  # on a GPU, of a prompt in layers that change each of them


@dataclass(frozen=True, slots=True)
class AttentionPart(Part[A, P, R, AttentionOf[A, P]]):
    config: AttentionConfig
    site: AttentionSite


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that an AttentionPart takes."""
    heads, p, gate, norms = (config.num_heads, config.num_kv_heads), config.projections, config.gate, config.head_norms
    queries, keys = (count * config.head_dim for count in heads)
    if p.fused is None:
        rows = [count * (p.key_dim or config.head_dim) for count in heads]
        in_query = gate is not None and gate.name is None
        counts = {"q_proj": rows[0] * (2 if in_query else 1), "k_proj": rows[1]}
        if not p.values_of_keys:
            counts["v_proj"] = heads[1] * (p.value_dim or config.head_dim)
    else:
        counts = {p.fused: queries + 2 * keys}
    shapes: Shapes = {f"{prefix}{name}.weight": (count, config.hidden_size) for name, count in counts.items()}
    shapes[f"{prefix}{p.output}.weight"] = (config.hidden_size, heads[0] * (p.value_dim or config.head_dim))
    biased = [*(list(counts) if p.bias else []), *([p.output] if p.output_bias else [])]
    shapes |= {f"{prefix}{name}.bias": (shapes[f"{prefix}{name}.weight"][0],) for name in biased}
    if gate is not None and gate.name is not None:
        shapes[f"{prefix}{gate.name}.weight"] = (heads[0] if gate.per_head else queries, config.hidden_size)
    if gate is not None and gate.bias is not None:
        shapes[prefix + gate.bias] = (heads[0],)
    if config.scores.sinks is not None:
        shapes[prefix + config.scores.sinks] = (heads[0],)
    if norms is not None and norms.names is not None:
        for name, count in zip(norms.names, (queries, keys), strict=True):
            shapes[f"{prefix}{name}.weight"] = (count if norms.over == "full" else config.head_dim,)
    return shapes


def attention_workspace(config: AttentionConfig) -> Workspace:
    """What an AttentionPart declares: on a GPU input, output, queries and their mixture, gates, keys and values."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gate, value_dim = config.gate, config.projections.value_dim
    sizes = AttentionSizes(
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.window,
        gate is not None and gate.name is None,
        gate is not None and gate.name is not None,
        most_chosen=config.sight.most_chosen,
        value_dim=value_dim or 0,
        sees_all=config.sight.sees == "all",
    )
    attention = 2 * config.hidden_size + queries * (2 if gate is None else 4) + 2 * keys
    attention += 0 if value_dim is None else queries + keys
    fixed = 0 if config.scores.cap is None else SCORES_AT_ONCE
    return Workspace(attention=attention, fixed=fixed, layers=frozenset([sizes]))
