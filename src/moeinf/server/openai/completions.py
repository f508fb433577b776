"""What POST /v1/completions asks: texts are continued as they are, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.engine.completion import TokenIds
from moeinf.server.ask import Ask, Call, Chosen, Text, drawn_anew, keep_alive_of
from moeinf.server.http import Answer
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.embeddings import is_id
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import (
    CompletionRequest,
    answers_asked,
    background_asked,
    legacy_logprobs_given,
    params_given,
)
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.stream import ChunkWriter
from moeinf.server.openai.token_logprobs import TokenLogprobs
from moeinf.server.question import Question
from moeinf.types import JsonObject


def question_of(asked: CompletionRequest) -> Question:
    """Raises Refusal, UsageError."""
    prompts = _prompts(asked)
    count = answers_asked(asked, len(prompts))
    first, *others = [drawn_anew(ask_of(asked, prompt), at) for prompt in prompts for at in range(count)]
    head = Head(asked.model, "text_completion", "text_completion", "cmpl")
    writer = TextWriter(head, asked, [prompt for prompt in prompts for _ in range(count)])
    return Question(first, writer, asked.stream, asked.user or "", background_asked(asked), others)


def _prompts(asked: CompletionRequest) -> list[str | TokenIds]:
    """Raises Refusal."""
    given = asked.prompt
    if isinstance(given, str) or (given and all(map(is_id, given))):
        given = [given]
    if not given:
        raise Refusal(400, "prompt is empty; give at least one text")
    found = list[str | TokenIds]()
    for each in given:
        if not isinstance(each, str) and not (isinstance(each, list) and all(map(is_id, each))):
            raise Refusal(400, "prompt must be a text, the ids of its tokens, or a list of either")
        found.append(each if isinstance(each, str) else TokenIds(each))
    return found


def ask_of(asked: CompletionRequest, prompt: str | TokenIds) -> Ask:
    """Raises Refusal, UsageError."""
    return Ask(
        asked.model,
        prompt,
        raw=True,
        params=params_given(asked) | legacy_logprobs_given(asked),
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )


class TextWriter(ChunkWriter):
    """Each chunk has the probabilities of the tokens that were chosen since the one before."""

    def __init__(self, head: Head, asked: CompletionRequest, prompts: Sequence[str | TokenIds]) -> None:
        """prompts: of each answer. Raises Refusal where they are to be told, and are no texts."""
        super().__init__(head, asked, len(prompts) // (asked.n or 1))
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if asked.echo and len(texts) < len(prompts):
            raise Refusal(400, "echo tells a prompt that is a text: leave it out, or give the text")
        self._echoed, self._begun = texts if asked.echo else [""] * len(prompts), -1
        self._told = [TokenLogprobs() if legacy_logprobs_given(asked) else None for _ in prompts]

    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        told = self._told[self.index]
        if isinstance(piece, Chosen) and told is not None:
            told.add(piece)
        if not isinstance(piece, Text):
            return None
        before = "" if self._begun == self.index else self._echoed[self.index]
        self._begun = self.index
        return {"text": before + piece.text, "logprobs": None if told is None else told.taken()}

    def choice_of(self, answer: Answer, index: int) -> JsonObject:
        told = self._told[index]
        if told is not None:
            for each in answer.chosen:
                told.add(each)
        return {"text": self._echoed[index] + answer.text, "logprobs": None if told is None else told.taken()}
