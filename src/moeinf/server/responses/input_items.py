"""The items of a conversation as the Responses API has them, made the plain messages that chat templates read.

What the assistant thinks, says and calls between two turns of others are items of their own there, and one message
here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from moeinf.server.body import check_size
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.content import plain_content, role_of
from moeinf.server.prompt.tool_choice import flat_name
from moeinf.types import Json, JsonMapping, JsonObject, Message

ADDED_TOOLS = "additional_tools"  # an item that offers more of them
REFERENCE = "item_reference"


def items_of(given: str | list[Json] | None) -> list[JsonObject]:
    """The items of a request's input, without their nulls. Raises Refusal."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [_item(item, f"input[{at}]") for at, item in enumerate(given)]


def _item(item: Json, where: str) -> JsonObject:
    if not isinstance(item, dict):
        raise Refusal(400, f"{where} must be an object, such as a message")
    plain = {name: value for name, value in item.items() if value is not None}
    return plain if "type" in plain or "role" not in plain else {"type": "message", **plain}


def resolved(items: Iterable[JsonObject], kept: Callable[[str], JsonObject | None]) -> list[JsonObject]:
    """The items, with those in the place of references to them. kept: an item by its id. Raises Refusal."""
    found = []
    for at, item in enumerate(items):
        if item.get("type") == REFERENCE:
            other = kept(str(item.get("id")))
            if other is None:
                missing = f"input[{at}]: item {str(item.get('id'))!r:.80} is not kept here; send it whole"
                raise Refusal(404, missing, "kept")
            item = other
        found.append(item)
    return found


def messages_of(items: Iterable[JsonObject], instructions: str | None) -> list[Message]:
    """The chat in the form of chat completions. Raises Refusal, which names the item."""
    chat: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for at, item in enumerate(items):
        kind, where = item.get("type"), f"input[{at}]"
        if kind == ADDED_TOOLS:
            continue
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise Refusal(400, f"{where}: an item of type {kind!r:.60} means nothing to a model here; leave it out")
        _add(chat, read(item, where))
    return _with_one_system(chat)


def _add(chat: list[Message], message: JsonObject) -> None:
    """Adds a message, or what the assistant's last one lacks still."""
    last = chat[-1] if chat else {"role": "nobody"}
    joins = message["role"] == last["role"] == "assistant" and not (
        last.get("tool_calls") if message.get("reasoning_content") or message["content"] else False
    )
    if not joins or (message["content"] and last["content"]):
        chat.append(message)
        return
    calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
    thought = "\n".join(filter(None, (last.get("reasoning_content"), message.get("reasoning_content"))))
    chat[-1] = {
        "role": "assistant",
        "content": last["content"] or message["content"],
        **({"reasoning_content": thought, "thinking": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _with_one_system(chat: list[Message]) -> list[Message]:
    """The chat with its first system messages as one, since many templates read no second one."""
    texts = []
    for message in chat:
        if message["role"] != "system" or not isinstance(message["content"], str):
            break
        texts.append(message["content"])
    return [{"role": "system", "content": "\n\n".join(texts)}, *chat[len(texts) :]] if len(texts) > 1 else chat


def _message(item: JsonMapping, where: str) -> JsonObject:
    role = role_of(item.get("role"), where)
    if role == "tool":
        raise Refusal(400, f"{where}: the result of a tool is an item of type function_call_output")
    return {"role": role, "content": plain_content(item.get("content"), where)}


def _thought(item: JsonMapping, where: str) -> JsonObject:
    """Its own words, or else the summary of them; an encrypted one is nobody's to read here."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Refusal(400, f"{where}: content and summary of an item of type reasoning are lists of parts")
    text = "\n".join(str(part.get("text") or "") for part in parts)
    return {"role": "assistant", "content": "", **({"reasoning_content": text, "thinking": text} if text else {})}


def _call(item: JsonMapping, where: str) -> JsonObject:
    arguments = _text(item, "arguments", where)
    check_size(arguments.encode(), f"{where}.arguments")
    return _called(item, arguments, where)


def _custom_call(item: JsonMapping, where: str) -> JsonObject:
    return _called(item, json.dumps({"input": _text(item, "input", where)}, ensure_ascii=False), where)


def _called(item: JsonMapping, arguments: str, where: str) -> JsonObject:
    name = flat_name(item.get("namespace"), _text(item, "name", where))
    call = {"id": _text(item, "call_id", where), "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(item: JsonMapping, where: str) -> JsonObject:
    output = item.get("output")
    if output is None:
        raise Refusal(400, f"{where}: an item of type {item['type']} must have output")
    return {"role": "tool", "tool_call_id": _text(item, "call_id", where), "content": plain_content(output, where)}


def _text(item: JsonMapping, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Refusal(400, f"{where}: an item of type {item.get('type')} must have the text {name}")
    return value


_READERS: dict[str, Callable[[JsonMapping, str], JsonObject]] = {
    "message": _message,
    "reasoning": _thought,
    "function_call": _call,
    "custom_tool_call": _custom_call,
    "function_call_output": _result,
    "custom_tool_call_output": _result,
}
