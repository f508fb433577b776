"""/v1/completions takes prompts as ids of tokens, and tells probabilities by one number, as OpenAI's first API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from moeinf.server.ask import Chance, Chosen
from moeinf.server.openai.token_logprobs import TokenLogprobs
from moeinf.server.serve import HttpServer

PROMPT, OTHER = "Once upon a time", "The dog"
ASKED: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 12}


@pytest.fixture
def client(server: HttpServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        yield client


def ids_of(client: openai.OpenAI, text: str) -> list[int]:
    url = str(client.base_url).removesuffix("/v1/")
    ids: list[int] = httpx.post(f"{url}/tokenize", json={"content": text, "add_special": True}).json()["tokens"]
    return ids


def test_ids_of_tokens_are_continued_as_their_text_is(client: openai.OpenAI) -> None:
    texts = [client.completions.create(**ASKED, prompt=each).choices[0].text for each in (PROMPT, OTHER)]
    ids = [ids_of(client, each) for each in (PROMPT, OTHER)]
    one = client.completions.create(**ASKED, prompt=ids[0])
    assert one.choices[0].text == texts[0] and one.usage is not None and one.usage.prompt_tokens == len(ids[0])
    assert [choice.text for choice in client.completions.create(**ASKED, prompt=ids).choices] == texts
    told = ["", ""]
    for chunk in client.completions.create(**ASKED, prompt=ids, stream=True):
        told[chunk.choices[0].index] += chunk.choices[0].text
    assert told == texts


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"prompt": [3, 10**9]}, "prompt: 1000000000 is no token id; those of this model are below"),
        ({"prompt": [3, 10**9], "stream": True}, "is no token id"),
        ({"prompt": [-1]}, "prompt: -1 is no token id"),
        ({"prompt": [[3, 4], "a", True]}, "a text, the ids of its tokens, or a list of either"),
        ({"prompt": [[3, "a"]]}, "a text, the ids of its tokens, or a list of either"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [[]]}, "the prompt is empty"),
        ({"prompt": [3, 4], "echo": True}, "echo tells a prompt that is a text"),
        ({"prompt": PROMPT, "logprobs": 21}, "a number from 0 to 20"),
        ({"prompt": PROMPT, "logprobs": True}, "a number from 0 to 20"),
        ({"prompt": PROMPT, "logprobs": 1, "echo": True}, "leave one of them out"),
    ],
)
def test_what_cannot_be_done_is_said(client: openai.OpenAI, asked: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.completions.create(**ASKED, **asked)


def test_probabilities_are_those_that_a_chat_tells(client: openai.OpenAI) -> None:
    """demo has no template, so that a chat of one message is its text."""
    asked: dict[str, Any] = ASKED | {"seed": 3, "temperature": 1.5}
    chat: Any = [{"role": "user", "content": PROMPT}]
    answer: Any = client.chat.completions.create(**asked, messages=chat, logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    for count in (3, 1, 0):
        choice: Any = client.completions.create(**asked, prompt=PROMPT, logprobs=count).choices[0]
        told = choice.logprobs
        assert told.tokens == [each.token for each in tokens] and "".join(told.tokens) == choice.text
        assert told.token_logprobs == pytest.approx([each.logprob for each in tokens], abs=1e-5)
        for each, found in zip(tokens, told.top_logprobs, strict=True):
            wanted = {top.token: top.logprob for top in (*each.top_logprobs[:count], each)}
            assert list(found) == list(wanted) and found == pytest.approx(wanted, abs=1e-5)
        assert [choice.text[at:][: len(token)] for at, token in zip(told.text_offset, told.tokens, strict=True)] == (
            told.tokens
        )


def test_a_stream_tells_the_same_probabilities(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = ASKED | {"prompt": [PROMPT, OTHER], "n": 2, "logprobs": 2}
    whole: Any = client.completions.create(**asked)
    told: list[dict[str, list[Any]]] = [{} for _ in whole.choices]
    for chunk in client.completions.create(**asked, stream=True):
        for name, values in chunk.choices[0].logprobs or {}:
            told[chunk.choices[0].index].setdefault(name, []).extend(values or [])
    assert told == [choice.logprobs.model_dump() for choice in whole.choices]
    assert client.completions.create(**asked | {"logprobs": None}).choices[0].logprobs is None


def test_a_part_of_a_character_is_told_by_its_bytes() -> None:
    told = TokenLogprobs()
    for token in ("é".encode()[:1], "é".encode()[1:], b"!"):
        told.add(Chosen(Chance(token, -1.0), (Chance(b"a", -0.5),)))
    assert told.taken() == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-1.0, -1.0, -1.0],
        "top_logprobs": [{"a": -0.5, "bytes:\\xc3": -1.0}, {"a": -0.5, "bytes:\\xa9": -1.0}, {"a": -0.5, "!": -1.0}],
        "text_offset": [0, 0, 1],
    }
    assert told.taken()["tokens"] == []
