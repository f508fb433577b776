"""What clients of ollama's API send. Fields that are not listed are refused, or change no answer: see fields.py."""

from __future__ import annotations

import logging
import math
from typing import ClassVar

import msgspec

from moeinf.config import RuntimeConfig, ollama_meaning
from moeinf.config.option import Option, http_options, options
from moeinf.engine.stored.preset import Preset
from moeinf.sampling.params import RANGES, SamplingParams, as_ollama_means
from moeinf.server.body_fields import Fields
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama.fields import CHAT, CREATE, GENERATE, NAMED, PULL, SHOW
from moeinf.server.prompt.called import CallOfTurn
from moeinf.types import Json, JsonMapping, JsonObject

log = logging.getLogger("moeinf.server")
_MOST_SHOWN = 10  # names of unknown options in one line of the log
_BOUNDED = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "num_predict", "repeat_last_n"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
)
_TYPES = {"int": "integer", "float": "float32", "bool": "boolean", "str": "string", "tuple[str, ...]": "array"}


class Asking(msgspec.Struct, kw_only=True):
    """What chat and generate have in common. None is not given."""

    model: str
    stream: bool | None = None
    options: JsonObject | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    format: str | JsonObject | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ChatMessage(msgspec.Struct):
    """content: as prompt/content.py reads it."""

    published: ClassVar[Fields] = NAMED
    role: str
    content: Json = None
    thinking: str | None = None
    images: list[Json] | None = None
    tool_calls: list[CallOfTurn] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(Asking, kw_only=True):
    """chat_template_kwargs: variables of the chat template, under the name that OpenAI's servers give them."""

    published: ClassVar[Fields] = CHAT
    messages: list[ChatMessage] | None = None
    tools: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None


class GenerateRequest(Asking, kw_only=True):
    published: ClassVar[Fields] = GENERATE
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[Json] | None = None


class NamedRequest(msgspec.Struct, kw_only=True):
    """A request about one model; older clients call the field `name`."""

    published: ClassVar[Fields] = NAMED
    model: str | None = None
    name: str | None = None

    @property
    def named(self) -> str:
        """Raises Refusal where neither is given."""
        named = self.model or self.name
        if not named:
            raise Refusal(400, "model is required")
        return named


class ShowRequest(NamedRequest, kw_only=True):
    published: ClassVar[Fields] = SHOW
    verbose: bool | None = None


class PullRequest(NamedRequest, kw_only=True):
    published: ClassVar[Fields] = PULL
    stream: bool | None = None


class CopyRequest(msgspec.Struct, kw_only=True):
    published: ClassVar[Fields] = NAMED
    source: str
    destination: str


class CreateRequest(NamedRequest, kw_only=True):
    """source: the stored model that is named anew. parameters: as in a Modelfile, a list for several values."""

    published: ClassVar[Fields] = CREATE
    source: str | None = msgspec.field(default=None, name="from")
    system: str | None = None
    parameters: JsonObject | None = None
    stream: bool | None = None

    @property
    def preset(self) -> Preset:
        """Raises UsageError for what is no option, Refusal for what is no value of one."""
        pairs = list[tuple[str, str]]()
        for name, value in (self.parameters or {}).items():
            for each in value if isinstance(value, list) else [value]:
                if not isinstance(each, str | int | float):
                    raise Refusal(400, f"parameters.{name:.60} must be a text, a number, true or false")
                pairs.append((name, str(each).lower() if isinstance(each, bool) else str(each)))
        return Preset(self.system or "", tuple(pairs))


def given_options(given: JsonMapping | None) -> tuple[JsonObject, JsonObject]:
    """Fields of SamplingParams, and fields of RuntimeConfig. Names that mean nothing here are logged, as ollama does.

    Raises Refusal for a value of another type, UsageError for one that is out of range.
    """
    known = http_options("ollama", SamplingParams, RuntimeConfig)
    values = {known[name].name: _value(known[name], value) for name, value in (given or {}).items() if name in known}
    said = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(ascii(name)[:60] for name in given or {} if name not in known):
        log.info("options without a meaning here: %s", ", ".join(unknown[:_MOST_SHOWN]))
    of_model = {each.name for each in options(RuntimeConfig)}
    params = as_ollama_means({name: value for name, value in said.items() if name not in of_model})
    config: JsonObject = {name: value for name, value in said.items() if name in of_model}
    SamplingParams(**params)  # refuses what is out of range, before a stream begins
    RuntimeConfig.of(**config)
    return params, config


def _value(option: Option, value: object) -> object:
    """The value as its field has it; None where the client leaves the choice to us."""
    if value is None:
        return None
    if option.name == "device":  # any number of layers on a GPU: experts are placed one by one, and no answer changes
        return "cpu" if _whole(option, value) == 0 else "auto"
    if option.kind == "int":
        return _in_ollamas_words(option, _whole(option, value))
    if option.kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return _in_ollamas_words(option, value)
    if option.kind == "tuple[str, ...]" and isinstance(value, str):
        return (value,)
    if option.kind == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise _wrong_type(option)


def _in_ollamas_words(option: Option, value: float) -> object:
    """What a number means to ollama, for which a bound stands for all that lies beyond."""
    name = option.ollama
    meant = ollama_meaning(option, max(value, 0) if name == "repeat_penalty" else value)
    if name not in _BOUNDED or not isinstance(meant, int | float) or abs(meant) == math.inf:
        return meant
    low, high = RANGES[option.name]
    return min(meant if name == "temperature" else max(meant, low), high)


def _whole(option: Option, value: object) -> int:
    """A whole number, also one that is written as 40.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(option)
    return value


def _wrong_type(option: Option) -> Refusal:
    kind = "integer" if option.name == "device" else _TYPES.get(option.kind, option.kind)
    return Refusal(400, f'option "{option.ollama}" must be of type {kind}')


def given_logprobs(asked: Asking) -> dict[str, int]:
    """The field of SamplingParams that asks for the probabilities of tokens. Raises UsageError."""
    if asked.logprobs is not True and not asked.top_logprobs:
        return {}
    asks = SamplingParams(top_logprobs=asked.top_logprobs or 0)
    return {"top_logprobs": asks.top_logprobs}
