"""What POST /v1/chat/completions asks."""

from __future__ import annotations

import msgspec

from moeinf.server.ask import Ask, Tools, drawn_anew, keep_alive_of
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.chat_answer import ChatWriter
from moeinf.server.openai.head import Head
from moeinf.server.openai.requests import (
    ChatMessage,
    ChatRequest,
    answers_asked,
    background_asked,
    logprobs_given,
    params_given,
)
from moeinf.server.openai.response_format import format_of
from moeinf.server.openai.thinking import budget_given, thoughts_of
from moeinf.server.prompt.content import plain_content, role_of, thoughts_apart
from moeinf.server.prompt.continuing import begun_answer
from moeinf.server.prompt.tool_choice import chosen_tools
from moeinf.server.prompt.tools import checked_tools
from moeinf.server.question import Question
from moeinf.types import JsonObject, Message


def question_of(asked: ChatRequest) -> Question:
    """Raises Refusal, UsageError."""
    ask = ask_of(asked)
    head = Head(asked.model, "chat.completion", "chat.completion.chunk", "chatcmpl")
    others = [drawn_anew(ask, at) for at in range(1, answers_asked(asked))]
    return Question(ask, ChatWriter(head, asked), asked.stream, asked.user or "", background_asked(asked), others)


def ask_of(asked: ChatRequest) -> Ask:
    """Raises Refusal, UsageError."""
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
        params=params_given(asked) | logprobs_given(asked) | budget_given(asked),
        thoughts=thoughts_of(asked),
        variables=asked.chat_template_kwargs or {},
        tools=_tools(asked),
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


def _tools(asked: ChatRequest) -> Tools:
    """Raises Refusal."""
    return chosen_tools(checked_tools(asked.tools), asked.tool_choice, one_call=asked.parallel_tool_calls is False)
