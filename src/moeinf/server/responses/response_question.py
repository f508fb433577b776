"""What POST /v1/responses asks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from moeinf.server.ask import Ask, Thoughts, keep_alive_of
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.requests import background_asked
from moeinf.server.prompt.continuing import begun_answer
from moeinf.server.question import Question
from moeinf.server.responses.input_items import ADDED_TOOLS, items_of, messages_of, resolved
from moeinf.server.responses.kept_responses import KeptResponses
from moeinf.server.responses.offered_tools import OfferedTools, offered_tools
from moeinf.server.responses.output_items import OutputItems
from moeinf.server.responses.response_request import Reasoning, ResponseRequest, response_form, response_params
from moeinf.server.responses.response_writer import ResponseWriter
from moeinf.text.thinking_text import think_of_effort
from moeinf.types import JsonObject


@dataclass
class Shortened:
    """How much of a conversation is left out, whose request allows that: turns, each up to the next of the user's."""

    dropped: int = 0
    left: int = 0  # turns that could be dropped still

    def more(self) -> bool:
        """Has at least twice as many dropped, and says whether there was one."""
        self.dropped += min(self.left, max(1, self.dropped))
        return self.left > 0


def question_of(asked: ResponseRequest, kept: KeptResponses, shortened: Shortened) -> Question:
    """Raises Refusal, UsageError."""
    items = _conversation(asked, kept)
    offered = _offered(asked, items)
    reasoning = asked.reasoning or Reasoning()
    writer = ResponseWriter(
        _head(asked, offered),
        OutputItems(offered.origins, summarised=reasoning.summarised),
        (lambda response: None) if asked.store is False else partial(kept.put, items=[_listed(each) for each in items]),
    )
    ask = _ask(asked, _shortened(items, asked, shortened), offered)
    return Question(ask, writer, asked.stream, asked.user or asked.safety_identifier or "", background_asked(asked))


def ask_of(asked: ResponseRequest, kept: KeptResponses) -> Ask:
    """Raises Refusal, UsageError."""
    items = _conversation(asked, kept)
    return _ask(asked, items, _offered(asked, items))


def _conversation(asked: ResponseRequest, kept: KeptResponses) -> list[JsonObject]:
    """All items, those before this request too."""
    items = [*_before(asked.previous_response_id, kept), *resolved(items_of(asked.input), kept.item)]
    if not items and not asked.instructions:
        raise Refusal(400, "give input, or a previous_response_id")
    return items


def _before(previous: str | None, kept: KeptResponses) -> list[JsonObject]:
    """Raises Refusal, by which clients know that they have to send the whole conversation."""
    try:
        return kept.get(previous).conversation if previous else []
    except Refusal as missing:
        raise Refusal(400, f"previous_response_id: {missing}", "previous") from missing


def _offered(asked: ResponseRequest, items: Sequence[JsonObject]) -> OfferedTools:
    tools = list(asked.tools or ())
    for item in items:
        if item.get("type") == ADDED_TOOLS and isinstance(item.get("tools"), list):
            tools += item["tools"]
    return offered_tools(tools, asked.tool_choice, one_call=asked.parallel_tool_calls is False)


def _ask(asked: ResponseRequest, items: Sequence[JsonObject], offered: OfferedTools) -> Ask:
    messages, continues = begun_answer(messages_of(items, asked.instructions))
    effort = asked.reasoning.effort if asked.reasoning else None
    if effort is not None:
        think_of_effort(None, effort)  # refuses a word that is none
    return Ask(
        asked.model,
        messages,
        continues=continues,
        params=response_params(asked),
        thoughts=Thoughts(effort=effort),
        tools=offered.tools,
        format=response_form(asked),
        variables=asked.chat_template_kwargs or {},
        keep_alive=keep_alive_of(asked.keep_alive),
    )


def _shortened(items: Sequence[JsonObject], asked: ResponseRequest, shortened: Shortened) -> list[JsonObject]:
    """The items without the oldest turns, where the request lets them be dropped. What is no turn stays: what the
    developer says, and everything from the user's last message on."""
    users = [at for at, item in enumerate(items) if item.get("role") == "user"]
    if asked.truncation != "auto" or len(users) < 2:
        return list(items)
    shortened.dropped = min(shortened.dropped, len(users) - 1)
    shortened.left = len(users) - 1 - shortened.dropped
    first, end = users[0], users[shortened.dropped]
    return [
        *items[:first],
        *(item for item in items[first:end] if item.get("role") in ("system", "developer")),
        *items[end:],
    ]


def _listed(item: JsonObject) -> JsonObject:
    """An item as it is told of later: with an id, and with a text in parts."""
    text, kind = item.get("content"), "output_text" if item.get("role") == "assistant" else "input_text"
    parts = {"content": [{"type": kind, "text": text}]} if isinstance(text, str) else {}
    return {"id": f"item_{secrets.token_hex(16)}", **item, **parts}


def _head(asked: ResponseRequest, offered: OfferedTools) -> JsonObject:
    """The members of a response that are known before the answer, under which it is in progress."""
    reasoning, text = asked.reasoning or Reasoning(), asked.text
    return {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
        "store": asked.store is not False,
        "temperature": asked.temperature,
        "text": {"format": text.format if text and text.format else {"type": "text"}},
        "tool_choice": asked.tool_choice or "auto",
        "tools": msgspec.to_builtins(offered.told),
        "top_p": asked.top_p,
        "truncation": asked.truncation or "disabled",
        "usage": None,
        "user": asked.user,
    }
