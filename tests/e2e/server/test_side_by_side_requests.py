"""Requests that come at once: each gets the answer that it gets alone, and a short one does not wait for a long one."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.errors import UsageError
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import NewTokens
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


def test_a_row_that_is_no_number_fails_its_request_alone(demo: StoredModel) -> None:
    """Of three answers in a step, one is given a NaN behind its fifth token."""
    with live_server(demo, parallel=3) as server:
        wanted = [generated(server, prompt)["response"] for prompt in PROMPTS[:3]]
        (loaded,) = server.worker.opened.loaded
        network, steps = loaded.model.runner.network, list[int]()
        assert isinstance(network, Decoder)
        inputs, step, broken = network._inputs, network.step, dict[int, int]()

        def poisoned(part: NewTokens) -> Any:
            x = inputs(part)
            if (length := broken.get(id(part.cache))) is not None and part.cache.length > length + 4:
                x[...] = np.nan
            return x

        def counted(parts: Sequence[NewTokens], *given: Any, **named: Any) -> Any:
            steps.append(len(parts))
            if not broken and any(part.of_tokens == wrong for part in parts):
                broken.update((id(part.cache), wrong) for part in parts if part.of_tokens == wrong)
            return step(parts, *given, **named)

        wrong = len(loaded.model.tokenizer.encode(PROMPTS[1]))
        assert all(len(loaded.model.tokenizer.encode(PROMPTS[i])) != wrong for i in (0, 2))
        found = dict[int, str]()

        def asked(number: int) -> dict[str, Any]:
            try:
                return generated(server, PROMPTS[number])
            except urllib.error.HTTPError as error:
                found[number] = json.load(error)["error"]
                assert error.code == 500
                return {}

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, "_inputs", poisoned)
            patch.setattr(network, "step", counted)
            answers = at_once([partial(asked, number) for number in range(3)])
        assert list(found) == [1] and "gives no numbers" in found[1] and max(steps) == 3
        assert [answers[i]["response"] for i in (0, 2)] == [wanted[i] for i in (0, 2)]
        assert generated(server, PROMPTS[1])["response"] == wanted[1], "nothing of it is kept"


@pytest.mark.parametrize("reads", [1, 4])
def test_a_client_that_hangs_up_ends_its_answer_alone(demo: StoredModel, reads: int) -> None:
    body = {"model": "demo", "prompt": PROMPTS[2], "raw": True, "options": {"num_predict": 1500, "stop": [], "seed": 1}}
    with live_server(demo, parallel=3) as server:
        wanted = [generated(server, prompt)["response"] for prompt in PROMPTS[:2]]

        def hangs_up() -> dict[str, Any]:
            request = urllib.request.Request(f"{server.url}/api/generate", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                return {"lines": [answer.readline() for _ in range(reads)]}

        found = at_once([hangs_up, *(partial(generated, server, prompt) for prompt in PROMPTS[:2])])
        assert len(found[0]["lines"]) == reads and [each["response"] for each in found[1:]] == wanted
        deadline = time.monotonic() + 30
        while server.worker.view.running:
            assert time.monotonic() < deadline, "it goes on for nobody"
            time.sleep(0.02)
        assert generated(server, PROMPTS[0])["response"] == wanted[0]


def test_more_answers_than_memory_has_room_for_wait(demo: StoredModel, caplog: pytest.LogCaptureFixture) -> None:
    config = RuntimeConfig.of(device="cpu", ram="125MB", expert_cache="10%", prefix_memory="0")
    with live_server(demo, parallel=1) as server:
        wanted = [generated(server, prompt)["response"] for prompt in PROMPTS]
    with live_server(demo, parallel=32, config=config) as server, caplog.at_level("INFO"):
        found = at_once([partial(generated, server, prompt) for prompt in PROMPTS])
        (loaded,) = server.worker.opened.loaded
        assert 1 <= loaded.model.parallel < 32 and loaded.model.plan.context == 2048
        assert f"memory is short: {loaded.model.parallel} of 32 answers are made side by side" in caplog.text
    assert [each["response"] for each in found] == wanted
