"""The weights that a token uses: their formats, widths and bytes, and the seconds that products with them take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from moeinf.engine.speed.rates import Kind, Products, Rates, nearest
from moeinf.engine.stored.outline import Outline
from moeinf.models.layers.decoder import HEAD
from moeinf.types import Format, format_bytes

ByFormat = Mapping[Format, Products]


def dense_weights(outline: Outline) -> Counter[Kind]:
    """Numbers of weights of the dense matrices that every token uses, but for the head."""
    found: Counter[Kind] = Counter()
    for name, (format, shape) in outline.held.kinds.items():
        if len(shape) > 1 and not _makes_logits(name, outline):
            found[Kind(format, shape[-1])] += math.prod(shape)
    return found


def head_weights(outline: Outline) -> Counter[Kind]:
    """Of the matrix that makes logits, which a prompt uses once."""
    found: Counter[Kind] = Counter()
    for name, (format, shape) in outline.held.kinds.items():
        if _makes_logits(name, outline):
            found[Kind(format, shape[-1])] += math.prod(shape)
    return found


def _makes_logits(name: str, outline: Outline) -> bool:
    kinds = outline.held.kinds
    if name == HEAD:
        return True
    tied = HEAD not in kinds and name.endswith(("embed_tokens.weight", "shared.weight"))
    return tied and kinds[name][1][0] == outline.manifest.info.vocab_size


def expert_weights(outline: Outline, layer: int) -> Counter[Kind]:
    """Of one expert of a layer."""
    found: Counter[Kind] = Counter()
    for spec in outline.manifest.layout_of(layer).tensors:
        if len(spec.shape) > 1:
            found[Kind(spec.dtype, spec.shape[-1])] += math.prod(spec.shape)
    return found


def token_weights(outline: Outline) -> tuple[Counter[Kind], Counter[Kind]]:
    """What a token uses of experts, of all layers together, and of dense matrices with the head."""
    moe = outline.manifest.moe
    experts: Counter[Kind] = Counter()
    for layer in range(moe.num_layers):
        for kind, count in expert_weights(outline, layer).items():
            experts[kind] += moe.top_k * count
    return experts, dense_weights(outline) + head_weights(outline)


def main_kinds(outline: Outline) -> list[Kind]:
    """Those that make more than a fiftieth of the bytes that a token reads, the most first."""
    experts, dense = token_weights(outline)
    sizes = {kind: num_bytes(kind, count) for kind, count in (experts + dense).items()}
    least = sum(sizes.values()) / 50
    return sorted((kind for kind in sizes if sizes[kind] > least), key=lambda kind: -sizes[kind])


def token_bytes(outline: Outline) -> int:
    """Bytes of weights, as they are stored, that one decode step reads: all dense ones, and top_k experts a layer.

    Of an embedding a token reads one row, unless it is the head too.
    """
    moe, manifest = outline.manifest.moe, outline.manifest
    dense = sum(format_bytes(format, shape) for format, shape in outline.held.kinds.values())
    parts = (spec for layer in range(moe.num_layers) for spec in manifest.layout_of(layer).tensors)
    return dense + moe.top_k * sum(spec.num_bytes for spec in parts)


def formats_text(outline: Outline) -> str:
    """The format of most of the experts' bytes, and of most of the dense layers' if it differs: "q4_k, dense q8_0"."""
    experts, dense = _main_format(token_weights(outline)[0]), _main_format(dense_weights(outline))
    return experts if dense in (experts, "") else f"{experts}, dense {dense}"


def _main_format(weights: Mapping[Kind, int]) -> str:
    totals: Counter[str] = Counter()
    for kind, count in weights.items():
        totals[kind.format] += num_bytes(kind, count)
    return max(totals, key=lambda name: totals[name], default="")


def num_bytes(kind: Kind, count: int) -> int:
    return format_bytes(kind.format, (count // kind.width, kind.width))


def product_s(weights: Mapping[Kind, int], products: ByFormat, rows: float) -> float:
    """Seconds of multiplying so many rows with each of these weights."""
    return sum(count * nearest(products, kind.format).of(rows) for kind, count in weights.items())


def token_weights_s(outline: Outline, rates: Rates) -> float:
    """Seconds of a decode step in which all weights are in memory, but for what layers cost beside their weights."""
    experts, dense = token_weights(outline)
    return _one_row_s(experts, rates, rates.experts) + _one_row_s(dense, rates, rates.linear)


def _one_row_s(weights: Mapping[Kind, int], rates: Rates, products: ByFormat) -> float:
    """At the rates that were measured for their formats and widths; without one, as long as products take."""
    seconds = 0.0
    for kind, count in weights.items():
        reading = rates.reading_of(kind)
        seconds += num_bytes(kind, count) / reading.product if reading else product_s({kind: count}, products, 1)
    return seconds
