"""Where the time of a token and of a prompt goes on a GPU: kernel by kernel, and what the host takes between them.

    python benchmarks/gpu/token_on_gpu.py MODEL [--expert-cache 100%] [--device cuda] [--tokens 60]

Four answers to one prompt come first, so that kernels are compiled and the step is captured. Then torch's profiler
counts the work of an answer as long, and that of a prompt which shares nothing with the others; last, cProfile says in
which functions of moeinf the host is meanwhile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.model import Model
from moeinf.store.library import Library

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said: " * 20
OTHER = "A wholly different beginning of a text that was never seen before in this place: " * 40
LINES = 24


def answer(model: Model, prompt: str, tokens: int) -> None:
    stats = model.generate(prompt, model.params(temperature=0.0, num_predict=tokens, stop=())).stats
    times = sorted(1e3 * seconds for seconds in stats.token_s)
    median, slowest = times[len(times) // 2], times[-1]
    print(f"{stats.prompt_tokens} tokens read, {len(times)} decoded: median {median:.3f} ms, slowest {slowest:.1f}")


def kernels(model: Model, prompt: str, tokens: int) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        answer(model, prompt, tokens)
        torch.cuda.synchronize()
    work = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    totals = defaultdict[str, list[float]](lambda: [0, 0.0])
    for event in work:
        totals[event.name[:60]][0] += 1
        totals[event.name[:60]][1] += event.time_range.elapsed_us()
    if not work:
        print("the profiler saw no work of a GPU: it may lack the permission to look")
        return
    busy = sum(us for _, us in totals.values())
    span = max(e.time_range.end for e in work) - min(e.time_range.start for e in work)
    print(f"the GPU computes {busy / 1e3:.2f} of {span / 1e3:.2f} ms")
    for name, (count, us) in sorted(totals.items(), key=lambda item: -item[1][1])[:LINES]:
        print(f"  {us / 1e3:9.3f} ms {count:6.0f} x {us / count:8.2f} us  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--expert-cache", default="100%")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=60)
    given = parser.parse_args()
    stored = Library(store_home()).find(given.model)
    with Model(stored, RuntimeConfig.of(device=given.device, expert_cache=given.expert_cache)) as model:
        for _ in range(4):
            answer(model, PROMPT, given.tokens)
        if given.device != "cpu":
            kernels(model, PROMPT, given.tokens)
            kernels(model, OTHER, 2)
        profiler = cProfile.Profile()
        profiler.runcall(answer, model, PROMPT, given.tokens)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()
