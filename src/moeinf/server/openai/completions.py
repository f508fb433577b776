"""What POST /v1/completions asks: texts are continued as they are, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.server.ask import Ask, Call, Chosen, Text, drawn_anew, keep_alive_of
from moeinf.server.http import Answer
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import CompletionRequest, answers_asked, background_asked, params_given
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.stream import ChunkWriter
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


def _prompts(asked: CompletionRequest) -> list[str]:
    """Raises Refusal."""
    given = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    if not given or not all(isinstance(each, str) for each in given):
        raise Refusal(400, "prompt must be a text or a list of texts: token ids are not supported")
    return given


def ask_of(asked: CompletionRequest, prompt: str) -> Ask:
    """Raises Refusal, UsageError."""
    return Ask(
        asked.model,
        prompt,
        raw=True,
        params=params_given(asked),
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )


class TextWriter(ChunkWriter):
    def __init__(self, head: Head, asked: CompletionRequest, prompts: Sequence[str]) -> None:
        """prompts: of each answer."""
        super().__init__(head, asked, len(prompts) // (asked.n or 1))
        self._echoed, self._begun = prompts if asked.echo else [""] * len(prompts), -1

    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        if not isinstance(piece, Text):
            return None
        before = "" if self._begun == self.index else self._echoed[self.index]
        self._begun = self.index
        return {"text": before + piece.text}

    def choice_of(self, answer: Answer, index: int) -> JsonObject:
        return {"text": self._echoed[index] + answer.text, "logprobs": None}
