"""Time to the first token of a chat's second turn, by where the first one's keys and values are: a Markdown table.

    MOEINF_HOME=... python benchmarks/prefix_time.py MODEL --tokens 2000 20000 --num-ctx 24000

Prompts are of random tokens, which route to more experts than text does. In each row: a prompt of so many tokens,
which nothing is known of, then the same with `--more` other tokens behind it, which is given
    live        while the first one is still in the cache,
    memory      after another prompt of a hundred tokens,
    disk        after a restart and another prompt (opening the model is not counted).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Sequence

import numpy as np

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.hardware import cpu_name
from moeinf.sampling.loop import Forced
from moeinf.store.library import Library, StoredModel
from moeinf.store.model_folders import prefix_folder

PLACES = ("live", "memory", "disk")
BETWEEN = 100  # tokens of the prompt that comes between


def first_token(model: Model, prompt: Sequence[int]) -> GenerationStats:
    """Of a request for one token."""
    stats = GenerationStats()
    for _ in model.generator.tokens(list(prompt), Forced([3]), 1, stats):
        pass
    return stats


def measured(stored: StoredModel, arguments: argparse.Namespace, tokens: int, run: int) -> dict[str, GenerationStats]:
    """Of the first prompt, and of a longer one from each place."""
    numbers = np.random.default_rng([tokens, run])

    def drawn(count: int) -> list[int]:
        ids: list[int] = numbers.integers(3, stored.manifest.info.vocab_size, count).tolist()
        return ids

    first, found = drawn(tokens), dict[str, GenerationStats]()
    config = RuntimeConfig.of(
        context=arguments.num_ctx,
        ram=arguments.ram,
        threads=arguments.threads,
        prefix_memory=arguments.memory,
        prefix_disk=arguments.disk,
    )
    shutil.rmtree(prefix_folder(store_home(), stored.id), ignore_errors=True)
    with Model(stored, config) as model:
        first_token(model, drawn(BETWEEN))  # so that what is loaded once is loaded
        found["first"] = first_token(model, first)
        found["live"] = first_token(model, first + drawn(arguments.more))
        first_token(model, drawn(BETWEEN))
        found["memory"] = first_token(model, first + drawn(arguments.more))
    with Model(stored, config) as model:
        first_token(model, drawn(BETWEEN))
        found["disk"] = first_token(model, first + drawn(arguments.more))
    assert found["first"].cached_tokens == 0
    for place in PLACES:
        assert found[place].cached_from == place and found[place].cached_tokens == tokens, found[place]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 2000, 8000, 20000])
    parser.add_argument("--more", type=int, default=32, help="tokens of the second turn")
    parser.add_argument("--num-ctx", type=int, default=24000)
    parser.add_argument("--ram")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", default="2GiB", help="for prefixes")
    parser.add_argument("--disk", default="8GB", help="for prefixes")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    stored = Library(store_home()).find(arguments.model)
    print(f"{stored.name}, {cpu_name()}, {os.cpu_count()} CPUs, n={arguments.runs}, {arguments.more} new tokens\n")
    print(f"| tokens | first turn | {' | '.join(f'second, {place}' for place in PLACES)} |\n|---:|---:|---:|---:|---:|")
    for tokens in arguments.tokens:
        runs = [measured(stored, arguments, tokens, run) for run in range(arguments.runs)]
        seconds = {place: statistics.median(each[place].prompt_s for each in runs) for place in runs[0]}
        whole = seconds["first"]
        shares = [f"{seconds[place]:.2f} s ({seconds[place] / whole:.1%})" for place in PLACES]
        print(f"| {tokens} | {whole:.1f} s | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
