"""The weights that tokens use, by format, and the seconds that products with them take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from moeinf.bench.forecast.rates import Products, nearest
from moeinf.engine.stored.outline import Outline
from moeinf.models.layers.decoder import HEAD
from moeinf.types import Format

ByFormat = Mapping[Format, Products]


def dense_weights(outline: Outline) -> Counter[Format]:
    """Numbers of weights of the dense matrices that every token uses, but for the head."""
    found: Counter[Format] = Counter()
    for name, (format, shape) in outline.held.kinds.items():
        if len(shape) > 1 and not _makes_logits(name, outline):
            found[format] += math.prod(shape)
    return found


def head_weights(outline: Outline) -> Counter[Format]:
    """Of the matrix that makes logits, which a prompt uses once."""
    found: Counter[Format] = Counter()
    for name, (format, shape) in outline.held.kinds.items():
        if _makes_logits(name, outline):
            found[format] += math.prod(shape)
    return found


def _makes_logits(name: str, outline: Outline) -> bool:
    kinds = outline.held.kinds
    if name == HEAD:
        return True
    tied = HEAD not in kinds and name.endswith(("embed_tokens.weight", "shared.weight"))
    return tied and kinds[name][1][0] == outline.manifest.info.vocab_size


def expert_weights(outline: Outline, layer: int) -> Counter[Format]:
    """Of one expert of a layer."""
    found: Counter[Format] = Counter()
    for spec in outline.manifest.layout_of(layer).tensors:
        if len(spec.shape) > 1:
            found[spec.dtype] += math.prod(spec.shape)
    return found


def product_s(weights: Mapping[Format, int], products: ByFormat, rows: float) -> float:
    """Seconds of multiplying so many rows with each of these weights."""
    return sum(count * nearest(products, format).of(rows) for format, count in weights.items())


def token_weights_s(outline: Outline, experts: ByFormat, linear: ByFormat) -> float:
    """Seconds of a decode step in which all weights are in memory, but for what layers cost beside their weights."""
    moe = outline.manifest.moe
    routed = sum(moe.top_k * product_s(expert_weights(outline, layer), experts, 1) for layer in range(moe.num_layers))
    return routed + product_s(dense_weights(outline) + head_weights(outline), linear, 1)
