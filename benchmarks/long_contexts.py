"""Tokens a second of decode and prefill far behind the beginning of a sequence, whose cache is filled with noise.

    python benchmarks/long_contexts.py MODEL --depths 0,512,8000,32000 [--prefill 0] [--kv-cache q8_0] [--threads 2]

MODEL: a stored model, or a GGUF file that is used where it lies. Nothing is computed of the tokens before, which is
what `llama-bench -d DEPTH` spends most of its time on: random keys and values take as long as true ones. The tests are
those of llama-bench, 512 tokens of a prompt and 32 one by one. A JSON object a depth, as benchmarks/peers/depths.cc
prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import kept_format
from moeinf.engine.model import Model
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.latent.mla import LatentState
from moeinf.terminal.session_opening import ensure_stored
from moeinf.types import ByteArray

PROMPT = 512


def fill(memory: ByteArray, kept: str) -> None:
    """Noise that is no number of extreme size, in any of the formats."""
    rng = np.random.default_rng(0)
    if kept == "q8_0":
        blocks = rng.integers(0, 256, (1 << 14, 34)).astype(np.uint8)
        blocks[:, :2] = np.array([0.01], np.float16).view(np.uint8)
        noise = blocks.reshape(-1)
    else:
        wide = rng.standard_normal(1 << 20).astype(np.float32)
        bits = wide.view(np.uint32) >> 16
        noise = wide.view(np.uint8) if kept == "f32" else bits.astype(np.uint16).view(np.uint8)
    memory[:] = np.resize(noise, len(memory))


def timed(model: Model, ids: Sequence[int], depth: int) -> float:
    runner = model.runner
    runner.cache.length = depth
    started = time.perf_counter()
    runner.network.forward(ids, runner.cache)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", default="0,512,8000,32000")
    parser.add_argument("--prefill", help="depths at which a prompt is timed, too [default: all of them]")
    parser.add_argument("--decode", type=int, default=32, help="tokens one by one")
    parser.add_argument("--kv-cache", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    depths = [int(depth) for depth in given.depths.split(",")]
    prompts = [int(depth) for depth in given.prefill.split(",")] if given.prefill else depths
    config = RuntimeConfig.of(
        device="cpu",
        context=max(depths) + PROMPT + 64,
        threads=given.threads,
        kv_cache=given.kv_cache,
        expert_cache="100%",
    )
    ids = np.random.default_rng(1).integers(3, 1000, PROMPT).tolist()
    with Model(ensure_stored(given.model, quiet=True), config) as model:
        kept = kept_format(model.manifest.info, config)
        for state in model.runner.cache.states:
            if isinstance(state, KVState):
                fill(state.keys, kept)
                fill(state.values, kept)
            elif isinstance(state, LatentState):
                fill(state.rows, kept)
        timed(model, ids, 0)  # warms up
        for depth in depths:
            prefill = PROMPT / timed(model, ids, depth) if depth in prompts else 0
            steps = [timed(model, [each], depth + 16) for each in ids[: given.decode]]
            decode = 1 / statistics.median(steps)
            print(
                json.dumps({"depth": depth, "prefill_ts": round(prefill, 2), "decode_ts": round(decode, 2)}), flush=True
            )


if __name__ == "__main__":
    main()
