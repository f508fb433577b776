"""Every published field of the three APIs is obeyed, refused by name, or known to change no answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import ollama._types as ollama_types
import pytest
from anthropic.types import ToolParam
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_message
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types import completion_create_params as of_texts
from openai.types import embedding_create_params as of_vectors
from openai.types.chat import ChatCompletionAssistantMessageParam, ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as of_chats
from openai.types.responses import response_create_params as of_responses

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.sampling.params import SamplingParams
from moeinf.server.anthropic import fields as anthropic_fields
from moeinf.server.anthropic.requests import MessageRequest, Prompted
from moeinf.server.body import checked
from moeinf.server.body_fields import Fields, tell_once
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama import requests as ollama
from moeinf.server.ollama.embeddings_asked import EmbeddingsRequest, EmbedRequest
from moeinf.server.ollama.fields import OPTIONS
from moeinf.server.openai.embeddings import EmbeddingRequest
from moeinf.server.openai.requests import ChatMessage, ChatRequest, CompletionRequest, StreamOptions
from moeinf.server.responses.response_request import ResponseRequest

# What vLLM, SGLang, llama.cpp's server and others take at these routes beside OpenAI's own fields.
EXTENSIONS = json.loads((Path(__file__).parent / "extensions.json").read_text())


def extensions(route: str) -> set[str]:
    return {name for fields in EXTENSIONS.values() for line in fields.get(route, ()) for name in line.split()}


def names_of(kind: Any) -> set[str]:
    """The fields of a request's type in a client: a TypedDict, or a model of pydantic."""
    if hasattr(kind, "model_fields"):
        return {field.serialization_alias or field.alias or name for name, field in kind.model_fields.items()}
    return set(get_type_hints(kind))


PUBLISHED: list[tuple[type[Any], set[str]]] = [
    (ChatRequest, names_of(of_chats.CompletionCreateParamsNonStreaming)),
    (ChatRequest, extensions("chat") | extensions("chat and text")),
    (CompletionRequest, names_of(of_texts.CompletionCreateParamsNonStreaming)),
    (CompletionRequest, extensions("chat and text") | {"prompt_embeds"}),
    (ChatMessage, names_of(ChatCompletionAssistantMessageParam)),
    (ResponseRequest, names_of(of_responses.ResponseCreateParamsNonStreaming)),
    (EmbeddingRequest, names_of(of_vectors.EmbeddingCreateParams) | {"normalize", "priority", "request_id"}),
    (EmbedRequest, names_of(ollama_types.EmbedRequest)),
    (EmbeddingsRequest, names_of(ollama_types.EmbeddingsRequest)),
    (StreamOptions, names_of(ChatCompletionStreamOptionsParam) | {"continuous_usage_stats"}),
    (MessageRequest, names_of(MessageCreateParamsNonStreaming)),
    (MessageRequest, names_of(beta_message.MessageCreateParamsNonStreaming)),
    (Prompted, names_of(MessageCountTokensParams)),
    (Prompted, names_of(beta_count.MessageCountTokensParams)),
    (ollama.ChatRequest, names_of(ollama_types.ChatRequest) | {"truncate", "shift", "_debug_render_only"}),
    (ollama.GenerateRequest, names_of(ollama_types.GenerateRequest) | {"truncate", "shift", "_debug_render_only"}),
    (ollama.ChatMessage, names_of(ollama_types.Message) | {"tool_call_id"}),
    (ollama.ShowRequest, names_of(ollama_types.ShowRequest) | {"name", "system", "template", "verbose", "options"}),
    (ollama.PullRequest, names_of(ollama_types.PullRequest) | {"name", "username", "password"}),
    (ollama.NamedRequest, names_of(ollama_types.DeleteRequest) | {"name"}),
    (ollama.CreateRequest, names_of(ollama_types.CreateRequest) - {"from_"} | {"from", "modelfile", "name"}),
    (ollama.CopyRequest, names_of(ollama_types.CopyRequest)),
]


def nested(kind: Any, name: str) -> set[str]:
    """The fields of the types that a field of a client's type may have."""
    found: set[str] = set()
    waiting = [get_type_hints(kind)[name]]
    while waiting:
        each = waiting.pop()
        if get_origin(each) is not None:
            waiting += get_args(each)
        elif hasattr(each, "__required_keys__"):
            found |= names_of(each)
    return found


