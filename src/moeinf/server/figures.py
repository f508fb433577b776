"""What an answer cost: the extension field of every response, which no API has."""

from __future__ import annotations

from moeinf.engine.completion import GenerationStats
from moeinf.types import JsonObject


def figures(stats: GenerationStats) -> JsonObject:
    """How the expert cache did, bytes and seconds; prefill and decode together where not said otherwise."""
    prefill, decode = stats.prefill_cache, stats.decode_cache
    activations = prefill.activations + decode.activations
    decoded = len(stats.token_s)
    return {
        "hit_rate": (prefill.hits + decode.hits) / activations if activations else None,
        "decode_hit_rate": decode.hit_rate if decode.activations else None,
        "hits": prefill.hits + decode.hits,
        "misses": prefill.misses + decode.misses,
        "read_bytes": sum(each.demand_bytes + each.prefetch_bytes for each in (prefill, decode)),
        "stall_s": prefill.stall_s + decode.stall_s,
        "cached_tokens": stats.cached_tokens,
        "cached_from": stats.cached_from,
        "load_s": stats.load_s,
        "prompt_s": stats.prompt_s,
        "decode_s": stats.decode_s,
        "tokens_per_s": decoded / stats.decode_s if stats.decode_s else None,
        "seed": stats.seed,
    }
