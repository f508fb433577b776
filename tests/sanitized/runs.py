"""python -m tests.sanitized.runs NAME... [--short]: answers of stored models in many configurations.

Tokens are those of the first configuration with the same keys and values. Meanwhile memory is given back and taken
again, answers are left in part, and models are closed by another thread.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import moeinf
from moeinf.errors import StoreError

TEXT = "Once upon a time there was a little girl who loved to play with the dog in the garden ."
WORDS = TEXT.split()
CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {"expert_cache": "15%", "threads": 1, "policy": "lru", "predictor": "none"},
    {"expert_cache": "40%", "threads": 2, "policy": "next-use", "predictor": "look-ahead", "queue_depth": 1},
    {"expert_cache": "100%", "threads": 3, "prefill_chunk": 7, "prefix_memory": "8MB"},
    {"expert_cache": "20%", "threads": 2, "policy": "arc", "predictor": "frequency", "reader": "pure"},
    {"expert_cache": "25%", "threads": 2, "policy": "lru-2", "predictor": "eamc", "verify_reads": True},
    {"expert_cache": "30%", "threads": 3, "policy": "paper", "predictor": "cross-layer", "direct_io": False},
    {"expert_cache": "15%", "threads": 2, "policy": "slru", "predictor": "popularity", "prefix_disk": "50MB"},
    {"expert_cache": "35%", "threads": 1, "policy": "decayed-lfu", "kv_cache": "f16", "isa": "generic"},
    {"expert_cache": "35%", "threads": 2, "policy": "lfu", "kv_cache": "q8_0", "prefetch": False},
    {"expert_cache": "20%", "threads": 2, "policy": "paper-v1", "kv_cache": "f32", "predictor": "previous-token"},
)


def prompts() -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.choice(WORDS) for _ in range(count)) for count in (1, 9, 70, 300)]


@contextmanager
def memory_coming_and_going(model: moeinf.Model) -> Iterator[None]:
    """As MemoryWatch does while others need memory."""
    ended, tier = threading.Event(), model.tier

    def resize() -> None:
        for share in itertools.cycle((2, 1, 3, 1)):
            if ended.wait(0.02):
                break
            tier.resize(max(least, tier.most_slots // share))
        tier.resize(tier.most_slots)

    least = model.plan.sizes.least_slots
    thread = threading.Thread(target=resize)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def close_from_elsewhere(model: moeinf.Model) -> None:
    """Closes the model while it answers, from another thread."""
    answers = model.stream(prompts()[2], model.params(seed=1, num_predict=400))
    next(answers)
    closing = threading.Thread(target=model.close)
    closing.start()
    try:
        for _ in answers:
            pass
    except StoreError:
        pass
    closing.join()


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--short"]
    configurations = CONFIGURATIONS[:4] if "--short" in sys.argv else CONFIGURATIONS
    answers = 0
    for name in names:
        known: dict[tuple[str, str], list[int]] = {}
        for configuration in configurations:
            if name.startswith("mixed") and configuration.get("kv_cache") == "q8_0":
                continue  # its heads have 16 numbers, of which q8_0 makes no block
            model = moeinf.load(name, device="cpu", **configuration)
            params = model.params(seed=1, num_predict=12, temperature=0.7)
            for prompt in prompts():
                with memory_coming_and_going(model):
                    tokens = model.generate(prompt, params).token_ids
                expected = known.setdefault((configuration.get("kv_cache", ""), prompt), tokens)
                assert tokens == expected or "isa" in configuration, (name, configuration, prompt)
                answers += 1
            next(model.stream(prompts()[1], params))
            close_from_elsewhere(model)
    print(f"{len(names)} models in {len(configurations)} configurations: {answers} answers, all as they should be")


main()
