"""Times the decoding of several sequences side by side: tokens a second of all together, by how many there are.

    python benchmarks/parallel_rate.py coder:q8_0 --sessions 1,2,4,8 --expert-cache 33%

Each sequence is fed a passage of its own, behind a prompt of 32 tokens. Each round takes every number of sequences
once, in another order; what is printed is the median of the rounds. `bound` is what the bytes allow, if every sequence
chose experts on its own, and dense weights were read once.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import resources

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.model import Model
from moeinf.engine.speed.weight_bytes import token_bytes
from moeinf.engine.stored.outline import outline_of
from moeinf.sampling.loop import CachedTokens, Forced, Timing, generate
from moeinf.sampling.step_queue import Steps
from moeinf.store.library import Library, StoredModel
from moeinf.types import Phase

PROMPT = 32


class Unwatched:
    """moeinf.sampling.loop.Monitor that stops nothing."""

    def __init__(self) -> None:
        self.timing = Timing()

    def check(self) -> None: ...

    def begin(self, phase: Phase) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sessions", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--expert-cache", default="100%")
    parser.add_argument("--no-prefetch", action="store_true")
    given = parser.parse_args()
    counts = [int(count) for count in given.sessions.split(",")]
    stored = Library(store_home()).find(given.model)
    config = RuntimeConfig.of(
        device="cpu", threads=given.threads, expert_cache=given.expert_cache, prefetch=not given.no_prefetch
    )
    with Model(stored, config) as model:
        text = resources.files("moeinf").joinpath("data/bench_text.txt").read_text(encoding="utf-8")
        ids = itertools.cycle(model.tokenizer.encode(text, bos=False))
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(given.rounds):
            for count in counts if number % 2 else counts[::-1]:
                texts = [list(itertools.islice(ids, PROMPT + given.tokens)) for _ in range(count)]
                rates[count].append(rate(model, texts))
        held, total = model.plan.num_slots, model.manifest.moe.total_experts
        print(f"{stored.name}, {held} of {total} experts, {given.rounds} rounds")
        one = statistics.median(rates[counts[0]])
        for count, found in rates.items():
            median = statistics.median(found)
            bound = byte_bound(model, stored, count) / byte_bound(model, stored, counts[0])
            print(f"{count:3} sessions  {median:9.2f} tokens/s  x {median / one:.2f}  bound x {bound:.2f}")


def rate(model: Model, texts: Sequence[list[int]]) -> float:
    """Tokens a second of all sequences together, once all have read their prompts."""
    steps, decoded = Steps(model.runner), [0] * len(texts)
    with ExitStack() as seats:
        answers = []
        for text in texts:
            sequence = CachedTokens(model.runner.network.new_cache(model.plan.context))
            seat = seats.enter_context(steps.seat())
            forced = Forced(text[PROMPT:])
            answers.append(
                generate(seat, sequence, text[:PROMPT], forced, Unwatched(), max_tokens=len(text) - PROMPT, chunk=512)
            )

        def go_on() -> bool:
            """Reads each answer as far as it goes; whether all wait for a step."""
            waiting = 0
            for i, answer in enumerate(answers):
                for token in answer:
                    if token is None:
                        waiting += 1
                        break
                    decoded[i] += 1
            return waiting == len(answers)

        go_on()
        while not all(decoded):
            steps.run()
            go_on()
        before, started = sum(decoded), time.perf_counter()
        steps.run()
        while go_on():
            steps.run()
        return (sum(decoded) - before) / (time.perf_counter() - started)


def byte_bound(model: Model, stored: StoredModel, count: int) -> float:
    """Tokens for each byte that a step reads, of `count` sequences whose choices of experts are independent."""
    moe, per_token = model.manifest.moe, token_bytes(outline_of(stored))
    routed = moe.num_layers * moe.top_k * model.manifest.layout.stride_bytes
    union = moe.num_experts * (1 - (1 - moe.top_k / moe.num_experts) ** count) / moe.top_k
    return count / (per_token - routed + routed * union)


if __name__ == "__main__":
    main()
