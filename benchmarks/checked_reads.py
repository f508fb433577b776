"""What it costs to hold weights against their checksums while they are read.

    python benchmarks/checked_reads.py MODEL [--cache 33%] [--decode 64] [--rounds 5]

First the sum alone: GB/s of CRC-32C on one core, beside copying the same bytes. Then decode from an empty cache, each
round once without checks, with the check of each expert's first read, and with that of every read, in turn: the same
tokens, drawn once, through a model that is opened anew. Printed are medians of tokens/s, and how much of a token each
check takes. The store is that of MOEINF_HOME; the cache is to be so small that the disk is the limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from moeinf._native import crc32c
from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.store.library import Library, StoredModel

WAYS = ("off", "first read", "every read")


def rate(work: Callable[[], object], num_bytes: int) -> float:
    """The best GB/s of a few."""
    best = 0.0
    for _ in range(9):
        started = time.perf_counter()
        work()
        best = max(best, num_bytes / (time.perf_counter() - started) / 1e9)
    return best


def print_rates(num_bytes: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8)
    copy = np.empty_like(data)
    print(
        f"{num_bytes >> 20} MiB: CRC-32C {rate(lambda: crc32c(data), num_bytes):.1f} GB/s, copying "
        f"{rate(lambda: np.copyto(copy, data), num_bytes):.1f} GB/s"
    )


@contextmanager
def checks(way: str) -> Iterator[dict[str, Any]]:
    """The options of a model that checks its reads in this way."""
    if way == "off":
        with patch("moeinf.engine.stored_weights.sums_of", lambda stored: ((), "")):
            yield {}
    else:
        yield {"verify_reads": way == "every read"}


def decoded(stored: StoredModel, way: str, cache: str, prompt: list[int], continuation: list[int]) -> GenerationStats:
    with checks(way) as options:
        model = Model(stored, RuntimeConfig.of(device="cpu", expert_cache=cache, **options), preload=False)
        with model:
            return model.replay(prompt, continuation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cache", default="33%")
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for num_bytes in (1 << 20, 256 << 20):
        print_rates(num_bytes)
    stored = Library(store_home()).find(given.model)
    drawn = np.random.default_rng(2).integers(0, stored.manifest.info.vocab_size, given.prompt + given.decode).tolist()
    prompt, continuation = drawn[: given.prompt], drawn[given.prompt :]
    token_s: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(given.rounds):
        for way in WAYS:
            stats = decoded(stored, way, given.cache, prompt, continuation)
            token_s[way].append(sum(stats.token_s) / len(stats.token_s))
            reads = stats.decode_cache.demand_bytes + stats.decode_cache.prefetch_bytes
            print(
                f"{way}: {1 / token_s[way][-1]:.2f} tokens/s, {reads / sum(stats.token_s) / 1e9:.2f} GB/s read",
                flush=True,
            )
    plain = median(token_s["off"])
    for way in WAYS:
        found = median(token_s[way])
        print(f"median, {way}: {1 / found:.2f} tokens/s, {100 * (found / plain - 1):+.1f} % of a token")


if __name__ == "__main__":
    main()
