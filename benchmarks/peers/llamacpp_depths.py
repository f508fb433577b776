"""Tokens a second of llama.cpp far behind the beginning of a sequence, whose cache is filled as long_contexts.py does.

    python benchmarks/peers/llamacpp_depths.py FILE.gguf --depths 0,512,8000,32000 [--threads 2] [--no-repack]

`llama-bench -d DEPTH` computes the tokens before, for which it takes a quarter of an hour at 32,000. Here the state of
two tokens is saved, made as long as the depth by repeating what it has of each layer, and loaded: the same kernels read
as many keys and values. The tests are those of llama-bench, 512 tokens of a prompt and 32 one by one, with flash
attention, which llama.cpp chooses by itself on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from ctypes import c_uint8

import llama_cpp
import numpy as np
from llamacpp_run import Session

PROMPT, BEGUN = 512, 2
CELL = np.dtype([("position", "<i4"), ("num_sequences", "<u4"), ("sequence", "<i4")])
HEAD = np.dtype([("magic", "<u4"), ("sequence", "<i4"), ("streams", "<u4"), ("cells", "<u4")])
ROWS = np.dtype([("type", "<i4"), ("row_bytes", "<u8")])  # of the keys, or the values, of one layer


def lengthened(state: bytes, depth: int) -> bytes:
    """The state of a sequence of BEGUN tokens, as llama_kv_cache::state_write lays it out, made `depth` tokens long."""
    head = np.frombuffer(state, HEAD, 1).copy()
    if head["streams"][0] != 1 or head["cells"][0] != BEGUN:
        raise ValueError("this version of llama.cpp writes its state in another way")
    head["cells"] = depth
    cells = np.zeros(depth, CELL)
    cells["position"], cells["num_sequences"] = np.arange(depth), 1
    at = HEAD.itemsize + BEGUN * CELL.itemsize
    transposed, num_layers = np.frombuffer(state, "<u4", 2, at)
    if transposed:
        raise ValueError("values lie transposed: llama.cpp has not chosen flash attention")
    parts = [head.tobytes(), cells.tobytes(), state[at : at + 8]]
    at += 8
    for _ in range(2 * num_layers):
        size = BEGUN * int(np.frombuffer(state, ROWS, 1, at)["row_bytes"][0])
        parts.append(state[at : at + ROWS.itemsize])
        at += ROWS.itemsize
        parts.append(state[at : at + size] * (depth // BEGUN))
        at += size
    if at != len(state):
        raise ValueError("this version of llama.cpp writes its state in another way")
    return b"".join(parts)


class Deep(Session):
    """A session that can begin behind tokens that were never computed."""

    def begin_at(self, depth: int) -> None:
        self.forget()
        if depth:
            self.decode([3] * BEGUN)
            size = llama_cpp.llama_state_seq_get_size(self._context, 0)
            kept = (c_uint8 * size)()
            llama_cpp.llama_state_seq_get_data(self._context, kept, size, 0)
            longer = lengthened(bytes(kept), depth)
            self.forget()
            given = (c_uint8 * len(longer)).from_buffer_copy(longer)
            if llama_cpp.llama_state_seq_set_data(self._context, given, len(longer), 0) != len(longer):
                raise RuntimeError(f"llama.cpp does not take a state of {depth} tokens")

    def timed(self, tokens: list[int]) -> float:
        started = time.perf_counter()
        self.decode(tokens)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--depths", default="0,512,8000,32000")
    parser.add_argument("--decode", type=int, default=32, help="tokens one by one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-repack", action="store_true", help="quantised weights stay in the mapped file")
    given = parser.parse_args()
    depths = [int(depth) for depth in given.depths.split(",")]
    session = Deep(given.gguf, max(depths) + PROMPT + 64, given.threads, repack=not given.no_repack)
    ids = np.random.default_rng(1).integers(3, 1000, PROMPT).tolist()
    session.decode(ids)  # warms up
    print("| depth | prefill 512, tokens/s | decode, tokens/s |\n|---|---|---|")
    for depth in depths:
        session.begin_at(depth)
        prefill = PROMPT / session.timed(ids)
        session.begin_at(depth)
        steps = [session.timed([token]) for token in ids[: given.decode]]
        print(f"| {depth} | {prefill:.1f} | {1 / statistics.median(steps):.1f} |", flush=True)


if __name__ == "__main__":
    main()
