"""Answers held to JSON, and how probable their tokens were, by the clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from moeinf.server.serve import HttpServer


class Fisherman(BaseModel):
    """Without bounds of numbers and lists, which Anthropic's client takes out of a schema."""

    kind: Literal["old man", "young man"]
    fishes: bool


HI: list[Any] = [{"role": "user", "content": "There was a fisherman. He is described in JSON as"}]
SCHEMA = {**Fisherman.model_json_schema(), "additionalProperties": False}


@pytest.fixture
def client(server: HttpServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_openais_client_parses_what_it_asked_for(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="demo", messages=HI, response_format=Fisherman, max_tokens=200)
    fisherman = parsed.choices[0].message.parsed
    assert fisherman is not None and fisherman.kind in ("old man", "young man")
    assert parsed.choices[0].finish_reason == "stop"


def test_any_object(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": HI, "max_tokens": 8, "temperature": 0}
    answer = client.chat.completions.create(**asked, response_format={"type": "json_object"})
    assert answer.choices[0].message.content.lstrip().startswith("{")
    free = client.chat.completions.create(**asked, response_format={"type": "text"})
    assert free.choices[0].message.content == client.chat.completions.create(**asked).choices[0].message.content


def test_anthropics_client_gets_json_of_a_schema(server: HttpServer) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        message = client.messages.create(
            model="demo",
            max_tokens=200,
            messages=HI,
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )
        Fisherman.model_validate_json(str(message.content[0].to_dict()["text"]))
        parsed = client.messages.parse(model="demo", max_tokens=200, messages=HI, output_format=Fisherman)
        assert parsed.parsed_output is not None


def test_probabilities_of_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": HI, "max_tokens": 12, "temperature": 0}
    choice = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    tokens = choice.logprobs.content
    assert len(tokens) == 12
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode().strip() == choice.message.content.strip()
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob  # greedy: the likeliest
    streamed = client.chat.completions.create(**asked, logprobs=True, stream=True)
    chances = [chunk.choices[0].logprobs for chunk in streamed]
    content = [token for each in chances if each is not None for token in each.content or []]
    assert [(token.token, token.bytes) for token in content] == [(token.token, token.bytes) for token in tokens]
    assert content[0].top_logprobs == [] and content[0].logprob == tokens[0].logprob


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
    ({"regex": "(a|b){2}!"}, "(a|b){2}!"),
    ({"grammar": 'root ::= "yes" | "no" num\nnum ::= [0-9] "!"'}, "yes|no[0-9]!"),
    ({"ebnf": 'root ::= "x" "y"'}, "xy"),
    ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
    ({"json_schema": {"enum": [1, 22]}}, "1|22"),
    ({"guided_json": '{"enum": [true]}'}, "true"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "k"}}}}, '"k"'),
    ({"response_format": {"type": "regex", "value": "ab?"}}, "ab?"),
]


@pytest.mark.parametrize(("form", "pattern"), FORMS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_is_obeyed_at_both_routes(
    server: HttpServer, form: dict[str, Any], pattern: str, stream: bool
) -> None:
    asked = {"model": "demo", "max_tokens": 40, "stream": stream, **form}
    for path, body in (("chat/completions", {"messages": HI}), ("completions", {"prompt": "He said"})):
        answer = httpx.post(f"{server.url}/v1/{path}", json=asked | body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert re.fullmatch(pattern, said(answer.text, stream=stream)), answer.text


def said(text: str, *, stream: bool) -> str:
    data = [line[6:] for line in text.splitlines() if line.startswith("data: {")] if stream else [text]
    choices = [choice for each in data for choice in json.loads(each)["choices"]]
    return "".join(
        str((choice.get("delta") or choice.get("message") or {}).get("content") or choice.get("text") or "")
        for choice in choices
    )


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {"response_format": {"type": "yaml"}}, "'yaml'"),
    ("chat/completions", {"response_format": {"type": "json_schema"}}, "schema"),
    ("chat/completions", {"grammar": "root = x"}, "change the grammar"),
    ("chat/completions", {"guided_regex": "(", "stream": True}, "format"),
    ("completions", {"prompt": "x", "guided_choice": ["a", 5]}, "choices"),
    ("completions", {"prompt": "x", "structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
    ("chat/completions", {"top_logprobs": 2}, "logprobs to true"),
    ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "between 0 and 20"),
    ("messages", {"output_config": {"format": {"type": "yaml", "schema": {}}}}, "yaml"),
    ("messages", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "robot"}}}}, "schema"),
]


@pytest.mark.parametrize(("path", "change", "named"), WRONG)
def test_forms_that_are_none(server: HttpServer, path: str, change: dict[str, Any], named: str) -> None:
    asked = {"model": "demo", "max_tokens": 3} | ({} if path == "completions" else {"messages": HI}) | change
    answer = httpx.post(f"{server.url}/v1/{path}", json=asked)
    assert answer.status_code == 400 and named in answer.json()["error"]["message"], answer.text
