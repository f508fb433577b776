"""How often an expert is in memory when it is asked for, by the size of the cache and by the eviction policy.

    python examples/hit_rate.py [MODEL] [--cache 20%] [--cache 50%] [--policy lru] [--policy next-use] [--prompt TEXT]

A hit is an activation (one token, one layer, one choice) whose expert was resident. The answer is the same in every
row: where an expert lies changes the time of a token, and never the token. Prefetch is off, so that the policy alone
is compared.
"""

from __future__ import annotations

import argparse

import moeinf


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the hit rate of the expert cache.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--cache", action="append", help="size of the cache: 20%%, 4GiB; repeatable")
    parser.add_argument("--policy", action="append", help="lru, lfu, paper, next-use; repeatable")
    parser.add_argument("--prompt", default="Once upon a time there was a king who")
    given = parser.parse_args()

    print("| cache | policy | hit rate | waited for experts, s | tokens |")
    print("|---|---|---|---|---|")
    for cache in given.cache or ["20%", "50%"]:
        for policy in given.policy or ["lru", "next-use"]:
            with moeinf.load(given.model, expert_cache=cache, policy=policy, prefetch=False) as model:
                completion = model.generate(given.prompt, model.params(temperature=0, num_predict=64))
            decode = completion.stats.decode_cache
            print(
                f"| {cache} | {policy} | {decode.hit_rate:.3f} | {decode.stall_s:.3f} | {len(completion.token_ids)} |"
            )


if __name__ == "__main__":
    main()
