"""A request as its caller sees it: what is asked and told while it runs, and what it gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moeinf.runtime.cache.stats import CacheStats, DecodeStats
from moeinf.sampling.cached_tokens import Source
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.logprobs import ChosenToken
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.speculation.drafts import DraftCounts
from moeinf.sampling.step_queue import SOMEBODY, Asker
from moeinf.text.text_stream import CallPart, Piece
from moeinf.types import Float32Array, JsonMapping, Message, Tool

Pooling = Literal["mean", "last"]  # which states of a text's tokens become its vector
FinishReason = Literal["stop", "length", "interrupted"]
# What an answer of finish_reason "length" came up against: the context, --num-predict, or the checkpoint's max_length.
CutBy = Literal["context", "num_predict", "max_length"]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the caller of a request is asked and told while it runs."""

    should_stop: Callable[[], bool] = lambda: False  # asked between layers; True ends the answer within a token
    on_prefill: Callable[[int, int], None] = lambda done, total: None  # tokens of the prompt, after each chunk
    on_thought: Callable[[str], None] = lambda piece: None  # what a model thinks before it answers, piece by piece
    # Each token but the one that ends the answer, before its text comes: where top_logprobs asks for that.
    on_token: Callable[[ChosenToken], None] = lambda chosen: None
    # Asked where an answer may be left alone; from True on its place is another's, until this says False again.
    gives_way: Callable[[], bool] = lambda: False


NO_HOOKS = Hooks()


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a prompt becomes text: see Model.pieces."""

    raw: bool = False
    variables: JsonMapping | None = None  # of the chat template
    continues: bool = False
    own: Mapping[str, Sequence[str]] | None = None  # further ones, in whose texts control tokens count


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokens already: they are read as they are, without what a tokenizer adds in front."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """What Model.pieces is asked for."""

    prompt: str | Sequence[Message] | TokenIds
    params: SamplingParams
    raw: bool = False
    variables: JsonMapping = field(default_factory=dict)  # all that the chat template is told
    tools: Sequence[Tool] = ()
    format: AnswerFormat | None = None
    continues: bool = False
    hooks: Hooks = NO_HOOKS
    asker: Asker = SOMEBODY
    room: int = 1  # tokens of the answer that the context must have room for


@dataclass(slots=True)
class PeakMemory:
    """The most memory that was ever taken, in bytes."""

    rss: int = 0  # of the process so far
    vram: int = 0  # of the GPU's memory, the driver's own context not counted


@dataclass(slots=True)
class Made:
    """What decided which answer was made of the probabilities, and how exact these were."""

    seed: int = 0  # that it was drawn with
    approx: str = ""  # how far they may be from the exact ones; "": they are exact


@dataclass(slots=True)
class GenerationStats:
    """Counts and seconds of one request, prefill and decode apart; rates are left to whoever prints them."""

    load_s: float = 0.0  # opening the model, charged to its first request
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt: keys and values reused from earlier requests
    cached_from: Source = ""  # the farthest place that these came from
    prompt_s: float = 0.0  # from the request to the first token
    generated_tokens: int = 0
    token_s: list[float] = field(default_factory=list)  # each token after the first
    total_s: float = 0.0  # all of it, load_s included
    prefill_cache: CacheStats = field(default_factory=CacheStats)
    decode_cache: DecodeStats = field(default_factory=DecodeStats)
    decode_laps: dict[str, float] = field(default_factory=dict)  # where the time of the decode steps went, by name
    peak: PeakMemory = field(default_factory=PeakMemory)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    made: Made = field(default_factory=Made)

    @property
    def decode_s(self) -> float:
        return sum(self.token_s)

    def add_prompt(self, other: GenerationStats) -> None:
        """Counts a prompt that was read for the same request."""
        self.load_s += other.load_s
        self.prompt_tokens += other.prompt_tokens
        self.prompt_s += other.prompt_s
        self.total_s += other.total_s
        self.prefill_cache = self.prefill_cache.plus(other.prefill_cache)
        self.peak = other.peak


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call of a tool."""

    name: str
    arguments: str  # the text of a JSON object


@dataclass(slots=True)
class Completion:
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: GenerationStats
    thinking: str = ""  # what the model wrote before the answer, or between its parts, where it thinks
    thought_tokens: int = 0  # of that, with the tags before them
    stop: str | None = None  # the stop string at which it ended, which is no part of the text
    cut_by: CutBy | None = None  # of an answer that did not end by itself
    call_parts: list[CallPart] = field(default_factory=list)  # of tools that the model called, as they came
    vectors: list[Float32Array] = field(default_factory=list)  # of the texts of a request for embeddings
    _told_tokens: int = 0  # of which all pieces have come

    def add(self, piece: Piece) -> None:
        """Takes a piece of the answer as it comes."""
        if piece.call is not None:
            self.call_parts.append(piece.call)
        elif piece.thought:
            self.thinking += piece.text
            self.thought_tokens += len(self.token_ids) - self._told_tokens
        else:
            self.text += piece.text
        self._told_tokens = len(self.token_ids)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that are whole: the end of an answer may have cut off the last one, or the model its arguments."""
        return whole_calls(self.call_parts)


def whole_calls(parts: Sequence[CallPart]) -> list[ToolCall]:
    """The calls that the parts make up, but for those whose arguments are not the text of an object."""
    names = {part.index: part.name for part in parts if part.name is not None}
    texts = {index: "".join(part.arguments for part in parts if part.index == index) for index in names}
    return [ToolCall(name, texts[index]) for index, name in names.items() if _is_object(texts[index])]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
