"""What POST /api/chat and /api/generate ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from moeinf.server.ask import Ask, Need, Thoughts, Tools, keep_alive_of
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama.answers import ChatLines, GenerateLines
from moeinf.server.ollama.requests import (
    Asking,
    ChatMessage,
    ChatRequest,
    GenerateRequest,
    given_logprobs,
    given_options,
)
from moeinf.server.prompt.content import plain_content, role_of
from moeinf.server.prompt.continuing import begun_answer
from moeinf.server.prompt.pictures import joined, picture_of
from moeinf.server.prompt.tools import checked_tools
from moeinf.server.question import Question
from moeinf.text.thinking_text import THINK_WORDS
from moeinf.types import Json, JsonObject, Message


def chat_question(asked: ChatRequest) -> Question:
    """Raises Refusal, UsageError."""
    ask = chat_ask(asked)
    return Question(ask, ChatLines(ask), _streamed(asked, ask))


def generate_question(asked: GenerateRequest) -> Question:
    """Raises Refusal, UsageError."""
    ask = generate_ask(asked)
    return Question(ask, GenerateLines(ask), _streamed(asked, ask))


def _streamed(asked: Asking, ask: Ask) -> bool:
    """A stream unless the client wants none; what only loads or unloads is one object either way, as ollama has it."""
    return asked.stream is not False and ask.prompt is not None


def chat_ask(asked: ChatRequest) -> Ask:
    """Raises Refusal, UsageError."""
    ask = _plain_ask(asked)
    messages = [message_of(message, f"messages[{i}]") for i, message in enumerate(asked.messages or ())]
    messages, continues = begun_answer(messages) if messages else ([], False)
    tools = checked_tools(asked.tools)
    needs = [*ask.needs, *([Need("tools", f'"{asked.model}" does not support tools')] if tools else [])]
    return replace(
        ask,
        prompt=messages or None,
        continues=continues,
        variables=asked.chat_template_kwargs or {},
        tools=Tools(tools),
        needs=needs,
    )


def generate_ask(asked: GenerateRequest) -> Ask:
    """Raises Refusal, UsageError."""
    ask, raw = _plain_ask(asked), bool(asked.raw)
    if raw and asked.system:
        raise Refusal(400, "raw mode does not support system")
    if raw and ask.thoughts.think is not None:
        ask = replace(ask, needs=[*ask.needs, Need("thinking", "raw mode does not support think", wanted=False)])
    if not asked.prompt:
        return ask
    content = _with_images(asked.prompt, asked.images, "images")
    if isinstance(content, str) and not asked.system:
        return replace(ask, prompt=content, raw=raw)
    system: list[Message] = [{"role": "system", "content": asked.system}] if asked.system else []
    return replace(ask, prompt=[*system, {"role": "user", "content": content}], raw=raw)


def _plain_ask(asked: Asking) -> Ask:
    """What chat and generate ask alike, which only loads the model."""
    think = _think(asked)
    if isinstance(asked.format, str) and asked.format not in ("", "json"):
        raise Refusal(400, f'invalid format: {asked.format!r:.60}; expected "json" or a JSON schema')
    params, config = given_options(asked.options)
    return Ask(
        asked.model,
        params=params | given_logprobs(asked),
        config=config,
        thoughts=Thoughts(think),
        format=asked.format or None,
        keep_alive=keep_alive_of(asked.keep_alive),
        needs=[Need("thinking", f'"{asked.model}" does not support thinking')] if think else [],
    )


def _think(asked: Asking) -> bool | str | None:
    """Whether and how hard to think; None leaves it to the template. Raises Refusal."""
    think = asked.think
    if think is None or think == "":
        return None
    if str(think).lower() not in THINK_WORDS:
        raise Refusal(400, f"think cannot be {think!r:.60}; it is true, false, low, medium, high or max")
    return False if str(think).lower() == "false" else think


def _with_images(content: str | list[JsonObject], images: Sequence[Json] | None, where: str) -> str | list[JsonObject]:
    """The content, with the images that come beside it in front. Raises Refusal."""
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return joined([*(picture_of(image, where) for image in images), *texts], where) if images else content


def message_of(message: ChatMessage, where: str) -> Message:
    """A message as a chat template gets it. Raises Refusal."""
    content = plain_content(message.content, where)
    plain: JsonObject = {"role": role_of(message.role, where), "content": _with_images(content, message.images, where)}
    if message.thinking:
        plain |= {"thinking": message.thinking, "reasoning_content": message.thinking}
    told = {"tool_calls": message.tool_calls, "tool_call_id": message.tool_call_id, "name": message.tool_name}
    return plain | {name: msgspec.to_builtins(value) for name, value in told.items() if value}
