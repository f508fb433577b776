"""What `moeinf trace` prints of a trace."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence

from moeinf.terminal.screen import table
from moeinf.terminal.traces.heat_map import heat_map
from moeinf.traces.clusters import Clusters
from moeinf.traces.statistics import DISTANCES, MOST_REQUESTS, WINDOWS, Statistics, activations, statistics_of
from moeinf.traces.trace import Trace


def show_lines(trace: Trace, columns: int, *, coloured: bool) -> list[str]:
    stats, shape = statistics_of(trace), trace.shape
    entropy = " ".join(f"{bits:.2f}" for bits in stats.entropy)
    most = [math.log2(shape.experts_of(layer)) for layer in range(shape.num_layers)]
    mean = stats.entropy.mean()
    windows = [(f"{window}", _share(share)) for window, share in zip(WINDOWS, stats.working_set, strict=True) if share]
    reuse = [(f"{most}", _share(share)) for most, share in zip(DISTANCES, stats.reuse.within, strict=True)]
    lines = [
        head_line(trace, stats),
        "",
        "activation matrix, a row a layer",
        *heat_map(activations(trace), shape, columns, coloured=coloured),
        "",
        f"entropy: {mean:.2f} bits on average over layers, of {sum(most) / len(most):.2f} were all experts used evenly",
        f"  by layer: {entropy}",
        "",
        "working set: share of all experts that so many tokens in a row use",
        *_indented([("tokens", *(window for window, _ in windows)), ("experts", *(share for _, share in windows))]),
        "",
        f"reuse: {_share(stats.reuse.by_next)} of a token's experts are used by the next token too "
        f"({_share(stats.reuse.chance)} by chance)",
        "  share of activations whose expert was used at most so many tokens before "
        f"(median {stats.reuse.median:g}, {stats.reuse.first_uses} first uses)",
        *_indented([("tokens", *(most for most, _ in reuse)), ("share", *(share for _, share in reuse))]),
    ]
    if stats.overlap is not None:
        compared = f" ({MOST_REQUESTS} of them)" if trace.num_requests > MOST_REQUESTS else ""
        lines += [
            "",
            f"overlap of two requests{compared}: cosine {stats.overlap.cosine:.2f}; "
            f"{_share(stats.overlap.top_shared)} of the {shape.top_k} most used experts of a layer are the same "
            f"({_share(stats.overlap.chance)} by chance)",
        ]
    return lines


def fitted(lines: Sequence[str], columns: int) -> list[str]:
    """The lines, those of text broken where a terminal is too narrow; a line of colours is left as it is."""
    indent = "    "
    return [
        part
        for line in lines
        for part in ([line] if "\x1b" in line else textwrap.wrap(line, columns, subsequent_indent=indent) or [""])
    ]


def head_line(trace: Trace, stats: Statistics | None = None) -> str:
    shape = trace.shape
    prompt = None if trace.prompt_tokens is None else int(trace.prompt_tokens.sum())
    phases = "" if prompt is None else f" ({prompt} prefill, {trace.num_tokens - prompt} decode)"
    held = [
        word
        for word, array in (("passes", trace.passes), ("weights", trace.weights), ("guesses", trace.guesses))
        if array is not None
    ]
    model = f"{trace.model}: " if trace.model else ""
    known = f", with {' and '.join([', '.join(held[:-1]), held[-1]] if held[1:] else held)}" if held else ""
    return (
        f"{trace.name}: {model}{_counted(trace.num_requests, 'request')}, {trace.num_tokens} tokens{phases}, "
        f"{shape.text}{known}"
    )


def show_json(trace: Trace) -> str:
    stats, shape = statistics_of(trace), trace.shape
    overlap = stats.overlap
    return json.dumps(
        {
            "name": trace.name,
            "model": trace.model,
            "num_layers": shape.num_layers,
            "num_experts": list(shape.counts) or shape.num_experts,
            "top_k": shape.top_k,
            "requests": trace.num_requests,
            "tokens": trace.num_tokens,
            "prefill_tokens": stats.prefill_tokens,
            "activations": stats.activations,
            "passes": None if trace.passes is None else len(trace.passes) - 1,
            "weights": trace.weights is not None,
            "guesses": trace.guesses is not None,
            "entropy_bits": [round(float(bits), 4) for bits in stats.entropy],
            "working_set": {str(window): share for window, share in zip(WINDOWS, stats.working_set, strict=True)},
            "reuse": {
                "by_next_token": stats.reuse.by_next,
                "by_next_token_by_chance": stats.reuse.chance,
                "median_tokens": stats.reuse.median,
                "first_uses": stats.reuse.first_uses,
                "within": {str(most): share for most, share in zip(DISTANCES, stats.reuse.within, strict=True)},
            },
            "overlap": overlap
            and {"cosine": overlap.cosine, "top_shared": overlap.top_shared, "top_by_chance": overlap.chance},
            "matrix": activations(trace).tolist(),
        },
        indent=2,
    )


def cluster_lines(clusters: Clusters) -> list[str]:
    rows = [("cluster", "requests", "kept", "mean distance")]
    for cluster, request in enumerate(clusters.kept.tolist()):
        own = clusters.members == cluster
        rows.append(
            (f"{cluster + 1}", f"{own.sum()}", f"request {request + 1}", f"{clusters.distances[own].mean():.3f}")
        )
    return [*table(rows), f"mean distance to the centroid (1 - cosine): {clusters.distances.mean():.3f}"]


def _indented(rows: list[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in table(rows, gap=2)]


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
