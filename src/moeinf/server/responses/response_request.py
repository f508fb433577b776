"""What clients send to POST /v1/responses. Fields that are not listed are refused, or change no answer."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from moeinf.sampling.constraint import AnswerFormat
from moeinf.server.body_fields import Fields
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.requests import Sampling, params_given
from moeinf.server.openai.response_format import format_of, openai_format
from moeinf.server.responses.response_fields import REASONING, RESPONSE, TEXT
from moeinf.types import Json, JsonObject

_LOGPROBS = "message.output_text.logprobs"
_MOST_TOP = 20


class Reasoning(msgspec.Struct):
    """summary: any word but none has thoughts told as a summary, in their own words; else they are reasoning_text."""

    published: ClassVar[Fields] = REASONING
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its old name

    @property
    def summarised(self) -> bool:
        return (self.summary or self.generate_summary or "none") != "none"


class TextOptions(msgspec.Struct):
    published: ClassVar[Fields] = TEXT
    format: JsonObject | None = None


class ResponseRequest(Sampling, kw_only=True):
    """Beside OpenAI's own fields, those of chat completions that say how tokens are drawn."""

    published: ClassVar[Fields] = RESPONSE
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    chat_template_kwargs: JsonObject | None = None

    @property
    def logprobs(self) -> bool:
        """Whether the answer's tokens are told with their probabilities."""
        return self.top_logprobs is not None or _LOGPROBS in (self.include or ())


def response_params(asked: ResponseRequest) -> JsonObject:
    """The fields of SamplingParams that the request sets. Raises Refusal."""
    given = params_given(asked)
    if asked.max_output_tokens is not None:
        if asked.max_output_tokens < 1:
            raise Refusal(400, "max_output_tokens must be at least 1")
        given["num_predict"] = asked.max_output_tokens
    if asked.logprobs:
        if not 0 <= (most := asked.top_logprobs or 0) <= _MOST_TOP:
            raise Refusal(400, f"top_logprobs must be between 0 and {_MOST_TOP}")
        given["top_logprobs"] = most
    return given


def response_form(asked: ResponseRequest) -> AnswerFormat | None:
    """`format` of Model.pieces. Raises Refusal, UsageError."""
    other = format_of(asked)
    own = openai_format(asked.text.format, "text.format") if asked.text and asked.text.format else None
    if own is not None and other is not None:
        raise Refusal(400, "text.format and another field each say what form the answer has; give one of them")
    return own if own is not None else other
