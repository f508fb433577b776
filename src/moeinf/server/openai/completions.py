"""What POST /v1/completions asks: a text is continued as it is, without a chat template."""

from __future__ import annotations

from moeinf.server.ask import Ask, Call, Chosen, Text, keep_alive_of
from moeinf.server.http import Answer
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import CompletionRequest, background_asked, params_given
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.stream import ChunkWriter
from moeinf.server.question import Question
from moeinf.types import JsonObject


def question_of(asked: CompletionRequest) -> Question:
    """Raises Refusal, UsageError."""
    ask = ask_of(asked)
    head = Head(asked.model, "text_completion", "text_completion", "cmpl")
    return Question(ask, TextWriter(head, asked), asked.stream, asked.user or "", background_asked(asked))


def ask_of(asked: CompletionRequest) -> Ask:
    """Raises Refusal, UsageError."""
    prompt = asked.prompt
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise Refusal(400, "prompt must be one text: token ids and several prompts a request are not supported")
        prompt = prompt[0]
    return Ask(
        asked.model,
        prompt,
        raw=True,
        params=params_given(asked),
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )


class TextWriter(ChunkWriter):
    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        return {"text": piece.text} if isinstance(piece, Text) else None

    def whole(self, answer: Answer) -> JsonObject:
        return self.head.whole({"text": answer.text, "logprobs": None}, answer.made)
