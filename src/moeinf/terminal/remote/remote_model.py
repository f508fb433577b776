"""A model that a running server has loaded, as a conversation uses one: no second copy of its weights."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from moeinf.config.option import http_options
from moeinf.engine.completion import NO_HOOKS, Completion, GenerationStats, Hooks, Made, PeakMemory
from moeinf.engine.stored.facts import StoredFacts, json_file
from moeinf.engine.vision.parts import text_alone
from moeinf.errors import UsageError
from moeinf.runtime.cache.stats import CacheStats, DecodeStats
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.sampling.speculation.drafts import DraftCounts
from moeinf.store.library import StoredModel
from moeinf.terminal.remote.client import NoServerError, ServerClient
from moeinf.text.thinking_text import template_variables
from moeinf.types import Json, JsonMapping, JsonObject, Message

if TYPE_CHECKING:
    from moeinf.sampling.constraint import AnswerFormat

_THINK: Mapping[str, bool] = {"true": True, "false": False}
Line = JsonObject  # of a streamed answer


@dataclass(frozen=True, slots=True)
class _Text:
    has_template: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    context: int  # tokens


@dataclass(frozen=True, slots=True)
class _Tier:
    num_experts: int


class RemoteModel:
    """As much of Model as a conversation asks for. The server keeps the model loaded when this is closed."""

    encoder_decoder = False

    def __init__(
        self, client: ServerClient, stored: StoredModel, told: JsonMapping, keep_alive: str | None = None
    ) -> None:
        """told: the model's entry in /api/ps. keep_alive: as of model_on_server."""
        self.name, self.manifest, self.url = stored.name, stored.manifest, client.url
        self.told = told
        self.last: Completion | None = None
        self._facts = StoredFacts(stored)
        self.tokenizer = _Text(bool(self._facts.template))
        self.plan, self.tier = _Plan(told["context_length"]), _Tier(told["moeinf"]["slots"])
        self._client, self._stored, self._name = client, stored, told["name"]
        self._kept = {} if keep_alive is None else {"keep_alive": keep_alive}

    def warm_up(self) -> None:
        """See Model.warm_up. Does nothing: where the server has the model open, its cache is as it should be."""

    def params(self, **given: Json) -> SamplingParams:
        """See Model.params."""
        return resolve_params(given, generation_config=json_file(self._stored, "generation_config.json"))

    def template_variables(self, think: bool | str | None, given: JsonMapping) -> JsonObject:
        """See Model.template_variables."""
        return template_variables(self._facts.template_facts, None if think is None else str(think).lower(), given)

    def stream(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        think: bool | str | None = None,
        variables: JsonMapping | None = None,
        format: AnswerFormat | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> Iterator[str]:
        """See Model.stream. Raises what the server says, and NoServerError where it does not answer."""
        given = params or self.params()
        if given.num_predict == 0:
            raise UsageError(
                f"num_predict: an answer of the server at {self.url} has at least one token; give 1 or more"
            )
        names = http_options("ollama", SamplingParams)
        body: JsonObject = {
            "model": self._name,
            "options": {name: getattr(given, option.name) for name, option in names.items()},
            "think": None if think is None else _THINK.get(str(think).lower(), think),
            "format": format,
            **self._kept,
        }
        if isinstance(prompt, str):
            path, body = "/api/generate", body | {"prompt": prompt, "raw": raw}
        elif raw:
            path, body = "/api/generate", body | {"prompt": text_alone(prompt), "raw": True}
            body |= {"images": [image for message in prompt for image in _in_base64(message)["images"]]}
        else:
            messages = [_in_base64(message) for message in prompt]
            path, body = "/api/chat", body | {"messages": messages, "chat_template_kwargs": variables or {}}
        lines = self._client.stream(path, body, hooks.should_stop)
        first = _first_line(lines)
        self.last = Completion("", [], "interrupted", GenerationStats())
        return self._pieces(self.last, first, lines, hooks)

    def _pieces(
        self, answer: Completion, line: Line | None, lines: Generator[Line, None, None], hooks: Hooks
    ) -> Iterator[str]:
        """Yields the text of the lines, and fills the answer."""
        with closing(lines):
            while line is not None and not line["done"]:
                told = line.get("moeinf", {})
                if told.get("phase") == "prefill":
                    hooks.on_prefill(told["done"], told["total"])
                said = line.get("message") or line
                if thought := said.get("thinking"):
                    answer.thinking += thought
                    hooks.on_thought(thought)
                if text := said.get("content") or said.get("response"):
                    answer.text += text
                    yield text
                line = next(lines, None)
        if line is not None:
            answer.finish_reason = "length" if line["done_reason"] == "length" else "stop"
            answer.cut_by, answer.stats = line["moeinf"]["cut_by"], _stats(line)
        elif not hooks.should_stop():
            raise NoServerError(f"the server at {self.url} ended before its answer did; ask again")

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        return ", or give `moeinf serve` a longer --num-ctx"

    def describe(self) -> str:
        return f"{self.name} · on the server at {self.url} · context {self.plan.context}"

    def close(self) -> None:
        pass


def _in_base64(message: Message) -> Message:
    """A message with its pictures as ollama's API has them."""
    content = message["content"]
    if isinstance(content, str):
        return message
    images = [base64.b64encode(part["image"]).decode() for part in content if part["type"] == "image"]
    return {**message, "content": text_alone([message]), "images": images}


def _first_line(lines: Iterator[Line]) -> Line | None:
    """The first line that tells that the prompt was taken: until then comes what a caller of `stream` has to know."""
    for line in lines:
        said = line.get("message") or line
        if line["done"] or line.get("moeinf", {}).get("phase") == "prefill":
            return line
        if said.get("content") or said.get("response") or said.get("thinking"):
            return line
    return None


def _stats(line: Line) -> GenerationStats:
    """The figures of the last line, in which every token after the first took the same time."""
    told, decoded = line["moeinf"], max(0, line["eval_count"] - 1)
    return GenerationStats(
        load_s=line["load_duration"] / 1e9,
        prompt_tokens=line["prompt_eval_count"],
        cached_tokens=told["cached_tokens"],
        cached_from=told["cached_from"],
        prompt_s=line["prompt_eval_duration"] / 1e9,
        generated_tokens=line["eval_count"],
        token_s=[line["eval_duration"] / 1e9 / decoded] * decoded if decoded else [],
        total_s=line["total_duration"] / 1e9,
        prefill_cache=_cache(CacheStats, told["prefill_cache"]),
        decode_cache=_cache(DecodeStats, told["decode_cache"]),
        peak=PeakMemory(told["peak_rss_bytes"], told["peak_vram_bytes"]),
        drafts=DraftCounts(told["draft_n"], told["draft_n_accepted"]),
        made=Made(told["seed"], told["approx"]),
    )


Stats = TypeVar("Stats", bound=CacheStats)


def _cache(kind: type[Stats], told: JsonMapping) -> Stats:
    return kind(**{each.name: told[each.name] for each in fields(kind)})