NESTED: list[tuple[type[Any], str, set[str]]] = [
    (MessageRequest, name, nested(beta_message.MessageCreateParamsNonStreaming, name))
    for name in ("thinking", "output_config", "tool_choice", "metadata")
]
NESTED += [
    (ResponseRequest, name, nested(of_responses.ResponseCreateParamsNonStreaming, name)) for name in ("reasoning",)
]


def rules_of(kind: type[Any]) -> Fields:
    found: Fields = kind.published
    return found


def obeyed(kind: type[Any]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def fate(kind: type[Any], name: str) -> str:
    if name in obeyed(kind):
        return "obeyed"
    return "refused" if name in rules_of(kind).refused else "silent" if name in rules_of(kind).silent else "unknown"


@pytest.mark.parametrize(("kind", "names"), PUBLISHED)
def test_no_published_field_is_unknown(kind: type[Any], names: set[str]) -> None:
    assert names and sorted(name for name in names if fate(kind, name) == "unknown") == []


@pytest.mark.parametrize(("kind", "name", "names"), NESTED)
def test_nor_is_one_within_another(kind: type[Any], name: str, names: set[str]) -> None:
    hints = get_type_hints(kind)[name]
    (inner,) = (each for each in get_args(hints) if isinstance(each, type) and issubclass(each, msgspec.Struct))
    assert names and sorted(each for each in names if fate(inner, each) == "unknown") == []


def test_nor_is_one_of_a_tool_of_anthropic() -> None:
    rules, taken = anthropic_fields.TOOL, {"name", "description", "input_schema", "type"}
    assert names_of(ToolParam) <= {*rules.refused, *rules.silent, *taken}


def test_nor_is_one_of_ollamas_options() -> None:
    rules, taken = OPTIONS, http_options("ollama", SamplingParams, RuntimeConfig)
    published = names_of(ollama_types.Options) | {"min_p", "draft_num_predict"}
    assert sorted(published - {*rules.refused, *rules.silent, *taken}) == []
    assert ollama.given_options(dict.fromkeys(rules.silent, 5)) == ({}, {})


KINDS = list(dict.fromkeys(kind for kind, _ in PUBLISHED))
ASKING: list[Any] = [True, "some", 3, 0.25, ["some"], {"some": "thing"}, [1], -7]


def refused_fields() -> Iterator[Any]:
    for kind in KINDS:
        for name in rules_of(kind).refused:
            if name not in obeyed(kind):
                yield pytest.param(kind, name, id=f"{kind.__module__.split('.')[-2]}.{kind.__name__}.{name}")


@pytest.mark.parametrize(("kind", "name"), list(refused_fields()))
def test_a_refused_field_is_named_where_it_asks_for_something_and_passes_where_it_does_not(
    kind: type[Any], name: str
) -> None:
    rule = rules_of(kind).refused[name]
    for value in (None, *rule.nothing):
        checked({name: value}, kind)
    asking = [value for value in ASKING if not any(value == each for each in rule.nothing)]
    for value in asking:
        with pytest.raises(Refusal) as caught:
            checked({name: value}, kind)
        assert caught.value.status == 400 and (name in str(caught.value) or rule.words)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_changes_no_answer_passes_with_any_value(kind: type[Any]) -> None:
    for name in rules_of(kind).silent:
        if name not in obeyed(kind):
            for value in ASKING:
                checked({name: value}, kind)


def test_zero_and_no_are_not_the_same() -> None:
    checked({"xtc_probability": 0}, ChatRequest)
    checked({"xtc_probability": 0.0}, ChatRequest)
    with pytest.raises(Refusal):
        checked({"skip_special_tokens": 0}, ChatRequest)


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_api_publishes_is_ignored_with_a_line_in_the_log(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tell_once.cache_clear()
    with caplog.at_level(logging.INFO, "moeinf.server"):
        for _ in range(3):
            checked({"unheard_of": 1}, kind)
    assert caplog.messages == ["a field without a meaning here: unheard_of"]


MISSPELT = [
    (ChatRequest, "temperatur", "temperature"),
    (ChatRequest, "max_token", "max_tokens"),
    (ChatRequest, "response_formats", "response_format"),
    (CompletionRequest, "presence_penality", "presence_penalty"),
    (MessageRequest, "stop_sequence", "stop_sequences"),
    (MessageRequest, "max_tokenss", "max_tokens"),
]


@pytest.mark.parametrize(("kind", "name", "meant"), MISSPELT)
def test_a_field_that_is_nearly_spelt_right_is_refused(kind: type[Any], name: str, meant: str) -> None:
    with pytest.raises(Refusal, match=f"{name} is no field of this API; is {meant} meant"):
        checked({name: 1}, kind)


def test_no_object_has_a_thousand_fields() -> None:
    for kind in (ChatRequest, ollama.ChatRequest, MessageRequest):
        with pytest.raises(Refusal, match="has 1001 fields"):
            checked({f"field {at}": 1 for at in range(1001)}, kind)
    checked({"x" * 1_000_000: 1}, ChatRequest)  # is like no other


@pytest.mark.parametrize("name", ["grammar", "guided_choice", "response_format", "tool_choice", "thinking_budget"])
@pytest.mark.parametrize("kind", [ollama.ChatRequest, ollama.GenerateRequest])
def test_what_is_a_field_elsewhere_is_refused_on_ollamas_routes(kind: type[Any], name: str) -> None:
    with pytest.raises(Refusal, match=name):
        checked({"model": "m", name: 1}, kind)


ASKED = (ChatRequest, CompletionRequest, ResponseRequest, MessageRequest, ollama.ChatRequest, ollama.GenerateRequest)
PROMPTS = ("prompt", "messages", "input", "system", "system_prompt", "instructions", "images", "tools", "functions")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
THOUGHTS = ("think", "thinking", "enable_thinking", "reasoning", "reasoning_effort", "thinking_budget")
ELSEWHERE = ("extra_body", "generation_config", "model_kwargs", "parameters", "sampling_params", "response_format")


@pytest.mark.parametrize("name", [*PROMPTS, *LIMITS, *THOUGHTS, *ELSEWHERE])
@pytest.mark.parametrize("kind", ASKED)
def test_what_one_api_asks_for_is_obeyed_or_refused_by_the_others(kind: type[Any], name: str) -> None:
    assert (name in LIMITS and kind is MessageRequest) or fate(kind, name) in ("obeyed", "refused")


PLACES = ("extra_body", "generation_config", "model_kwargs", "options", "parameters", "sampling_params")
OPTION_NAMES = sorted(http_options("ollama", SamplingParams, RuntimeConfig))


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        *((ChatRequest, name, "give max_tokens") for name in ("max_new_tokens", "max_output_tokens", "num_predict")),
        (CompletionRequest, "stop_sequences", "give stop"),
        (MessageRequest, "stop", "give stop_sequences"),
        (MessageRequest, "response_format", "give output_config.format"),
        (MessageRequest, "grammar", "give output_config.format"),
        (MessageRequest, "reasoning_effort", "give thinking"),
        (MessageRequest, "thinking_budget", "give thinking.budget_tokens"),
        # Options in the place where another API or a library has them.
        *((kind, name, "give its members") for kind in (ChatRequest, ResponseRequest) for name in PLACES),
        *((MessageRequest, name, "give its members") for name in ("extra_body", "options")),
        (MessageRequest, "presence_penalty", "Anthropic's API has no such field; ask /v1/chat/completions"),
        (ChatRequest, "system", "give a message of the role system"),
        (CompletionRequest, "system", "put it into the prompt"),
        (ollama.ChatRequest, "system", "give a message of the role system"),
        *((ollama.ChatRequest, name, "ollama's API has no such field; give it in options") for name in OPTION_NAMES),
    ],
)
def test_the_name_that_another_api_has_for_a_field_is_refused_with_the_right_one(
    kind: type[Any], name: str, remedy: str
) -> None:
    with pytest.raises(Refusal, match=f"{name} is not supported: {remedy}"):
        checked({name: "x"}, kind)


TEXTS = ("input", "prompt", "prompts", "text", "texts", "content", "messages")


@pytest.mark.parametrize("name", [*TEXTS, "encoding_format", "dimensions"])
@pytest.mark.parametrize("kind", [EmbedRequest, EmbeddingsRequest])
def test_no_text_to_embed_is_passed_over(kind: type[Any], name: str) -> None:
    """Of a request without a text nothing but an empty vector would come."""
    assert fate(kind, name) in ("obeyed", "refused")


def test_a_text_that_the_other_route_embeds_is_refused_with_its_name() -> None:
    for kind, name, remedy in ((EmbedRequest, "prompt", "give input"), (EmbeddingsRequest, "input", "give prompt")):
        with pytest.raises(Refusal, match=f"{name} is not supported: {remedy}"):
            checked({"model": "m", name: "hello"}, kind)
