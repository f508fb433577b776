"""POST /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.stored.facts import facts_of
from moeinf.server.ask import Ask
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama.answers import ChatLines, GenerateLines, Lines
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
from moeinf.server.service import Service, keep_alive_of
from moeinf.text.thinking_text import THINK_WORDS
from moeinf.types import JsonObject, Message


async def chat(service: Service, request: Request) -> Response:
    asked = await service.body(request, ChatRequest)
    think = await _think(service, asked)
    ask = await service.pools.compute.run(lambda: chat_ask(asked, think))
    if ask.tools and "tools" not in await _capabilities(service, asked):
        raise Refusal(400, f'"{asked.model}" does not support tools')
    return await _answered(service, request, ask, ChatLines(ask), asked)


async def generate(service: Service, request: Request) -> Response:
    asked = await service.body(request, GenerateRequest)
    think = await _think(service, asked)
    ask = await service.pools.compute.run(lambda: generate_ask(asked, think))
    return await _answered(service, request, ask, GenerateLines(ask), asked)


async def _answered(service: Service, request: Request, ask: Ask, lines: Lines, asked: Asking) -> Response:
    """A stream unless the client wants none; what only loads or unloads is one object either way, as ollama has it."""
    job = await service.submit(request, ask)
    if asked.stream is not False and ask.prompt is not None:
        return await service.streamed(request, job, lines.encode, "application/x-ndjson")
    return await service.whole(request, job, lines.whole)


def chat_ask(asked: ChatRequest, think: bool | str | None) -> Ask:
    """Raises Refusal, UsageError."""
    messages = [message_of(message, f"messages[{i}]") for i, message in enumerate(asked.messages or ())]
    messages, continues = begun_answer(messages) if messages else ([], False)
    told = {"variables": asked.chat_template_kwargs or {}, "tools": checked_tools(asked.tools)}
    return _ask(asked, messages or None, think, continues=continues, **told)


def generate_ask(asked: GenerateRequest, think: bool | str | None) -> Ask:
    """Raises Refusal, UsageError."""
    refused = (
        (asked.raw and asked.system, "raw mode does not support system"),
        (asked.raw and think is not None, "raw mode does not support think"),
    )
    for given, why in refused:
        if given:
            raise Refusal(400, why)
    if not asked.prompt:
        return _ask(asked, None, think)
    content = _with_images(asked.prompt, asked.images, "images")
    if isinstance(content, str) and not asked.system:
        return _ask(asked, asked.prompt, think, raw=bool(asked.raw))
    system: list[Message] = [{"role": "system", "content": asked.system}] if asked.system else []
    return _ask(asked, [*system, {"role": "user", "content": content}], think, raw=bool(asked.raw))


def _ask(asked: Asking, prompt: str | list[Message] | None, think: bool | str | None, **more: Any) -> Ask:
    if isinstance(asked.format, str) and asked.format not in ("", "json"):
        raise Refusal(400, f'invalid format: {asked.format!r:.60}; expected "json" or a JSON schema')
    params, config = given_options(asked.options)
    return Ask(
        asked.model,
        prompt,
        params=params | given_logprobs(asked),
        config=config,
        think=think,
        format=asked.format or None,
        keep_alive=keep_alive_of(asked.keep_alive),
        **more,
    )


async def _think(service: Service, asked: Asking) -> bool | str | None:
    """Whether and how hard to think; None leaves it to the template. Raises ModelNotFoundError, Refusal."""
    think = asked.think
    if think is None or think == "":
        return None
    if str(think).lower() not in THINK_WORDS:
        raise Refusal(400, f"think cannot be {think!r:.60}; it is true, false, low, medium or high")
    if "thinking" in await _capabilities(service, asked):
        return think
    if str(think).lower() == "false":
        return None  # there is nothing to switch off
    raise Refusal(400, f'"{asked.model}" does not support thinking')


async def _capabilities(service: Service, asked: Asking) -> tuple[str, ...]:
    """Raises ModelNotFoundError."""
    return await service.pools.store.run(lambda: facts_of(service.find(asked.model)).capabilities)


def _with_images(content: str | list[JsonObject], images: Sequence[Any] | None, where: str) -> str | list[JsonObject]:
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
