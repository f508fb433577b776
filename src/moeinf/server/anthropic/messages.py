"""What POST /v1/messages asks."""

from __future__ import annotations

from dataclasses import replace

from moeinf.server.anthropic.head import Head
from moeinf.server.anthropic.requests import MessageRequest, forced_tool, format_of, params_given, prompt_of
from moeinf.server.anthropic.stream import MessageWriter
from moeinf.server.ask import Ask, keep_alive_of
from moeinf.server.question import Question


def question_of(asked: MessageRequest, request_id: str) -> Question:
    """Raises Refusal, UsageError."""
    thoughts_shown = asked.thinking is None or asked.thinking.display != "omitted"
    ask, user = ask_of(asked), asked.metadata.user_id if asked.metadata else None
    writer = MessageWriter(Head(asked.model), request_id, thoughts_shown=thoughts_shown)
    return Question(ask, writer, asked.stream, user or "")


def ask_of(asked: MessageRequest) -> Ask:
    """Raises Refusal, UsageError."""
    ask, choice = prompt_of(asked), asked.tool_choice
    one_call = choice is not None and choice.disable_parallel_tool_use
    return replace(
        ask,
        params=params_given(asked),
        tools=replace(ask.tools, forced=forced_tool(choice), one_call=one_call),
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )
