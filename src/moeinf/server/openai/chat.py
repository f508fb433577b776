"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.ask import Ask, Call, Text
from moeinf.server.errors import Refusal
from moeinf.server.http import Answer, EventStream, body_of, json_response, whole_answer
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import ChatRequest, params_given
from moeinf.server.openai.stream import ChunkStream
from moeinf.server.prompt.content import plain_text, role_of
from moeinf.server.prompt.tools import checked_tools
from moeinf.server.service import Service, keep_alive_of
from moeinf.types import Message, Tool

_EFFORTS: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}


async def chat_completions(service: Service, request: Request) -> Response:
    asked = await body_of(request, ChatRequest)
    job = service.submit(request, ask_of(asked), asked.user)
    head = Head(asked.model, "chat.completion", "chat.completion.chunk", "chatcmpl")
    if asked.stream:
        return EventStream(job, ChatStream(head, asked).encode, "text/event-stream")
    answer = await whole_answer(request, job)
    return json_response(head.whole({"message": _message(answer), "logprobs": None}, answer.made))


def ask_of(asked: ChatRequest) -> Ask:
    """Raises Refusal, UsageError."""
    for name in ("functions", "audio"):
        if getattr(asked, name) is not None:
            raise Refusal(400, f"{name} is not supported" + ("; use tools" if name == "functions" else ""))
    if asked.modalities not in (None, ["text"]):
        raise Refusal(400, "modalities: models here answer with text alone")
    if not asked.messages:
        raise Refusal(400, "messages is empty; give at least one")
    return Ask(
        asked.model,
        [message_of(message, f"messages[{i}]") for i, message in enumerate(asked.messages)],
        params=params_given(asked),
        think=_think(asked.reasoning_effort),
        variables=asked.chat_template_kwargs or {},
        tools=_tools(asked),
        one_call=asked.parallel_tool_calls is False,
        keep_alive=keep_alive_of(asked.keep_alive),
    )


def message_of(message: dict[str, Any], where: str) -> Message:
    """A message as a chat template gets it. Raises Refusal."""
    plain: dict[str, Any] = {"role": role_of(message, where), "content": plain_text(message.get("content"), where)}
    thought = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
    if isinstance(thought, str) and thought:
        plain |= {"reasoning_content": thought, "thinking": thought}
    return plain | {name: message[name] for name in ("tool_calls", "tool_call_id", "name") if message.get(name)}


def _tools(asked: ChatRequest) -> tuple[Tool, ...]:
    """Those that the model may call. Raises Refusal."""
    tools, choice = checked_tools(asked.tools), asked.tool_choice
    if choice not in (None, "auto", "none"):
        raise Refusal(
            400, f"tool_choice {choice!r:.80} is not supported: a model here decides itself; give auto or none"
        )
    return () if choice == "none" else tools


def _think(effort: str | None) -> bool | str | None:
    if effort is None:
        return None
    if effort not in _EFFORTS:
        raise Refusal(400, f"reasoning_effort cannot be {effort!r:.60}; it is one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort]


def _message(answer: Answer) -> dict[str, Any]:
    calls = [_call(at, call.name, call.arguments) for at, call in enumerate(answer.made.tool_calls)]
    for call in calls:
        del call["index"]  # which a stream alone has
    content = None if calls and not answer.text else answer.text
    message = {"role": "assistant", "content": content} | _thoughts(answer.thinking)
    return message | ({"tool_calls": calls} if calls else {})


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    """A call, or the first part of one."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _thoughts(text: str) -> dict[str, str]:
    """Under the names that the clients of llama.cpp's server and of ollama look for."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


class ChatStream(ChunkStream):
    _begun = False

    def choice(self, piece: Text | Call) -> dict[str, Any]:
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        if isinstance(piece, Call):
            delta["tool_calls"] = [_part(piece)]
        elif piece.text:
            delta |= _thoughts(piece.text) if piece.thought else {"content": piece.text}
        return {"delta": delta}


def _part(part: Call) -> dict[str, Any]:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return _call(part.index, part.name, part.arguments)
