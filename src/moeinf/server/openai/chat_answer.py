"""The answers of chat completions: messages and what a stream tells of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from moeinf.server.ask import Call, Chosen, Text
from moeinf.server.figures import logprobs
from moeinf.server.http import Answer
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import ChatRequest
from moeinf.server.openai.stream import ChunkWriter
from moeinf.server.openai.thinking import thoughts_shown
from moeinf.types import JsonObject


def message_of_answer(answer: Answer) -> JsonObject:
    calls = [_call(at, call.name, call.arguments) for at, call in enumerate(answer.made.tool_calls)]
    for call in calls:
        del call["index"]  # which a stream alone has
    content = None if calls and not answer.text else answer.text
    message = {"role": "assistant", "content": content} | _thoughts(answer.thinking)
    return message | ({"tool_calls": calls} if calls else {})


def _call(index: int, name: str, arguments: str) -> JsonObject:
    """A call, or the first part of one."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _thoughts(text: str) -> dict[str, str]:
    """Under the names that the clients of llama.cpp's server and of ollama look for."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


class ChatWriter(ChunkWriter):
    """Each chunk has the probabilities of the tokens that were chosen since the one before."""

    def __init__(self, head: Head, asked: ChatRequest) -> None:
        super().__init__(head, asked)
        self._begun, self._thoughts_shown, self._logprobs = -1, thoughts_shown(asked), bool(asked.logprobs)
        self._tokens: list[Chosen] = []

    def choice_of(self, answer: Answer, index: int) -> JsonObject:
        if not self._thoughts_shown:
            answer.thinking = ""
        told = _logprobs(answer.chosen) if self._logprobs else None
        return {"message": message_of_answer(answer), "logprobs": told}

    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        if isinstance(piece, Chosen):
            self._tokens.append(piece)
            return None
        if isinstance(piece, Text) and piece.thought and not self._thoughts_shown:
            return None
        delta: JsonObject = {} if self._begun == self.index else {"role": "assistant"}
        self._begun = self.index
        if isinstance(piece, Call):
            delta["tool_calls"] = [_part(piece)]
        elif piece.text:
            delta |= _thoughts(piece.text) if piece.thought else {"content": piece.text}
        tokens, self._tokens = self._tokens, []
        return {"delta": delta, "logprobs": _logprobs(tokens) if tokens else None}


def _part(part: Call) -> JsonObject:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return _call(part.index, part.name, part.arguments)


def _logprobs(tokens: Sequence[Chosen]) -> JsonObject:
    return {"content": logprobs(tokens), "refusal": None}
