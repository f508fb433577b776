"""POST /v1/messages."""

from __future__ import annotations

import json
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.stored.facts import facts_of
from moeinf.server.anthropic.head import Head, ending_of, tool_use, usage_of
from moeinf.server.anthropic.requests import MessageRequest, forced_tool, format_of, params_given, prompt_of
from moeinf.server.anthropic.stream import MessageStream, Signature
from moeinf.server.ask import Ask
from moeinf.server.figures import figures
from moeinf.server.http import Answer
from moeinf.server.prompt.forced_calls import forced_calls
from moeinf.server.service import Service, keep_alive_of
from moeinf.types import JsonObject


async def messages(service: Service, request: Request, request_id: str) -> Response:
    asked, ask = await service.read(request, MessageRequest, ask_of)
    forced, tools = forced_tool(asked.tool_choice), ask.tools
    if forced is not None:
        calls = await service.pools.store.run(
            lambda: forced_calls(facts_of(service.find(asked.model)), tools, forced or None)
        )
        ask = replace(ask, format=calls)
    job = await service.submit(request, ask, asked.metadata.user_id if asked.metadata else None)
    head = Head(asked.model)
    thoughts_shown = asked.thinking is None or asked.thinking.display != "omitted"
    if asked.stream:
        stream = MessageStream(head, request_id, thoughts_shown=thoughts_shown)
        return await service.streamed(request, job, stream.encode, "text/event-stream")

    def form(answer: Answer) -> object:
        completion = answer.made
        content = blocks_of(answer, thoughts_shown=thoughts_shown)
        whole = head.message(content, ending_of(completion), usage_of(completion))
        return whole | {"moeinf": figures(completion.stats)}

    return await service.whole(request, job, form)


def ask_of(asked: MessageRequest) -> Ask:
    """Raises Refusal, UsageError."""
    return replace(
        prompt_of(asked),
        params=params_given(asked),
        one_call=asked.tool_choice is not None and asked.tool_choice.disable_parallel_tool_use,
        format=format_of(asked),
        keep_alive=keep_alive_of(asked.keep_alive),
    )


def blocks_of(answer: Answer, *, thoughts_shown: bool) -> list[JsonObject]:
    """The content of a whole message."""
    blocks: list[JsonObject] = []
    if answer.thinking:
        signature = Signature()
        signature.add(answer.thinking)
        thinking = answer.thinking if thoughts_shown else ""
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature.take()})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks + [{**tool_use(call.name), "input": json.loads(call.arguments)} for call in answer.made.tool_calls]
