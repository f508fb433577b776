"""Chats with tool calls as clients send them, in the form that chat templates read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from moeinf.errors import TextError
from moeinf.text.templates.traced import Traced
from moeinf.text.tool_calls.syntax import MessageCall, Syntax
from moeinf.text.tool_calls.told.history import ChatCalls
from moeinf.text.tool_calls.told.result_order import in_order_of_calls
from moeinf.types import JsonMapping, JsonObject, Message

_THOUGHT_NAMES = ("reasoning_content", "thinking", "reasoning")  # of templates and clients; the first that holds text
_ROLES = {"developer": "system", "function": "tool"}
_ONE_CALL_A_TURN = "tool_calls[0]"  # in templates that look at no other call of a turn: gpt-oss


def in_templates_form(messages: Sequence[Message], syntax: Syntax | None) -> list[JsonObject]:
    """Messages in OpenAI's form as templates read them. Raises TextError for calls that are none.

    developer is system; function_call and the role function, OpenAI's old form, are tool_calls and tool; content that
    is null is ""; arguments of calls are objects; calls and results have their ids in the form of the syntax, and no
    id comes twice; results know their tool's name, and have the order of their calls; thoughts have all names that
    templates read.
    """
    calls = ChatCalls(syntax)
    made = []
    for message in in_order_of_calls(messages):
        new = {**message, "content": "" if message.get("content") is None else message["content"]}
        if new.get("role") in _ROLES:
            new["role"] = _ROLES[new["role"]]
        one_call = new.pop("function_call", None)
        if given := new.pop("tool_calls", None) or ([{"function": one_call}] if one_call else None):
            new["tool_calls"] = calls.turn(given)
        if new.get("role") == "tool":
            new = calls.answered(new)
        made.append(_with_thoughts(new))
    return made


def _with_thoughts(message: JsonObject) -> JsonObject:
    thoughts = [message.pop(name, None) for name in _THOUGHT_NAMES]
    thought = next((text for text in thoughts if isinstance(text, str) and text), None)
    return message if thought is None else message | dict.fromkeys(_THOUGHT_NAMES, thought)


def checked(tools: Sequence[JsonMapping]) -> list[JsonObject]:
    """Tools as given, their members in the same order, but for null. Raises TextError for what is no function.

    Templates that write them whole do so as in training.
    """
    made = []
    for tool in tools:
        function = tool.get("function")
        if not (isinstance(function, Mapping) and isinstance(function.get("name"), str)):
            raise TextError('a tool of this request is not of the form {"type": "function", "function": {"name": ...}}')
        given = {key: value for key, value in function.items() if value is not None}
        first = {} if "type" in tool else {"type": "function"}
        made.append({**first, **tool, "type": "function", "function": given})
    return made


def described(tools: Sequence[JsonMapping]) -> list[JsonObject]:
    """The same with the members that some templates and writers read unasked."""
    known = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return [{**tool, "function": {"name": tool["function"]["name"], **known, **tool["function"]}} for tool in tools]


def fitted(messages: Sequence[Message], template: str, syntax: Syntax | None) -> list[Message]:
    """Calls in the way that the text of a template shows it reads them."""
    if syntax is not None and syntax.write_result is not None:
        return _written_out(messages, syntax)
    if not any(message.get("tool_calls") for message in messages):
        return list(messages)
    if _ONE_CALL_A_TURN in template:
        return _one_call_a_turn(messages)
    return list(messages) if "tool_calls" in template else _written_out(messages, syntax)


def _one_call_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Turns with several calls made several turns, each with its result behind it.

    Thoughts and text of such a turn become one, as the template refuses a call with both.
    """
    results: dict[object, list[Message]] = {}
    for message in messages:
        if message.get("role") == "tool":
            results.setdefault(message.get("tool_call_id"), []).append(message)
    moved: set[str] = set()
    made: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") or []
        if message.get("tool_call_id") in moved:
            continue
        if not calls:
            made.append(message)
        for at, call in enumerate(calls):
            texts = (message.get("thinking"), message["content"]) if at == 0 else ()
            said = "\n\n".join(text for text in texts if text)
            made.append({"role": message["role"], "content": "", "tool_calls": [call]} | _thought(said))
            if len(calls) > 1:
                made += results.get(call["id"], [])
                moved.add(call["id"])
    return made


def _thought(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "thinking": text} if text else {}


def _written_out(messages: Sequence[Message], syntax: Syntax | None) -> list[Message]:
    """Calls as text, for a template that leaves them out: as the model writes them, else as a user reads them."""
    if syntax is None or syntax.write is None:
        return with_calls_written(messages)
    written = with_calls_written(messages, syntax.write)
    return [_result(m, syntax) if m.get("role") == "tool" else m for m in written]


def _result(message: Message, syntax: Syntax) -> Message:
    content = message["content"]
    if syntax.write_result is not None and isinstance(content, str):
        content = syntax.write_result(content)
    return {**message, "role": syntax.result_role, "content": content}


def _readable(calls: Sequence[MessageCall]) -> str:
    functions = [call["function"] for call in calls]
    return "\n".join(f"{f['name']}({json.dumps(f['arguments'], ensure_ascii=False)})" for f in functions)


def with_calls_written(
    messages: Sequence[Message], write: Callable[[Sequence[MessageCall]], str] = _readable
) -> list[Message]:
    """Messages whose calls are text."""
    made: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            content = Traced("\n").join(text for text in (message["content"], write(calls)) if text)
            message = {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
        made.append(message)
    return made


def told_of(
    tools: Sequence[JsonMapping], messages: Sequence[Message], template: str, syntax: Syntax | None
) -> list[Message]:
    """Messages whose system message tells of the tools, where the text of a template shows that it does not."""
    if syntax is None or syntax.describe is None:
        return list(messages)
    if syntax.write_result is None and re.search(r"\btools\b", template):
        return list(messages)
    told = syntax.describe(tools, template)
    first = messages[0] if messages else {}
    if first.get("role") != "system":
        return [{"role": "system", "content": told}, *messages]
    return [{**first, "content": Traced("\n\n").join((first["content"], told))}, *messages[1:]]
