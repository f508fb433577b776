"""Times the decoding of several sequences side by side: each step takes a token of every one through the layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.engine.speed.weight_bytes import token_bytes
from moeinf.engine.stored.outline import outline_of
from moeinf.hardware import peak_rss_bytes
from moeinf.runtime.cache.stats import DecodeStats
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Forced, Timing, generate
from moeinf.sampling.step_queue import Steps
from moeinf.store.library import StoredModel
from moeinf.types import Phase

Passage = tuple[Sequence[int], Sequence[int]]  # prompt and continuation


@dataclass(slots=True)
class _Unwatched:
    """moeinf.sampling.loop.Monitor that stops nothing."""

    timing: Timing
    tell: Callable[[Phase], None]

    def check(self) -> None: ...

    def gives_way(self) -> bool:
        return False

    def begin(self, phase: Phase) -> None:
        self.tell(phase)

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


def decode_beside(model: Model, passages: Sequence[Passage]) -> GenerationStats:
    """What the steps took in which all passages were decoded side by side, each in a cache of its own, once all prompts
    were read: `token_s` are seconds of a step, of as many tokens as there are passages."""
    runner, steps, stats = model.runner, Steps(model.runner, cuts=False), GenerationStats()
    profiler = model.generator.listeners.profiler

    def tell(phase: Phase) -> None:
        if phase == "prefill":
            for observer in runner.observers:
                observer.begin(phase)

    began = time.perf_counter()
    with model.generator.turns.alone(), ExitStack() as opened:
        answers = []
        for prompt, continuation in passages:
            seat = opened.enter_context(steps.seat())
            sequence = CachedTokens(runner.network.new_cache(model.plan.context))
            opened.callback(sequence.clear)
            watch, limit = _Unwatched(Timing(), tell), len(continuation)
            answer = generate(
                seat, sequence, prompt, Forced(continuation), watch, max_tokens=limit, chunk=model.plan.prefill_chunk
            )
            opened.callback(answer.close)
            while next(answer) is None:
                steps.run()
            answers.append(answer)
        stats.prompt_tokens, stats.prompt_s = sum(len(prompt) for prompt, _ in passages), time.perf_counter() - began
        for observer in runner.observers:
            observer.begin("decode")
        before, laps = runner.stats, profiler.snapshot()
        profiler.restart()
        while all(next(answer, "ended") is None for answer in answers):
            began = time.perf_counter()
            steps.run()
            for answer in answers:
                next(answer)
            stats.token_s.append(time.perf_counter() - began)
        profiler.lap("other")
        now = profiler.snapshot()
        stats.decode_cache = DecodeStats(**asdict(runner.stats.since(before)))
        stats.decode_laps = {name: now[name] - laps.get(name, 0.0) for name in now}
        runner.tier.end_request()
    stats.generated_tokens, stats.peak.rss = len(stats.token_s) * len(passages), peak_rss_bytes()
    return stats


def byte_gain(stored: StoredModel, count: int) -> float:
    """How many times the tokens of one sequence so many have in the same bytes of weights, if each step reads what it
    uses once, and their choices of experts are independent."""
    moe, layout, per_token = stored.manifest.moe, stored.manifest.layout, token_bytes(outline_of(stored))
    routed = moe.num_layers * moe.top_k * layout.stride_bytes
    union = moe.num_experts * (1 - (1 - moe.top_k / moe.num_experts) ** count) / moe.top_k
    return count * per_token / (per_token - routed + routed * union)
