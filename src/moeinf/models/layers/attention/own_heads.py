"""Causal attention of heads that a family makes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moeinf.models.layers.array_math import A, Array, ArrayMath
from moeinf.models.layers.attention.grouped import SCORES_AT_ONCE, attention_workspace
from moeinf.models.layers.attention_config import AttentionConfig
from moeinf.models.layers.kv_cache import Cache, LayerState, Span
from moeinf.models.layers.protocol import P, P_contra, Part, Positions, R
from moeinf.types import Workspace


class HeadsCoreOf(Protocol[A, P_contra]):
    def new_state(self, capacity: int) -> LayerState: ...

    def mixed(
        self, q: A, k: A, v: A, cache: Cache, positions: P_contra, *, relative: A | None = None, sinks: A | None = None
    ) -> A:
        """q [tokens, heads * head_dim], k, v [tokens, kv_heads * head_dim] of a pass -> [tokens, heads * head_dim].

        Queries and keys are not rotated or sharpened yet, and are used up. relative [tokens, heads * width]: a state of
        each query, which adds to its scores the products with the profile of how far back a position lies; sharpened as
        queries are. sinks [tokens, heads]: a further score, whose weight goes nowhere."""
        ...


HeadsCore = HeadsCoreOf[Array, Positions]


@dataclass(frozen=True, slots=True)
class HeadsPart(Part[A, P, R, HeadsCoreOf[A, P]]):
    config: AttentionConfig  # whose sizes, positions, window, sharpening and scale count
    layer: int
    profiles: str | None = None  # tensor [width, extent]: what is added to scores by distance, from 0 on


def heads_workspace(config: AttentionConfig, others: int) -> Workspace:
    """What a HeadsPart declares, and what a family makes of a token beside queries, keys and values: numbers."""
    sizes = attention_workspace(config)
    mixed = 2 * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return sizes | Workspace(token=mixed + others, fixed=SCORES_AT_ONCE)


def mixed_of_spans(
    core: HeadsCore,
    math: ArrayMath,
    heads: tuple[Array, Array, Array],
    spans: Sequence[Span[Positions]],
    *,
    relative: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """HeadsCore.mixed of each sequence; heads: queries, keys and values."""
    parts = []
    for span in spans:
        q, k, v = (each[span.rows] for each in heads)
        states, own = (None if each is None else each[span.rows] for each in (relative, sinks))
        parts.append(core.mixed(q, k, v, span.cache, span.positions, relative=states, sinks=own))
    return parts[0] if len(parts) == 1 else math.concatenate(parts, 0)
