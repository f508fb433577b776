"""What POST /api/embed and its older form, /api/embeddings, ask: a vector for each text."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from moeinf.server.ask import Ask, Inputs, keep_alive_of
from moeinf.server.body_fields import Fields
from moeinf.server.http import Answer
from moeinf.server.ollama.answers import nanoseconds
from moeinf.server.ollama.fields import EMBED, EMBEDDINGS
from moeinf.server.ollama.requests import given_options
from moeinf.server.openai.embeddings import shortened, texts_of
from moeinf.server.question import Question, WholeWriter
from moeinf.types import JsonObject


class EmbedRequest(msgspec.Struct, kw_only=True):
    """truncate: whether a text that is too long loses its end, which is so unless it is false."""

    published: ClassVar[Fields] = EMBED
    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: JsonObject | None = None
    keep_alive: str | float | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    published: ClassVar[Fields] = EMBEDDINGS
    model: str
    prompt: str | None = None
    options: JsonObject | None = None
    keep_alive: str | float | None = None


def embed_question(asked: EmbedRequest) -> Question:
    """Raises Refusal, UsageError."""
    given, cut = asked.input, None if asked.truncate is False else 0
    inputs = Inputs(texts_of(given), cut) if given else None
    return Question(_ask(asked, inputs), _Embeds(asked), False)


def embeddings_question(asked: EmbeddingsRequest) -> Question:
    """Raises Refusal, UsageError."""
    inputs = Inputs([asked.prompt], cut=0) if asked.prompt else None
    return Question(_ask(asked, inputs), _Embedding(), False)


def _ask(asked: EmbedRequest | EmbeddingsRequest, inputs: Inputs | None) -> Ask:
    """Without a text it only loads the model."""
    _, config = given_options(asked.options)
    return Ask(asked.model, inputs, raw=True, config=config, keep_alive=keep_alive_of(asked.keep_alive))


class _Embeds(WholeWriter):
    def __init__(self, asked: EmbedRequest) -> None:
        self._asked = asked

    def whole(self, answer: Answer) -> JsonObject:
        """Raises Refusal for more dimensions than there are."""
        told: JsonObject = {"model": self._asked.model, "embeddings": []}
        if answer.completion is None:
            return told
        stats = answer.completion.stats
        vectors = shortened(answer.completion.vectors, self._asked.dimensions)
        return told | {
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": nanoseconds(answer.load_s + stats.total_s),
            "load_duration": nanoseconds(answer.load_s),
            "prompt_eval_count": stats.prompt_tokens,
        }


class _Embedding(WholeWriter):
    def whole(self, answer: Answer) -> JsonObject:
        vectors = answer.completion.vectors if answer.completion is not None else []
        return {"embedding": vectors[0].tolist() if vectors else []}
