"""The lines of a batch: what each asks, or what is wrong with it, before any model is opened."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from moeinf.errors import UsageError
from moeinf.server.body import body_of
from moeinf.server.http_errors import Refusal
from moeinf.server.openai import chat, completions
from moeinf.server.openai.requests import ChatRequest, CompletionRequest, Sampling
from moeinf.server.question import Question

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
_FIELDS: Final = ("custom_id", "method", "url", "body")
_Fields = dict[str, msgspec.Raw]
Asked = TypeVar("Asked", bound=Sampling)


@dataclass(frozen=True, slots=True)
class LineFault:
    """What is wrong with a line that cannot be sent to any API. code: one word for programs."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request. id: of its answer, made of all that the answer depends on. what: the question, or why it is none."""

    id: str
    custom_id: str | None
    what: Question | LineFault | Refusal | UsageError


def lines_of(text: str, model: str, salt: str, *, raw: bool) -> list[BatchLine]:
    """The requests of a file, in its order.

    model: the name of a body that has none. salt: what every answer depends on beside its line: another model or other
    options make other ids. raw: whether prompts of lines without a url are continued as they are.
    Raises UsageError for a text that is no batch at all.
    """
    known, times, found = Counter[str](), Counter[str](), list[BatchLine]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            times[line] += 1
            found.append(_line(line.strip(), number, times[line], known, model, salt, raw=raw))
    faults = [each.what for each in found if isinstance(each.what, LineFault)]
    if not found:
        raise UsageError("there is no request: give one JSON object a line, with a prompt or messages")
    if len(faults) == len(found):
        raise UsageError(f"that is no batch: {faults[0].message}")
    return found


def _line(line: str, number: int, times: int, known: Counter[str], model: str, salt: str, *, raw: bool) -> BatchLine:
    """times: how often the same line has come, with this one. known: how often each custom_id has."""
    custom_id: str | None = None
    try:
        fields = _object(line, f"line {number}")
        simple = not any(name in fields for name in _FIELDS[1:])
        custom_id = _custom_id(fields, number, required=not simple)
        known[custom_id] += 1
        if known[custom_id] > 1:
            raise _Fault("duplicate_custom_id", f"line {number}: custom_id {custom_id!r:.80} was given before")
        url, body = _simple(fields, number, raw=raw) if simple else _request(fields, number)
        what: Question | LineFault | Refusal | UsageError = _question(url, body, model)
    except _Fault as fault:
        what = fault.fault
    except (Refusal, UsageError) as error:
        what = error
    named = custom_id if custom_id is not None and "custom_id" in line else f"{number}"
    digest = hashlib.sha256("\0".join((salt, named, str(times), line)).encode()).hexdigest()
    return BatchLine(f"batch_req_{digest[:32]}", custom_id, what)


class _Fault(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.fault = LineFault(code, message)


def _object(line: str, where: str) -> _Fields:
    try:
        return msgspec.json.decode(line, type=_Fields)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Fault("invalid_json_line", f"{where} is no JSON object: {error}") from None


def _custom_id(fields: _Fields, number: int, *, required: bool) -> str:
    """Of a line that needs none, and has none, its number."""
    given = fields.get("custom_id")
    if given is None and not required:
        return f"line-{number}"
    if given is None:
        raise _Fault("missing_custom_id", f"line {number} has no custom_id, by which its answer is known")
    value = _text(given)
    if not value:
        raise _Fault("invalid_custom_id", f"line {number}: custom_id must be a text")
    return value


def _text(given: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(given, type=str)
    except msgspec.DecodeError:
        return None


def _request(fields: _Fields, number: int) -> tuple[str, _Fields]:
    """The url and the body of a line as OpenAI has it."""
    for name in fields:
        if name not in _FIELDS:
            raise _Fault("unknown_field", f"line {number}: {name[:80]} is no field of a batch line; put it in the body")
    for name in _FIELDS[1:]:
        if name not in fields:
            raise _Fault(f"missing_{name}", f"line {number} has no {name}")
    if _text(fields["method"]) != "POST":
        raise _Fault("invalid_method", f"line {number}: method must be POST")
    if (url := _text(fields["url"])) not in (CHAT, TEXT):
        raise _Fault("invalid_url", f"line {number}: url must be {CHAT} or {TEXT}")
    try:
        return url, msgspec.json.decode(fields["body"], type=_Fields)
    except msgspec.DecodeError:
        raise _Fault("invalid_body", f"line {number}: body must be an object") from None


def _simple(fields: _Fields, number: int, *, raw: bool) -> tuple[str, _Fields]:
    """The same of a line that is a body itself, in which a prompt stands for a message of the user."""
    body = {name: value for name, value in fields.items() if name != "custom_id"}
    if "messages" in body or ("prompt" in body and raw):
        return (CHAT if "messages" in body else TEXT), body
    if "prompt" not in body:
        raise _Fault("missing_prompt", f"line {number} has neither prompt nor messages, nor a url with a body")
    if (prompt := _text(body.pop("prompt"))) is None:
        raise _Fault("invalid_prompt", f"line {number}: prompt must be a text")
    return CHAT, {**body, "messages": msgspec.Raw(msgspec.json.encode([{"role": "user", "content": prompt}]))}


def _question(url: str, body: _Fields, model: str) -> Question:
    """Raises Refusal, UsageError."""
    if "model" not in body:
        body = {**body, "model": msgspec.Raw(msgspec.json.encode(model))}
    data = msgspec.json.encode(body)
    if url == CHAT:
        return _whole(body_of(data, ChatRequest), chat.question_of)
    return _whole(body_of(data, CompletionRequest), completions.question_of)


def _whole(asked: Asked, question_of: Callable[[Asked], Question]) -> Question:
    """Raises Refusal, UsageError."""
    if asked.stream:
        raise Refusal(400, "stream: answers of a batch are whole; leave it out")
    question = question_of(asked)
    if question.others:
        raise Refusal(400, "n and prompt: a line of a batch has one answer; give one line for each")
    return question
