"""Four clients of one server at once, of which a third hangs up before or within the answer."""

from __future__ import annotations

import collections
import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress

NUM_CLIENTS = 4
ENDINGS = {"200", "hung up before the answer", "hung up within it"}
TEXT = "Once upon a time there was a little girl who loved to play with the dog in the garden ."
WORDS = TEXT.split()


def ask_in_parallel(port: int, models: Sequence[str], seconds: float) -> collections.Counter[str]:
    """How many requests ended how: ENDINGS, or a word of what went wrong."""
    found: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_ask, args=(port, models, end, seed, found)) for seed in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _ask(port: int, models: Sequence[str], end: float, seed: int, found: collections.Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < end:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=240)) as connection:
            try:
                found[_one(connection, rng, models, seed)] += 1
            except (OSError, http.client.HTTPException) as error:
                found[repr(error)] += 1


def _one(connection: http.client.HTTPConnection, rng: random.Random, models: Sequence[str], seed: int) -> str:
    body = {
        "model": rng.choice([models[0], *models]),
        "prompt": " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 2, 8, 9, 64, 65, 300]))),
        "max_tokens": rng.choice([1, 5, 30]),
        "stream": rng.random() < 0.6,
        "seed": rng.randrange(99),
        "temperature": rng.choice([0, 0.7, 2]),
        "top_p": rng.choice([1, 0.9, 0.1]),
        "logit_bias": rng.choice([None, {str(rng.randrange(4000)): rng.choice([100, -100])}]),
    }
    headers = {"content-type": "application/json", "authorization": f"Bearer {seed}"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    if rng.random() < 0.33:
        time.sleep(0.2 * rng.random())
        if rng.random() < 0.5:
            return "hung up before the answer"
        with suppress(OSError, http.client.HTTPException):
            connection.getresponse().read(10)
        return "hung up within it"
    answer = connection.getresponse()
    text = answer.read()
    return "200" if answer.status == 200 else f"{answer.status} {text[:90]!r}"
