"""Options that say how tokens are drawn: each of the table in docs/sampling.md is obeyed on its routes, by its rule."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import moeinf
from moeinf.config.option import http_options, options
from moeinf.pull.pull import ensure
from moeinf.sampling.params import SamplingParams
from moeinf.server.serve import HttpServer
from tests.support.live_server import live_server

PAGE = Path(__file__).parents[3] / "docs" / "sampling.md"
MODELS = Path(moeinf.__file__).parent / "data"
HI = [{"role": "user", "content": "Once upon a time there was a king"}]
PATHS = {"OpenAI": "/v1/chat/completions", "ollama": "/api/chat", "Anthropic": "/v1/messages"}
LEGAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({}, {"5": 1}, {"0": -100, "4095": 100.0}, None),
    "repetition_penalty": (1.0, 0.5, 1.3, None),
    "repeat_penalty": (1.0, 0.5, 1.3),
    "repeat_last_n": (0, 1, 64, -1),
    "frequency_penalty": (0, 2, -2),
    "presence_penalty": (0, 2, -2),
    "min_tokens": (0, 2),
    "temperature": (0, 1e-9, 0.7, 2),
    "top_k": (0, 1, 40, 10**9),
    "top_p": (0, 0.5, 1),
    "min_p": (0, 0.1, 1),
    "typical_p": (0, 0.7, 1),
    "seed": (0, -1, -(2**63), 2**63, 10**30),
    "stop": ("x", ["x", "y"]),
    "stop_sequences": ([], ["x"]),
    "max_tokens": (1, 2),
    "max_completion_tokens": (1, 2),
    "n_predict": (1, 2),
    "num_predict": (1, 2),
}
OUT_OF_RANGE: dict[str, Any] = {
    "logit_bias": {"5": 1e39},
    "repetition_penalty": 0,
    "min_tokens": -1,
    "temperature": -1,
    "num_predict": "many",
    "repeat_last_n": "many",
    "stop": 5,
    "stop_sequences": "x",
}


def rows() -> dict[str, list[list[str]]]:
    """The table's cells by the names of its options."""
    found: dict[str, list[list[str]]] = {}
    for line in re.findall(r"^\| `.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        name, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        found.setdefault(name.strip("`"), []).append(cells)
    return found


def on_route(route: str) -> list[str]:
    return [name for name, lines in rows().items() if any(route in line[-1].split(", ") for line in lines)]


def asked(route: str, name: str, value: object) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "demo", "messages": HI, "stream": False}
    if route == "ollama":
        return body | {"options": {"num_predict": 2, name: value}}
    return body | {"max_tokens": 2, name: value}


def test_the_table_lists_every_option_of_each_route() -> None:
    assert set(on_route("OpenAI")) == {*http_options("openai", SamplingParams), "logit_bias"}
    assert set(on_route("ollama")) == set(http_options("ollama", SamplingParams))
    assert set(on_route("moeinf")) == {each.name for each in options(SamplingParams)}
    assert set(on_route("Anthropic")) == {"temperature", "top_k", "top_p", "max_tokens", "stop_sequences"}
    for name, lines in rows().items():
        routes = [route for line in lines for route in line[-1].split(", ")]
        assert len(routes) == len(set(routes)) and all(len(line) == 3 for line in lines), name


@pytest.mark.parametrize(("route", "name"), [(route, name) for route in PATHS for name in on_route(route)])
def test_each_option_of_the_table_is_taken_and_read(server: HttpServer, route: str, name: str) -> None:
    for value in LEGAL[name]:
        answer = httpx.post(server.url + PATHS[route], json=asked(route, name, value))
        assert answer.status_code == 200, (value, answer.text)
    wrong = httpx.post(server.url + PATHS[route], json=asked(route, name, OUT_OF_RANGE.get(name, "many")))
    assert wrong.status_code == 400 and name in wrong.text.replace("num_predict", f"num_predict {name}")


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ({"5": 1e39}, "logit_bias must be between -100 and 100, not 1e+39 for 5"),
        ({"5": -3.5e38}, "logit_bias must be between -100 and 100"),
        ({"5": 101}, "logit_bias must be between -100 and 100"),
        ({"²": 1}, "logit_bias: '²' is no token id"),
        ({"٣": 1}, "is no token id"),
        ({"-1": 1}, "is no token id"),
        ({"": 1}, "is no token id"),
        ({"05": 1}, "is no token id"),
        ({"9" * 5000: 1}, "is no token id"),
        ({"4096": 1}, "logit_bias names token 4096, but the ids of this model go from 0 to 4095"),
        ({"9999999999": 1}, "logit_bias names token 9999999999"),
        ({"5": None}, "logit_bias"),
        ({"5": "much"}, "logit_bias"),
        ([[5, 1]], "logit_bias"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_that_is_none_is_refused_and_the_server_answers_on(
    server: HttpServer, bias: object, said: str, stream: bool
) -> None:
    body = asked("OpenAI", "logit_bias", bias) | {"stream": stream}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert refused.status_code == 400 and said in refused.json()["error"]["message"]
    assert httpx.post(f"{server.url}/v1/chat/completions", json=asked("OpenAI", "seed", 1)).status_code == 200


def test_a_bias_is_a_ban_or_a_certainty(server: HttpServer) -> None:
    def told(bias: dict[str, float]) -> list[str]:
        body = asked("OpenAI", "logit_bias", bias) | {"temperature": 1.5, "logprobs": True, "max_tokens": 6}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
        return [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]

    assert len(set(told({"300": 100}))) == 1
    assert told({"300": 100, "301": 100, "302": -100}) != []


def greedy(server: HttpServer, path: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(server.url + path, json={"model": "demo", "stream": False, **more}).json()
    return answer


def test_openais_penalties_count_the_answer_and_ollamas_the_window(server: HttpServer) -> None:
    """A prompt that holds what the model would say first: only a window over the prompt changes the first word."""
    prompt = "Once upon a time, there was a little girl named Lily. Once upon a time, there was a little girl named"
    plain = greedy(server, "/v1/completions", prompt=prompt, temperature=0, max_tokens=1)["choices"][0]["text"]
    penalty = {"presence_penalty": 2, "frequency_penalty": 2}
    openai = greedy(server, "/v1/completions", prompt=prompt, temperature=0, max_tokens=1, **penalty)
    assert openai["choices"][0]["text"] == plain
    options = {"temperature": 0, "num_predict": 1, "presence_penalty": 30}
    assert greedy(server, "/api/generate", prompt=prompt, raw=True, options=options)["response"] != plain
    none = options | {"repeat_last_n": 0}
    assert greedy(server, "/api/generate", prompt=prompt, raw=True, options=none)["response"] == plain


def test_every_repetition_is_penalised_in_a_long_answer(server: HttpServer) -> None:
    """With OpenAI's rule a token may come again and again, each time less likely: beyond 64 tokens as before them."""
    asked = {"prompt": "a a a a", "temperature": 0, "max_tokens": 150, "logit_bias": {"300": 100}}
    free = greedy(server, "/v1/completions", **asked)["choices"][0]["text"]
    held = greedy(server, "/v1/completions", **asked, frequency_penalty=2)["choices"][0]["text"]
    word = free[: len(free) // 150]
    assert free == word * 150 and 30 < held.count(word) < 90


def own_server(home: Path, asked: dict[str, Any]) -> AbstractContextManager[HttpServer]:
    """Serves the embedded model with another generation_config.json."""
    folder = shutil.copytree(MODELS / "demo", home / "made", ignore=shutil.ignore_patterns("chat"))
    (folder / "generation_config.json").write_text(json.dumps(asked))
    return live_server(ensure(str(folder), home=home / "store"))


def test_what_the_checkpoint_asks_for_holds_where_a_request_says_nothing(tmp_path: Path) -> None:
    asked = {"do_sample": False, "max_new_tokens": 5, "suppress_tokens": [300], "repetition_penalty": 1.2}
    with own_server(tmp_path, asked) as own:
        prompt = {"model": "made", "prompt": "The king said", "stream": False}

        def tokens(**options: Any) -> int:
            answer = httpx.post(f"{own.url}/api/generate", json={**prompt, "options": options}).json()
            assert (answer["moeinf"]["cut_by"] == "max_length") == (not options)
            count: int = answer["eval_count"]
            return count

        assert tokens() == 5 and tokens(num_predict=8) == 8
        assert tokens(num_predict=-2, num_ctx=32, min_tokens=100) > 20
        shown = httpx.post(f"{own.url}/api/show", json={"model": "made"})
        rows = dict(line.split(None, 1) for line in shown.json()["parameters"].splitlines())
        assert rows == {"temperature": "0.0", "repetition_penalty": "1.2"}


@pytest.mark.parametrize(("longest", "tokens"), [(12, 12), (1, 24)])
def test_max_length_counts_the_prompt_and_bounds_no_longer_one(tmp_path: Path, longest: object, tokens: int) -> None:
    with own_server(tmp_path, {"do_sample": False, "max_length": longest}) as own:
        options = {"num_ctx": 24, "min_tokens": 24}
        body = {"model": "made", "prompt": "The king said", "stream": False, "options": options}
        answer = httpx.post(f"{own.url}/api/generate", json=body).json()
        assert answer["prompt_eval_count"] + answer["eval_count"] == tokens + (tokens == 24)


@pytest.mark.parametrize("num_predict", [-2, -1])
def test_an_answer_may_fill_the_context(server: HttpServer, num_predict: int) -> None:
    options = {"num_predict": num_predict, "num_ctx": 48, "temperature": 0, "min_tokens": 10**6, "num_thread": 0}
    answer = greedy(server, "/api/generate", prompt="The king said", options=options)
    assert answer["done_reason"] == "length" and answer["moeinf"]["cut_by"] == "context"
    assert answer["prompt_eval_count"] + answer["eval_count"] == 49


def test_nothing_ends_an_answer_before_min_tokens(storyteller: HttpServer) -> None:
    asked = {"model": "demo:chat", "messages": HI, "temperature": 0, "max_tokens": 600}
    ended = greedy(storyteller, "/v1/chat/completions", **asked)
    assert ended["choices"][0]["finish_reason"] == "stop"
    least = ended["usage"]["completion_tokens"] + 20
    longer = greedy(storyteller, "/v1/chat/completions", **asked, min_tokens=least)
    assert longer["usage"]["completion_tokens"] >= least


def test_fewest_tokens_beyond_the_most_are_refused(server: HttpServer) -> None:
    asked = {"model": "demo", "prompt": "a", "max_tokens": 2, "min_tokens": 3}
    refused = httpx.post(f"{server.url}/v1/completions", json=asked)
    assert refused.status_code == 400 and "min_tokens is 3" in refused.json()["error"]["message"]


def test_a_stop_string_counts_behind_the_fewest_tokens(server: HttpServer) -> None:
    asked = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 60, "stop": [" "]}
    first, behind = (greedy(server, "/v1/completions", **asked, min_tokens=least) for least in (0, 20))
    assert first["usage"]["completion_tokens"] < 20 <= behind["usage"]["completion_tokens"] < 30
    assert " " not in first["choices"][0]["text"] and " " in behind["choices"][0]["text"]


def test_probabilities_of_no_tokens_are_an_empty_list(server: HttpServer) -> None:
    body = asked("OpenAI", "logprobs", True) | {"max_tokens": 0}
    choice = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["logprobs"] == {"content": [], "refusal": None}
    assert greedy(server, "/v1/chat/completions", messages=HI, max_tokens=1)["choices"][0]["logprobs"] is None
