"""A number of a request, however large, is used, bounded or refused, and costs no later request."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

import httpx
import msgspec
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.pull.pull import ensure
from moeinf.sampling.params import SamplingParams
from moeinf.server.anthropic.requests import MessageRequest
from moeinf.server.ollama.requests import ChatRequest as OllamaChat
from moeinf.server.ollama.requests import GenerateRequest
from moeinf.server.openai.requests import ChatRequest, CompletionRequest
from moeinf.server.serve import HttpServer
from tests.support.live_server import live_server

Json = dict[str, Any]
HI = {"role": "user", "content": "Tell"}
ROUTES: dict[str, tuple[type[msgspec.Struct], Json]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": [HI], "max_tokens": 1}),
    "/v1/completions": (CompletionRequest, {"prompt": "Tell", "max_tokens": 1}),
    "/v1/messages": (MessageRequest, {"messages": [HI], "max_tokens": 1}),
    "/api/chat": (OllamaChat, {"messages": [HI], "stream": False, "options": {"num_predict": 1}}),
    "/api/generate": (GenerateRequest, {"prompt": "Tell", "stream": False, "options": {"num_predict": 1}}),
}
# As JSON has them; the decoder takes no more than one or two of the last ones.
NUMBERS: tuple[str, ...] = (
    "0",
    "-1",
    "1e10",
    "1e308",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "1" + 400 * "0",
)
NUMBERS += ('"1e308"', '"9223372036854775808s"', f'"{400 * "9"}h"')
KNOWN = ("/v1/completions", "/api/chat")  # whose fields another route has, too


def places(kind: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a struct has a number, in the structs within it too."""
    for field in msgspec.structs.fields(kind):
        here = (*at, field.encode_name)
        kinds = typing.get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        if {int, float} & set(kinds):
            yield here
        for each in kinds:
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield from places(each, here)


def fields(path: str) -> list[tuple[str, ...]]:
    found = [*places(ROUTES[path][0])]
    if path == "/api/generate":
        found += [("options", name) for name in http_options("ollama", SamplingParams, RuntimeConfig)]
    return found + ([("logit_bias", "5"), ("logit_bias", "{}")] if "completions" in path else [])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    home = tmp_path_factory.mktemp("numbers")
    with live_server(ensure("demo:chat", home=home), config=RuntimeConfig.of(device="cpu", context=64)) as running:
        yield running


def bodies(path: str, place: tuple[str, ...]) -> Iterator[bytes]:
    """The request with each of the numbers in that place, and, of a name, with each as the name."""
    for number in NUMBERS if path not in KNOWN else NUMBERS[::4]:
        body: Json = {"model": "demo:chat"} | ROUTES[path][1]
        inner, last = body, place[-1]
        for name in place[:-1]:
            inner[name] = dict(inner.get(name) or {})
            inner = inner[name]
        if place[0] == "thinking":
            inner["type"] = "enabled"
        if last == "{}":
            inner[number.strip('"')] = 1
        else:
            inner[last] = "NUMBER"
        yield json.dumps(body).replace('"NUMBER"', number).encode()


def told(client: httpx.Client, path: str, body: bytes) -> tuple[int, str]:
    answer = client.post(path, content=body, timeout=60)
    return answer.status_code, answer.text


@pytest.mark.parametrize("path", ROUTES)
def test_no_number_makes_the_server_fail_or_another_answer(path: str, server: HttpServer) -> None:
    with httpx.Client(base_url=server.url) as client:
        plain = json.dumps({"model": "demo:chat", "messages": [HI], "stream": False, "options": {"temperature": 0}})
        before = told(client, "/api/chat", plain.encode())
        for place in fields(path):
            for body in bodies(path, place):
                status, text = told(client, path, body)
                assert status in (200, 400, 413), (place, body, text)
        after = told(client, "/api/chat", plain.encode())
        contents = [json.loads(text)["message"]["content"] for _, text in (before, after)]
        assert contents[0] == contents[1]
