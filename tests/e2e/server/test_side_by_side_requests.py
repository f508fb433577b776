"""Requests that come at once: each gets the answer that it gets alone, and a short one does not wait for a long one."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.errors import UsageError
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server

PROMPTS = ("Once upon a time", "The little dog", "There was a girl who", "One day a bird " * 20)


def generated(server: HttpServer, prompt: str, num_predict: int = 24, **options: Any) -> dict[str, Any]:
    body = {
        "model": "demo",
        "prompt": prompt,
        "raw": True,
        "stream": False,
        "options": {"temperature": 0.7, "seed": 5, "num_predict": num_predict, **options},
    }
    request = urllib.request.Request(f"{server.url}/api/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def at_once(calls: list[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}

    def call(number: int) -> None:
        found[number] = calls[number]()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(calls))]


@pytest.mark.parametrize("parallel", [None, 2, 4])
def test_requests_at_once_get_what_each_gets_alone(demo: StoredModel, parallel: int | None) -> None:
    with live_server(demo, parallel=1) as server:
        wanted = [generated(server, prompt)["response"] for prompt in PROMPTS]
    with live_server(demo, parallel=parallel) as server:
        for _ in range(2):
            found = at_once([partial(generated, server, prompt) for prompt in PROMPTS])
            assert [each["response"] for each in found] == wanted
        (loaded,) = server.worker.opened.loaded
        assert loaded.model.parallel == (parallel or 4)


def test_a_short_request_ends_while_a_long_one_goes_on(demo: StoredModel) -> None:
    with live_server(demo, parallel=2) as server:
        generated(server, "Hello", 1)
        order = list[str]()

        def asked(name: str, num_predict: int) -> dict[str, Any]:
            found = generated(server, PROMPTS[0], num_predict, stop=[], ignore_eos=True)
            order.append(name)
            return found

        long = threading.Thread(target=asked, args=("long", 3000))
        long.start()
        deadline = time.monotonic() + 30
        while not (server.worker.view.running or order):
            assert time.monotonic() < deadline
        asked("short", 3)
        long.join()
    assert order == ["short", "long"]


def test_a_long_common_beginning_is_read_once(demo: StoredModel) -> None:
    common = "The fox and the dog went to the river, and there they saw a boat. " * 12
    prompts = [common + end for end in ("Then it rained.", "A boy came.", "The dog")]
    with live_server(demo, parallel=1, config=RuntimeConfig.of(device="cpu", prefix_memory="0")) as server:
        wanted = [generated(server, prompt, 8) for prompt in prompts]
    tokens = min(each["prompt_eval_count"] for each in wanted) - 20
    with live_server(demo, parallel=3, config=RuntimeConfig.of(device="cpu", prefix_memory="0")) as server:
        found = at_once([partial(generated, server, prompt, 8) for prompt in prompts])
    assert [each["response"] for each in found] == [each["response"] for each in wanted]
    reused = sorted(each["moeinf"]["cached_tokens"] for each in found)
    assert reused[0] == 0 and reused[1] > tokens > 200


@pytest.mark.parametrize("parallel", [0, -1, 65])
def test_a_number_that_cannot_be_is_refused(parallel: int) -> None:
    with pytest.raises(UsageError, match="--parallel must be between 1 and 64"):
        ServerOptions(parallel=parallel)
