"""Whether the time of a refusal tells how much of a key was right: Welch's t of keys that are nearly right and wrong.

Above 4.5 in 100,000 requests time tells something, as in dudect (Reparaz and others, 2017, arXiv 1612.04242).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from moeinf.server.gate.guard import Guard, Rules
from moeinf.server.openai.errors import error_body

KEY: Final = "k" * 40
NEARLY: Final = KEY[:-1] + "x"
WRONG: Final = "x" * 40
_MOST: Final = 0.9  # of the times, the shortest of which are compared: the others tell of the machine's other work


def welch_t(times: int, rng: random.Random) -> float:
    """Of so many requests, half of them with each key, in an order that is drawn; asked of the guard alone."""
    keys = [NEARLY, WRONG] * (times // 2)
    rng.shuffle(keys)
    found = asyncio.run(_timed(keys))
    nearly, wrong = (sorted(found[key])[: int(len(found[key]) * _MOST)] for key in (NEARLY, WRONG))
    spread = sqrt(variance(nearly) / len(nearly) + variance(wrong) / len(wrong))
    return abs(fmean(nearly) - fmean(wrong)) / spread


async def _timed(keys: Sequence[str]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {NEARLY: [], WRONG: []}
    guard = Guard(_nobody, Rules(keys=(KEY,)), lambda path: error_body, page=())
    head = [(b"host", b"localhost"), (b"authorization", b"")]
    for key in keys:
        head[1] = (b"authorization", f"Bearer {key}".encode())
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/v1/models", "headers": [*head]}
        begun = time.perf_counter()
        await guard(scope, _nothing, _unheard)
        found[key].append(time.perf_counter() - begun)
    return found


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("a wrong key was let in")


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _unheard(message: Message) -> None:
    """Of the answer nothing matters here."""
