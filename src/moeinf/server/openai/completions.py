"""POST /v1/completions: a text is continued as it is, without a chat template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.ask import Ask, Call, Chosen, Text
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import CompletionRequest, params_given
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.stream import ChunkStream
from moeinf.server.service import Service, keep_alive_of
from moeinf.types import JsonObject


async def completions(service: Service, request: Request) -> Response:
    asked, ask = await service.read(request, CompletionRequest, ask_of)
    job = await service.submit(request, ask, asked.user)
    head = Head(asked.model, "text_completion", "text_completion", "cmpl")
    if asked.stream:
        return await service.streamed(request, job, TextStream(head, asked).encode, "text/event-stream")
    return await service.whole(
        request, job, lambda answer: head.whole({"text": answer.text, "logprobs": None}, answer.made)
    )


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


class TextStream(ChunkStream):
    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        return {"text": piece.text} if isinstance(piece, Text) else None
