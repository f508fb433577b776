"""What `moeinf compare` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moeinf.bench.divergence.compare import Compared, Comparison
from moeinf.bench.divergence.distance import perplexity
from moeinf.config.compare_options import CompareOptions
from moeinf.engine.stored.compared_file import ComparedBefore, record_compared
from moeinf.terminal.screen import table
from moeinf.text.quantities import size_text
from moeinf.types import JsonObject

_MOST_LAYERS: Final = 12  # that a line tells of
_LEGEND: Final = (
    "KL: how far a prediction is from the reference's, in nats a token, its standard error, and what 99 of 100 stay "
    "below; same token: how often both find the same next token likeliest."
)


def comparison_lines(comparison: Comparison, text: str) -> list[str]:
    """For people. text: the name of its file; "" for the text that comes along."""
    windows, reference = comparison.windows, comparison.reference
    predictions = windows.scored * len(windows.ids)
    header = ("model", "size", "perplexity", "", "KL", "99%", "same token")
    first = (reference.name, size_text(reference.size_bytes), f"{perplexity(comparison.surprise):.3f}", *[""] * 4)
    rows = [header, first, *map(_cells, comparison.models)]
    return [
        f"{text or 'the text that comes along'}: {predictions:,} predictions, in {len(windows.ids)} windows of "
        f"{windows.length} tokens, of which the second half counts; beside {reference.name}:",
        "",
        *table(rows, gap=2),
        "",
        *(line for each in comparison.models for line in _details(each, comparison)),
        _LEGEND,
    ]


def record(comparison: Comparison, options: CompareOptions) -> None:
    """Keeps beside each model what was found, but that one has no distance from itself."""
    reference = comparison.reference
    for each in comparison.models:
        if each.stored.id == reference.id:
            continue
        distance, kl = each.distance, each.distance.kl
        found = ComparedBefore(
            reference.name,
            reference.id,
            Path(options.text or "").name,
            distance.divergence.size,
            kl.value,
            kl.error,
            distance.more_perplexity.value,
            float(distance.same.mean()),
        )
        record_compared(each.stored, found)


def _cells(each: Compared) -> tuple[str, ...]:
    distance = each.distance
    more, kl = distance.more_perplexity, distance.kl
    return (
        each.stored.name,
        size_text(each.stored.size_bytes),
        f"{perplexity(distance.surprise):.3f}",
        f"{more.value:+.2%} ± {more.error:.2%}",
        f"{kl.value:.5f} ± {kl.error:.5f}",
        f"{distance.quantile(0.99):.4f}",
        f"{distance.same.mean():.1%}",
    )


def _details(each: Compared, comparison: Comparison) -> Iterator[str]:
    windows, distance = comparison.windows, each.distance
    step = windows.scored / len(distance.by_position)
    starts = [windows.first + round(number * step) for number in range(len(distance.by_position))]
    by_position = ", ".join(f"{start}: {kl.value:.5f}" for start, kl in zip(starts, distance.by_position, strict=True))
    yield f"{each.stored.name}, KL from position {by_position}"
    layers = distance.layers
    if not len(layers):
        yield f"{each.stored.name}: its layers are others than the reference's, so that their states are not compared"
        return
    every = -(-len(layers) // _MOST_LAYERS)
    shown = [number for number in range(len(layers)) if (len(layers) - 1 - number) % every == 0]
    states = ", ".join(f"{number + 1}: {layers[number]:.2%}" for number in shown)
    yield f"{each.stored.name}, state off behind layer {states}"


def comparison_json(comparison: Comparison, text: str) -> str:
    """All figures, of every layer."""
    windows = comparison.windows
    told: JsonObject = {
        "reference": comparison.reference.name,
        "reference_size_bytes": comparison.reference.size_bytes,
        "text": text,
        "window": windows.length,
        "windows": len(windows.ids),
        "predictions": windows.scored * len(windows.ids),
        "perplexity": perplexity(comparison.surprise),
        "models": [_as_json(each) for each in comparison.models],
    }
    return json.dumps(told, indent=2)


def _as_json(each: Compared) -> JsonObject:
    distance = each.distance
    kl, more = distance.kl, distance.more_perplexity
    return {
        "model": each.stored.name,
        "size_bytes": each.stored.size_bytes,
        "perplexity": perplexity(distance.surprise),
        "more_perplexity": more.value,
        "more_perplexity_error": more.error,
        "kl": kl.value,
        "kl_error": kl.error,
        "kl_median": distance.quantile(0.5),
        "kl_99": distance.quantile(0.99),
        "kl_most": distance.quantile(1),
        "same_token": float(distance.same.mean()),
        "kl_by_position": [mean.value for mean in distance.by_position],
        "state_off_by_layer": distance.layers.tolist(),
    }
