"""Work for several threads, which one does alone where the system has no more to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def mapped(call: Callable[[T], R], items: Sequence[T], num_threads: int) -> Iterator[R]:
    """Yields what `call` returns for each item, in their order.

    call: free of side effects: one item may be computed twice. It is called in up to num_threads threads, and in the
    caller's for what no thread could be started for.
    """
    with ThreadPoolExecutor(num_threads) as pool:
        futures = []
        with suppress(RuntimeError):  # no thread could be started
            for item in items:
                futures.append(pool.submit(call, item))
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
    yield from map(call, items[len(futures) :])
