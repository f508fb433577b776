"""Requests whose answers depend on nothing else that the server does, by every route, and how an answer is read.

An answer is a JSON value: its texts, why it ended, how many tokens it has. It is the same whole and streamed.
"""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

WORDS: Final = (
    *("time", "man", "day", "house", "water", "boy", "girl", "dog", "tree", "sun", "king", "ship", "bird", "road"),
    *("<|endoftext|>", "naïve", "日本", "🙂", "\\n", '"', "{"),
)
_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
Read = Callable[[bytes, bool], Any]


@dataclass(frozen=True)
class Asked:
    """read(data, streamed): the answer in a body that came whole."""

    path: str
    body: dict[str, Any]
    read: Read
    streams: bool = True

    def encoded(self, *, stream: bool) -> bytes:
        return json.dumps(self.body | ({"stream": stream} if self.streams else {})).encode()

    def of(self, url: tuple[str, int], *, stream: bool, patience_s: float) -> tuple[int, Any]:
        """The status and the answer, or the text of an error. Raises OSError, http.client.HTTPException, ValueError."""
        connection = http.client.HTTPConnection(*url, timeout=patience_s)
        try:
            connection.request("POST", self.path, self.encoded(stream=stream), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            return response.status, data.decode(errors="replace")
        return 200, self.read(data, stream and self.streams)


class RefusedInStreamError(Exception):
    """An answer that went wrong after it had begun; its text is the server's."""


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects of an event stream."""
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    for line in lines:
        if line != "[DONE]":
            event = json.loads(line)
            if event.get("error") or event.get("type") in ("error", "response.failed"):
                raise RefusedInStreamError(line)
            yield event


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.decode().splitlines():
        event = json.loads(line)
        if "error" in event:
            raise RefusedInStreamError(line)
        yield event


def of_openai(data: bytes, streamed: bool) -> Any:
    if not streamed:
        found = json.loads(data)
        return [_choice(each) for each in found["choices"]], found["usage"]["completion_tokens"]
    choices, tokens = dict[int, list[Any]](), None
    for event in _events(data):
        for each in event["choices"]:
            text, ended, chances = _choice(each)
            known = choices.setdefault(each["index"], ["", None, []])
            choices[each["index"]] = [known[0] + text, known[1] or ended, known[2] + chances]
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return [choices[at] for at in sorted(choices)], tokens


def _choice(each: dict[str, Any]) -> list[Any]:
    said = each.get("message") or each.get("delta") or {}
    chances = ((each.get("logprobs") or {}).get("content")) or []
    return [each.get("text") or said.get("content") or "", each["finish_reason"], chances]


def of_ollama(data: bytes, streamed: bool) -> Any:
    text, last = "", dict[str, Any]()
    for last in _lines(data) if streamed else [json.loads(data)]:
        text += last["message"]["content"] if "message" in last else last.get("response", "")
    assert last["done"], "the stream has no end"
    return text, last["done_reason"], last["eval_count"]


def of_anthropic(data: bytes, streamed: bool) -> Any:
    if not streamed:
        found = json.loads(data)
        text = "".join(each["text"] for each in found["content"])
        return text, found["stop_reason"], found["stop_sequence"], found["usage"]["output_tokens"]
    text, ended, last = "", list[Any](), ""
    for event in _events(data):
        last = event["type"]
        text += event["delta"].get("text", "") if last == "content_block_delta" else ""
        if last == "message_delta":
            delta = event["delta"]
            ended = [delta["stop_reason"], delta["stop_sequence"], event["usage"]["output_tokens"]]
    assert last == "message_stop", f"the stream ends with {last!r}"
    return text, *ended


def of_responses(data: bytes, streamed: bool) -> Any:
    deltas = None
    if streamed:
        events = list(_events(data))
        assert [event["sequence_number"] for event in events] == list(range(len(events))), "events are out of order"
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        found = events[-1]["response"]
    else:
        found = json.loads(data)
    text = "".join(part["text"] for item in found["output"] for part in item.get("content", []))
    assert deltas in (None, text), "the deltas are another text than the whole"
    return text, found["status"], found["usage"]["output_tokens"]


def of_json(data: bytes, streamed: bool) -> Any:
    found = json.loads(data)
    return {key: found[key] for key in ("data", "embeddings", "tokens", "input_tokens", "prompt") if key in found}


def requests(rng: random.Random, models: Sequence[str], number: int) -> list[Asked]:
    """So many requests, of which many begin alike."""
    beginnings = [" ".join(rng.choices(WORDS, k=rng.choice((3, 40, 200)))) for _ in range(4)]
    return [_one(rng, rng.choice(models), beginnings) for _ in range(number)]


def _one(rng: random.Random, model: str, beginnings: Sequence[str]) -> Asked:
    text = f"{rng.choice(beginnings)} {' '.join(rng.choices(WORDS, k=rng.randint(1, 6)))}"
    drawn = rng.choice(({"temperature": 0}, {"temperature": 0.9, "seed": rng.randrange(1000)}))
    most, stop = rng.randint(1, 24), rng.choice((None, None, [" the", "day"], "e", ["\n\n", "zzz"]))
    base = {"model": model, **drawn}
    turns = [{"role": "user", "content": text}]
    if rng.random() < 0.4:
        turns = [{"role": "system", "content": beginnings[0]}, *turns]
    chat = [*turns, {"role": "assistant", "content": "Once there"}] if rng.random() < 0.2 else turns
    options = {**drawn, "num_predict": most, "stop": [stop] if isinstance(stop, str) else stop or []}
    own = base | {"max_tokens": most, "stop": stop}
    counted = {"stream_options": {"include_usage": True}}
    kinds: dict[str, Callable[[], Asked]] = {
        "chat": lambda: Asked("/v1/chat/completions", own | counted | {"messages": chat}, of_openai),
        "several": lambda: Asked("/v1/chat/completions", own | counted | {"messages": chat, "n": 2}, of_openai),
        "chances": lambda: Asked(
            "/v1/chat/completions",
            base | counted | {"messages": chat, "max_tokens": most, "logprobs": True, "top_logprobs": 2},
            of_openai,
        ),
        "schema": lambda: Asked(
            "/v1/chat/completions",
            base
            | counted
            | {
                "messages": turns,
                "max_tokens": 40,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
            },
            of_openai,
        ),
        "continued": lambda: Asked("/v1/completions", own | counted | {"prompt": text}, of_openai),
        "prompts": lambda: Asked(
            "/v1/completions", own | counted | {"prompt": [text, beginnings[1]], "echo": True}, of_openai
        ),
        "messages": lambda: Asked(
            "/v1/messages",
            {"model": model, "temperature": 0}
            | {
                "messages": [each for each in chat if each["role"] != "system"],
                "system": beginnings[0],
                "max_tokens": most,
            }
            | {"stop_sequences": options["stop"]},
            of_anthropic,
        ),
        "responses": lambda: Asked(
            "/v1/responses", base | {"input": turns, "max_output_tokens": max(16, most), "store": False}, of_responses
        ),
        "ollama chat": lambda: Asked("/api/chat", {"model": model, "messages": chat, "options": options}, of_ollama),
        "ollama text": lambda: Asked(
            "/api/generate", {"model": model, "prompt": text, "raw": rng.random() < 0.5, "options": options}, of_ollama
        ),
        "vectors": lambda: Asked("/v1/embeddings", {"model": model, "input": [text, "day"]}, of_json, streams=False),
        "tokens": lambda: Asked("/tokenize", {"model": model, "content": text}, of_json, streams=False),
    }
    return kinds[rng.choice(list(kinds))]()
