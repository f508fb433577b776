"""What responses of all APIs tell of an answer alike: what it cost, and how probable its tokens were."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.engine.completion import GenerationStats
from moeinf.server.ask import Chance, Chosen, Loading, Queued, Reading
from moeinf.types import JsonObject


def figures(stats: GenerationStats) -> JsonObject:
    """The extension field, which no API has: how the expert cache did, bytes and seconds.

    Prefill and decode together where not said otherwise.
    """
    prefill, decode = stats.prefill_cache, stats.decode_cache
    activations = prefill.activations + decode.activations
    decoded = len(stats.token_s)
    return {
        "hit_rate": (prefill.hits + decode.hits) / activations if activations else None,
        "decode_hit_rate": decode.hit_rate if decode.activations else None,
        "lru_hit_rate": decode.lru_hit_rate,
        "best_hit_rate": decode.best_hit_rate,
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
        "draft_n": stats.drafts.drafted,
        "draft_n_accepted": stats.drafts.accepted,
        "seed": stats.made.seed,
        "approx": stats.made.approx,
    }


def logprobs(tokens: Sequence[Chosen]) -> list[JsonObject]:
    """The tokens with their probabilities, those of thoughts and tags among them."""
    return [_chance(each.token) | {"top_logprobs": [_chance(other) for other in each.top]} for each in tokens]


def _chance(chance: Chance) -> JsonObject:
    text = chance.token.decode("utf-8", "replace")
    return {"token": text, "logprob": chance.logprob, "bytes": list(chance.token)}


def waits(event: Queued | Loading | Reading) -> JsonObject:
    """How far a request is that has no token yet, for the extension field of streams."""
    eta: JsonObject = {} if event.eta_s is None else {"eta_s": event.eta_s}
    if isinstance(event, Queued):
        return {"phase": "queued", "position": event.position, **eta}
    phase = "loading" if isinstance(event, Loading) else "prefill"
    return {"phase": phase, "done": event.done, "total": event.total, **eta}
