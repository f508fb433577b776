"""What `--approx` costs and gives: KL divergence against tokens a second and bytes read, by what tokens may do without.

    .venv/bin/python benchmarks/approx_table.py demo --expert-cache 33%
    .venv/bin/python benchmarks/approx_table.py mix:q8_0 --expert-cache 33% --tokens 96 --levels 0.1,0.6

A text is decoded token by token behind a prompt of 32: exactly, then with each level, `--repeats` times by turns, from
the same prompt. KL(exact || approximate) is of the distribution behind each token. `--left-out-alone` lets nothing
stand in for an expert that is given up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import moeinf.engine.cpu
from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.config.user_text import text_of
from moeinf.engine.approximate.calibration import PROMPT_TOKENS
from moeinf.engine.approximate.distributions import divergence, log_softmax
from moeinf.engine.model import Model
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.pull.pull import ensure
from moeinf.runtime.approximate import Within
from moeinf.types import Float32Array


@dataclass
class Level:
    """What was measured of one."""

    most_lost: float
    seconds: list[float] = field(default_factory=list)  # of a token
    read_bytes: list[float] = field(default_factory=list)  # of a token
    divergences: list[float] = field(default_factory=list)  # of each token
    same: list[bool] = field(default_factory=list)  # whether its likeliest successor is the exact one
    given_up: list[float] = field(default_factory=list)  # experts of a token
    instead: int = 0

    def cells(self, exact: Level) -> list[str]:
        kl, count = statistics.fmean(self.divergences), len(self.divergences)
        spread = statistics.pstdev(self.divergences) / count**0.5
        read, all_read = statistics.fmean(self.read_bytes), statistics.fmean(exact.read_bytes)
        return [
            f"{self.most_lost:.0%}" if self.most_lost else "exact",
            f"{kl:.4f} ± {spread:.4f}",
            f"{statistics.fmean(self.same):.1%}",
            f"{statistics.fmean(self.given_up):.2f}",
            f"{read / 2**20:.3f}",
            f"{read / all_read:.0%}",
            f"{1 / statistics.median(self.seconds):.1f}",
            f"{statistics.median(exact.seconds) / statistics.median(self.seconds):.2f}",
        ]


def decode(model: Model, tokens: list[int], level: Level, exact: list[Float32Array]) -> None:
    """Decodes the text; `exact` is filled by the first run, and compared with by others."""
    runner, fills = model.runner, not exact
    approx = runner.approx
    assert approx is not None
    approx.within = Within(0.0, 0.0, level.most_lost)
    runner.cache.truncate(0)
    for observer in runner.observers:
        observer.begin("prefill")
    runner.step([NewTokens(tokens[:PROMPT_TOKENS], runner.cache, PROMPT_TOKENS)], lambda: None)
    for observer in runner.observers:
        observer.begin("decode")
    before, instead, left_out, seconds = runner.reader.bytes_read(), approx.instead, approx.left_out, 0.0
    for number, token in enumerate(tokens[PROMPT_TOKENS:]):
        began = time.perf_counter()
        row = runner.step([NewTokens([token], runner.cache)], lambda: None)[0]
        seconds += time.perf_counter() - began
        found = log_softmax(row)
        if fills:
            exact.append(found)
        wanted = exact[number]
        level.divergences.append(max(0.0, float(divergence(wanted, found))))
        level.same.append(bool(wanted.argmax() == found.argmax()))
    count = len(tokens) - PROMPT_TOKENS
    level.seconds.append(seconds / count)
    level.read_bytes.append((runner.reader.bytes_read() - before) / count)
    level.given_up.append((approx.instead - instead + approx.left_out - left_out) / count)
    level.instead += approx.instead - instead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--expert-cache", default="33%")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--levels", default="0.05,0.1,0.2,0.3,0.4,0.6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", default="", help="a file; the text of `moeinf bench` without one")
    parser.add_argument("--left-out-alone", action="store_true")
    asked = parser.parse_args()
    if asked.left_out_alone:
        moeinf.engine.cpu.SPARES = 0  # type: ignore[misc]
    stored = ensure(asked.model, home=Path(store_home()))
    exact, levels = Level(0.0), [Level(float(each)) for each in asked.levels.split(",")]
    with Model(stored, RuntimeConfig.of(device="cpu", expert_cache=asked.expert_cache, approx=0)) as model:
        tokens = model.tokenizer.encode(text_of("--text", asked.text))[: PROMPT_TOKENS + asked.tokens]
        print(model.describe())
        rows: list[Float32Array] = []
        decode(model, tokens, Level(0.0), rows)  # a first one, so that the cache is warm
        for _ in range(asked.repeats):
            for level in (exact, *levels):
                decode(model, tokens, level, rows)
    names = ("may give up", "KL, nats", "same top token", "given up", "MiB read", "of exact", "tokens/s", "times")
    print(f"\n{len(tokens) - PROMPT_TOKENS} tokens, {asked.repeats} runs; figures are of a token\n")
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for level in (exact, *levels):
        print("| " + " | ".join(level.cells(exact)) + " |")


if __name__ == "__main__":
    main()
