"""POST /v1/embeddings: a vector for each text."""

from __future__ import annotations

import base64
from typing import ClassVar, Final, Literal

import msgspec
import numpy as np

from moeinf.engine.completion import Completion
from moeinf.server.ask import Ask, Inputs, keep_alive_of
from moeinf.server.body_fields import Fields
from moeinf.server.figures import figures
from moeinf.server.http import Answer
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.fields import EMBEDDINGS
from moeinf.server.question import Question, WholeWriter
from moeinf.types import Float32Array, Json, JsonObject

MOST_INPUTS: Final = 2048  # of a request, as at OpenAI


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """input: a text, or the ids of its tokens, or a list of those."""

    published: ClassVar[Fields] = EMBEDDINGS
    model: str
    input: str | list[Json]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    priority: int | None = None  # as of vLLM
    keep_alive: str | float | None = None  # beyond OpenAI's own


def question_of(asked: EmbeddingRequest) -> Question:
    """Raises Refusal, UsageError."""
    ask = Ask(asked.model, Inputs(texts_of(asked.input)), raw=True, keep_alive=keep_alive_of(asked.keep_alive))
    background = None if asked.priority is None else asked.priority > 0
    return Question(ask, VectorWriter(asked), False, asked.user or "", background)


def texts_of(given: str | list[Json]) -> list[str | list[int]]:
    """The texts of an input, each as it is or as ids. Raises Refusal."""
    if isinstance(given, str) or (given and all(is_id(each) for each in given)):
        given = [given]
    if not given:
        raise Refusal(400, "input is empty; give at least one text")
    if len(given) > MOST_INPUTS:
        raise Refusal(400, f"input has {len(given)} texts; at most {MOST_INPUTS} are taken at once")
    for at, text in enumerate(given):
        if not isinstance(text, str) and not (isinstance(text, list) and all(is_id(each) for each in text)):
            raise Refusal(400, f"input[{at}] must be a text or a list of token ids")
        if not text:
            raise Refusal(400, f"input[{at}] is empty; give at least one word")
    return given


def shortened(vectors: list[Float32Array], dimensions: int | None) -> list[Float32Array]:
    """The vectors by their first numbers, of length 1 again. Raises Refusal for more than there are."""
    if dimensions is None:
        return vectors
    most = len(vectors[0])
    if not 0 < dimensions <= most:
        raise Refusal(400, f"dimensions is {dimensions}; this model has 1 to {most}")
    cut = [vector[:dimensions] for vector in vectors]
    return [each / (float(np.linalg.norm(each)) or 1.0) for each in cut]


def is_id(value: object) -> bool:
    """Whether a value may be the id of a token."""
    return isinstance(value, int) and not isinstance(value, bool)


class VectorWriter(WholeWriter):
    def __init__(self, asked: EmbeddingRequest) -> None:
        self._asked = asked

    def whole(self, answer: Answer) -> JsonObject:
        """Raises Refusal for more dimensions than there are."""
        completion: Completion = answer.made
        vectors = shortened(completion.vectors, self._asked.dimensions)
        data = [{"object": "embedding", "index": at, "embedding": self._told(each)} for at, each in enumerate(vectors)]
        tokens = completion.stats.prompt_tokens
        return {
            "object": "list",
            "data": data,
            "model": self._asked.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "moeinf": figures(completion.stats),
        }

    def _told(self, vector: Float32Array) -> str | list[float]:
        if self._asked.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        numbers: list[float] = vector.tolist()
        return numbers
