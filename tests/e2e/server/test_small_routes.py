"""The small routes of llama.cpp's server, and names that are made over ollama's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.live_server import live_server

HI = [{"role": "user", "content": "Tell me of a dog"}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    ensure("demo:chat", home=folder)
    return folder


@pytest.fixture(scope="module")
def chatting(home: Path) -> Iterator[HttpServer]:
    with live_server(Library(home), parallel=2) as running:
        yield running


def asked(server: HttpServer, path: str, body: Any = None, **query: str) -> Any:
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, f"{server.url}{path}", json=body, params=query, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tokens_of_a_text_and_back(chatting: HttpServer) -> None:
    text = "The dog, a café <|im_end|>"
    ids = asked(chatting, "/tokenize", {"content": text})["tokens"]
    assert asked(chatting, "/detokenize", {"tokens": ids})["content"] == text
    letters = asked(chatting, "/tokenize", {"content": text, "parse_special": False})["tokens"]
    assert len(letters) > len(ids), "the name of a control token is letters then"
    pieces = asked(chatting, "/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    whole = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in (each["piece"] for each in pieces))
    assert whole.decode() == text


def test_the_text_of_a_chat_is_what_is_counted(chatting: HttpServer) -> None:
    text = asked(chatting, "/apply-template", {"messages": HI, "model": "demo:chat"})["prompt"]
    assert "Tell me of a dog" in text and "\ufdd0" not in text
    ids = asked(chatting, "/tokenize", {"content": text, "model": "demo:chat"})["tokens"]
    counted = asked(chatting, "/v1/messages/count_tokens", {"model": "demo:chat", "messages": HI})
    assert len(ids) == counted["input_tokens"]


def test_properties_and_slots(chatting: HttpServer) -> None:
    asked(chatting, "/api/generate", {"model": "demo:chat", "stream": False})
    found = asked(chatting, "/props", model="demo:chat")
    assert found["default_generation_settings"]["n_ctx"] == 2048 and found["total_slots"] == 2
    assert found["chat_template"] and found["modalities"] == {"vision": False, "audio": False}
    slots = asked(chatting, "/slots", fail_on_no_slot="1")
    assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in slots] == [
        (0, 2048, False),
        (1, 2048, False),
    ]


def test_a_model_must_be_named_where_several_could_be_meant(home: Path) -> None:
    ensure("demo", home=home)
    with live_server(Library(home)) as server:
        answer = httpx.post(f"{server.url}/tokenize", json={"content": "a"}, timeout=60)
        assert answer.status_code == 400 and "name one as model" in answer.json()["error"]["message"]
        answer = httpx.get(f"{server.url}/slots", params={"fail_on_no_slot": "1"}, timeout=60)
        assert answer.status_code == 503
        base = httpx.post(f"{server.url}/apply-template", json={"model": "demo", "messages": HI}, timeout=60)
        assert base.status_code == 400 and "no chat template" in base.json()["error"]["message"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "content"),
    ("/tokenize", {"content": "a", "model": "nobody"}, "not found"),
    ("/detokenize", {"tokens": [99999]}, "99999 is no token id"),
    ("/detokenize", {"tokens": [-1]}, "-1 is no token id"),
    ("/apply-template", {"messages": []}, "messages is empty"),
]


@pytest.mark.parametrize(("path", "body", "named"), WRONG)
def test_what_cannot_be_is_refused(chatting: HttpServer, path: str, body: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{chatting.url}{path}", json={"model": "demo:chat"} | body, timeout=60)
    assert answer.status_code in (400, 404) and named in answer.json()["error"]["message"]


def test_a_name_with_a_system_message_and_options(chatting: HttpServer) -> None:
    client = ollama.Client(chatting.url)
    made = client.create(
        "kind", from_="demo:chat", system="Be kind.", parameters={"temperature": 0, "stop": ["x", "y"]}
    )
    assert made.status == "success"
    *_, last = client.create("kind", from_="kind", parameters={"seed": 5}, stream=True)
    assert last.status == "success"
    shown = client.show("kind")
    assert shown.modelfile is not None and shown.parameters is not None
    assert "SYSTEM" in shown.modelfile and "Be kind." in shown.modelfile
    assert shown.modelfile.startswith("# ") and "FROM demo:chat" in shown.modelfile
    options = [tuple(line.replace('"', "").split()) for line in shown.parameters.splitlines()]
    assert {("temperature", "0"), ("stop", "x"), ("stop", "y"), ("seed", "5")} <= set(options)
    answer = client.chat("kind", HI, options={"num_predict": 5})
    whole = client.chat("demo:chat", [{"role": "system", "content": "Be kind."}, *HI], options={"num_predict": 5})
    assert answer.prompt_eval_count == whole.prompt_eval_count
    client.delete("kind")
