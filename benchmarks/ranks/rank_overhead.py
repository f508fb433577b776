"""What a layer on two ranks costs beside computing: rank 0 asks, the worker answers with rows that it does not compute.

    python benchmarks/ranks/rank_overhead.py --hidden 2048 --top-k 8 --rows 4 --rounds 5000

Two processes over loopback. The rows are those of one token, as in decode: half of its experts are the worker's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import numpy as np

from moeinf.distributed.frames import Request, RequestForm
from moeinf.distributed.listener import Listener
from moeinf.distributed.meeting import Facts, Offer, PeerAddress
from moeinf.distributed.peer import Connection
from moeinf.distributed.replies import ReplyForm, no_numbers
from moeinf.distributed.serving import WorkerServer
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import Float32Array, MoeShape, Routing

KEY, FACTS, NUM_KEYS = b"a key of sixteen bytes", Facts("", "", ""), 1024
NO_NUMBERS = tuple(no_numbers().tolist())


class NoExperts:
    """moeinf.distributed.serving.ServedExperts that answers at once."""

    def only(self, mine: BoolArray, top_k: int) -> None:
        pass

    def run(self, request: Request, rows: Float32Array) -> None:
        pass

    def counted(self) -> tuple[float, ...]:
        return NO_NUMBERS

    def end(self) -> None:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--hidden", 2048), ("--top-k", 8), ("--rows", 4), ("--rounds", 5000), ("--tokens", 1)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    shape = MoeShape(NUM_KEYS // 128, 128, given.top_k)
    reading, writing = os.pipe()
    if os.fork() == 0:
        listener = Listener("127.0.0.1", 0, KEY)
        os.write(writing, f"{listener.address.port}\n".encode())
        server = WorkerServer(listener, FACTS, Offer(1, 1.0), NoExperts(), lambda line: None)
        server.run(RequestForm(shape, given.hidden), ReplyForm(given.hidden))
        sys.exit()
    port = int(os.read(reading, 16))
    connection = Connection(PeerAddress("127.0.0.1", port), KEY, FACTS, shape, given.hidden)
    connection.own(np.arange(0, NUM_KEYS, 2), shape)
    rng = np.random.default_rng(0)
    ids = 2 * rng.integers(0, 64, (given.tokens, given.top_k)) + 1  # of rank 0
    ids[:, : given.rows] -= 1
    hidden = rng.standard_normal((given.tokens, given.hidden)).astype(np.float32)
    request = Request(
        3, ids, hidden, given.tokens, given.rows * given.tokens, 4, Routing(ids, np.ones(ids.shape, np.float32))
    )
    posts, rounds = [], []
    for _ in range(given.rounds):
        began = time.perf_counter()
        connection.ask(request)
        posted = time.perf_counter()
        connection.collect()
        rounds.append(time.perf_counter() - began)
        posts.append(posted - began)
    connection.leave()
    for name, seconds in (("to ask", posts), ("until the rows are here", rounds)):
        tenths = [each * 1e6 for each in statistics.quantiles(seconds, n=10)]
        print(f"{name}: median {tenths[4]:.0f} us, nine of ten below {tenths[8]:.0f} us, one below {tenths[0]:.0f} us")


if __name__ == "__main__":
    main()
