"""The figures of an answer, as lines: first those that ollama prints, then those of the expert cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeinf.text.quantities import binary_size_text, duration_text

if TYPE_CHECKING:
    from moeinf.engine.completion import GenerationStats
    from moeinf.engine.model import Model
    from moeinf.terminal.remote.remote_model import RemoteModel


def stats_lines(stats: GenerationStats, model: Model | RemoteModel) -> list[str]:
    """The figures of one answer. A line whose value is zero is left out."""
    return _aligned([*_timing_rows(stats), *_cache_rows(stats, model)])


def cache_lines(model: Model | RemoteModel) -> list[str]:
    """What is resident, how full the context is, and how the cache did in the last answer."""
    rows: list[tuple[str, str]] = [("context", f"{model.plan.context} tokens")]
    if model.last is not None:
        stats = model.last.stats
        rows = [
            ("context", f"{stats.prompt_tokens + stats.generated_tokens}/{model.plan.context} tokens"),
            *_cache_rows(stats, model),
        ]
    return [model.describe(), *_aligned(rows)]


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{label + ':':<22}{value}" for label, value in rows if value]


def _cached(stats: GenerationStats) -> str:
    if not stats.cached_tokens:
        return ""
    place = f", from {stats.cached_from}" if stats.cached_from in ("memory", "disk") else ""
    return f"{stats.cached_tokens} token(s){place}"


def _drafts(stats: GenerationStats) -> str:
    drafted, accepted = stats.drafts.drafted, stats.drafts.accepted
    return f"{accepted} of {drafted} accepted ({accepted / drafted:.0%})" if drafted else ""


def _timing_rows(stats: GenerationStats) -> list[tuple[str, str]]:
    prompt_tokens = stats.prompt_tokens - stats.cached_tokens
    decoded = len(stats.token_s)  # the first token comes with the prompt
    return [
        ("total duration", _duration(stats.total_s)),
        ("load duration", _duration(stats.load_s)),
        ("prompt eval count", f"{prompt_tokens} token(s)" if prompt_tokens else ""),
        ("prompt cached", _cached(stats)),
        ("prompt eval duration", _duration(stats.prompt_s)),
        ("prompt eval rate", _rate(prompt_tokens, stats.prompt_s)),
        ("eval count", f"{stats.generated_tokens} token(s)" if stats.generated_tokens else ""),
        ("eval duration", _duration(stats.decode_s)),
        ("eval rate", _with(_rate(decoded, stats.decode_s), stats.made.approx)),
        ("draft tokens", _drafts(stats)),
        ("seed", str(stats.made.seed)),
    ]


def _cache_rows(stats: GenerationStats, model: Model | RemoteModel) -> list[tuple[str, str]]:
    cache, decoded = stats.decode_cache, len(stats.token_s)
    moved = cache.demand_bytes + cache.prefetch_bytes
    moe = model.manifest.moe
    resident, what = f"{model.tier.num_experts}/{moe.total_experts} {moe.kind}", "MLP" if moe.dense else "expert"
    hits = f", {100 * cache.hit_rate:.1f}% hit ({cache.hits}/{cache.activations})" if cache.activations else ""
    given_back = stats.prefill_cache.given_back_bytes + cache.given_back_bytes
    transfer = ""
    if moved and decoded and stats.decode_s:
        per_token, per_second = binary_size_text(moved / decoded), binary_size_text(moved / stats.decode_s)
        transfer = f"{per_token}/token, {per_second}/s, {duration_text(cache.stall_s)} stalled"
    others = ""
    if cache.lru_hit_rate is not None and cache.best_hit_rate is not None:
        others = f"LRU {cache.lru_hit_rate:.1%} hit, the best possible {cache.best_hit_rate:.1%}"
    return [
        (f"{what} cache", resident + hits),
        ("others as large", others),
        (f"{what} transfer", transfer),
        ("memory given back", binary_size_text(given_back) if given_back else ""),
        (  # of the whole process, where the line about the model has what was planned for it
            "process memory",
            ", ".join(
                f"{kind} {binary_size_text(size)} peak"
                for kind, size in (("VRAM", stats.peak.vram), ("RAM", stats.peak.rss))
                if size
            ),
        ),
    ]


def _duration(seconds: float) -> str:
    return duration_text(seconds) if seconds else ""


def _with(rate: str, approx: str) -> str:
    """A rate, and how exact the answer is that was made at it."""
    return f"{rate}, {approx}" if rate and approx else rate


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.2f} tokens/s" if tokens and seconds else ""
