"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.stored.facts import facts_of
from moeinf.server.ask import Ask
from moeinf.server.http import Answer
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.chat_answer import ChatStream, logprobs, message_of_answer
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import ChatMessage, ChatRequest, params_given
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.thinking import budget_given, effort_of, think_of, thoughts_shown
from moeinf.server.prompt.content import plain_content, role_of, thoughts_apart
from moeinf.server.prompt.continuing import begun_answer
from moeinf.server.prompt.forced_calls import forced_calls
from moeinf.server.prompt.tools import checked_tools
from moeinf.server.service import Service, keep_alive_of
from moeinf.types import JsonObject, Message, Tool


async def chat_completions(service: Service, request: Request) -> Response:
    asked, ask = await service.read(request, ChatRequest, ask_of)
    forced, tools = _forced(asked.tool_choice), ask.tools
    if forced is not None:
        calls = await service.pools.store.run(
            lambda: forced_calls(facts_of(service.find(asked.model)), tools, forced or None)
        )
        ask = replace(ask, format=calls)
    job = await service.submit(request, ask, asked.user)
    head = Head(asked.model, "chat.completion", "chat.completion.chunk", "chatcmpl")
    if asked.stream:
        stream = ChatStream(head, asked, thoughts_shown=thoughts_shown(asked))
        return await service.streamed(request, job, stream.encode, "text/event-stream")

    def form(answer: Answer) -> object:
        if not thoughts_shown(asked):
            answer.thinking = ""
        choice = {"message": message_of_answer(answer), "logprobs": logprobs(answer.chosen) if asked.logprobs else None}
        return head.whole(choice, answer.made)

    return await service.whole(request, job, form)


def ask_of(asked: ChatRequest) -> Ask:
    """Raises Refusal, UsageError."""
    effort = effort_of(asked)
    if not asked.messages:
        raise Refusal(400, "messages is empty; give at least one")
    messages, continues = begun_answer(
        [message_of(message, f"messages[{i}]") for i, message in enumerate(asked.messages)],
        continues=asked.continue_final_message,
        new_turn=asked.add_generation_prompt,
    )
    return Ask(
        asked.model,
        messages,
        continues=continues,
        params=params_given(asked) | _logprobs(asked) | budget_given(asked),
        effort=effort,
        think=think_of(asked),
        variables=asked.chat_template_kwargs or {},
        tools=_tools(asked),
        one_call=asked.parallel_tool_calls is False,
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )


def message_of(message: ChatMessage, where: str) -> Message:
    """A message as a chat template gets it. Raises Refusal."""
    role, given, thought = role_of(message.role, where), message.content, ""
    if role == "assistant":
        given, thought = thoughts_apart(given, where)
    plain: JsonObject = {"role": role, "content": plain_content(given, where) or message.refusal or ""}
    if thought := message.reasoning_content or message.reasoning or message.thinking or thought:
        plain |= {"reasoning_content": thought, "thinking": thought}
    named = ("tool_calls", "function_call", "tool_call_id", "name")
    return plain | {name: msgspec.to_builtins(value) for name in named if (value := getattr(message, name))}


def _tools(asked: ChatRequest) -> tuple[Tool, ...]:
    """Those that the model may call. Raises Refusal."""
    tools = checked_tools(asked.tools)
    return () if asked.tool_choice == "none" else tools


def _forced(choice: str | JsonObject | None) -> str | None:
    """The tool that must be called; "": any; None: the model decides. Raises Refusal."""
    if choice in (None, "auto", "none"):
        return None
    if choice == "required":
        return ""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(400, f"tool_choice cannot be {choice!r:.80}; it is auto, none, required or a function")
    return str(function["name"])


def _logprobs(asked: ChatRequest) -> dict[str, int]:
    """Raises Refusal."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refusal(400, "top_logprobs is given without logprobs: set logprobs to true")
    if asked.top_logprobs is not None and not 0 <= asked.top_logprobs <= 20:
        raise Refusal(400, "top_logprobs must be between 0 and 20")
    return {"top_logprobs": asked.top_logprobs or 0} if asked.logprobs else {}
