"""What clients of OpenAI's API send. Fields that are not listed are refused, or change no answer: see fields.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final, Literal

import msgspec

from moeinf.config.option import http_options
from moeinf.sampling.params import WINDOWED, SamplingParams
from moeinf.server.body_fields import Fields
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.fields import CHAT, MESSAGE, REASONING, STREAM, STRUCTURED, TEXT, THINKING
from moeinf.server.prompt.called import Called, CallOfTurn
from moeinf.server.prompt.content import stops
from moeinf.types import Json, JsonObject


class StreamOptions(msgspec.Struct):
    published: ClassVar[Fields] = STREAM
    include_usage: bool = False


class StructuredOutputs(msgspec.Struct):
    """The form of an answer, as vLLM has it. json: a schema, or the text of one."""

    published: ClassVar[Fields] = STRUCTURED
    json: JsonObject | str | None = None
    regex: str | None = None
    choice: list[Json] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """What both kinds of completion may ask for. None is not given."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    user: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    # beyond OpenAI's own, under the names that llama.cpp's and vLLM's servers have given them
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    min_tokens: int | None = None
    n_predict: int | None = None
    keep_alive: str | float | None = None
    # the form of the answer: see format.py
    response_format: JsonObject | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: list[Json] | None = None
    guided_grammar: str | None = None
    json_schema: JsonObject | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


class Reasoning(msgspec.Struct):
    """How OpenRouter and SGLang ask for thoughts. exclude: they are made, but not told."""

    published: ClassVar[Fields] = REASONING
    effort: str | None = None
    enabled: bool | None = None
    exclude: bool = False
    max_tokens: int | None = None


class Thinking(msgspec.Struct):
    """How the makers of DeepSeek, GLM and Kimi ask for them."""

    published: ClassVar[Fields] = THINKING
    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None


class ChatMessage(msgspec.Struct):
    """content: as prompt/content.py reads it. Thoughts have three names."""

    published: ClassVar[Fields] = MESSAGE
    role: str
    content: Json = None
    name: str | None = None
    tool_calls: list[CallOfTurn] | None = None
    function_call: Called | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


class ChatRequest(Sampling, kw_only=True):
    published: ClassVar[Fields] = CHAT
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool = True
    # most tokens of thoughts, as vLLM, llama.cpp's server and the makers of Qwen call them
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget: int | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(Sampling, kw_only=True):
    """prompt: a text, or the ids of its tokens, or a list of those. logprobs: how many of the likeliest tokens."""

    published: ClassVar[Fields] = TEXT
    prompt: str | list[Json]
    echo: bool = False
    logprobs: int | bool | None = None


_MOST_BIAS, _MOST_TOP = 100, 20
MOST_ANSWERS: Final = 128  # as at OpenAI
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def params_given(request: Sampling) -> JsonObject:
    """The fields of SamplingParams that the request sets. Raises Refusal."""
    given: JsonObject = {
        option.name: value
        for name, option in http_options("openai", SamplingParams).items()
        if (value := getattr(request, name, None)) is not None
    }
    if request.stop is not None:
        given["stop"] = stops(request.stop)
    if request.logit_bias:
        given["logit_bias"] = _biases(request.logit_bias.items())
    if 0 <= given.get("num_predict", -1) < given.get("min_tokens", 0):
        raise Refusal(400, f"min_tokens is {given['min_tokens']}, more than the most tokens of the answer")
    if given.keys() & WINDOWED:
        given["windowed_penalties"] = False  # whatever the rule of those is that go with the model
    return given


def answers_asked(request: Sampling, prompts: int = 1) -> int:
    """How many answers each prompt is to have. Raises Refusal."""
    count = 1 if request.n is None else request.n
    if count < 1:
        raise Refusal(400, f"n must be at least 1, not {count}")
    if count * prompts > MOST_ANSWERS:
        raise Refusal(400, f"{count * prompts} answers are asked for; at most {MOST_ANSWERS} are made a request")
    return count


def logprobs_given(asked: ChatRequest) -> dict[str, int]:
    """The field of SamplingParams that asks for the probabilities of tokens. Raises Refusal."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refusal(400, "top_logprobs is given without logprobs: set logprobs to true")
    if asked.top_logprobs is not None and not 0 <= asked.top_logprobs <= _MOST_TOP:
        raise Refusal(400, f"top_logprobs must be between 0 and {_MOST_TOP}")
    return {"top_logprobs": asked.top_logprobs or 0} if asked.logprobs else {}


def legacy_logprobs_given(asked: CompletionRequest) -> dict[str, int]:
    """The same, of a request in which one number says it. Raises Refusal."""
    count = asked.logprobs
    if count is None or count is False:
        return {}
    if count is True or not 0 <= count <= _MOST_TOP:
        raise Refusal(400, f"logprobs is how many of the likeliest tokens are told: a number from 0 to {_MOST_TOP}")
    if asked.echo:
        raise Refusal(400, "logprobs and echo: the prompt's tokens have no probabilities here; leave one of them out")
    return {"top_logprobs": count}


def _biases(pairs: Iterable[tuple[str, float]]) -> dict[int, float]:
    biases = {}
    for token, bias in pairs:
        if not _TOKEN_ID.fullmatch(token):
            raise Refusal(400, f"logit_bias: {token!r:.60} is no token id")
        if not -_MOST_BIAS <= bias <= _MOST_BIAS:
            raise Refusal(400, f"logit_bias must be between -{_MOST_BIAS} and {_MOST_BIAS}, not {bias} for {token}")
        biases[int(token)] = bias
    return biases


def background_asked(asked: Sampling) -> bool | None:
    """Whether a request may wait for chats: `service_tier` is "flex", or vLLM's `priority` above 0, which is later."""
    if asked.service_tier == "flex" or (asked.priority or 0) > 0:
        return True
    return None if asked.service_tier in (None, "auto", "default") and asked.priority is None else False
