"""tool_choice, in the forms of chat completions and of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from moeinf.server.ask import Tools
from moeinf.server.http_errors import Refusal
from moeinf.types import Json, JsonMapping, Tool

# Tools of OpenAI's that agents offer unasked with every request: they are left out, as a model need not call any.
LEFT_OUT: Final = ("web_search", "web_search_preview", "image_generation", "tool_search")
_CHOICES: Final = "auto, none, required, a function, a custom tool or allowed_tools"


def flat_name(namespace: Json, name: str) -> str:
    """What the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


def chosen_tools(tools: Sequence[Tool], choice: str | JsonMapping | None, *, one_call: bool) -> Tools:
    """Those that tool_choice leaves, and the one that it demands. Raises Refusal."""
    if choice == "none":
        return Tools((), None, one_call)
    if choice in (None, "auto"):
        return Tools(tools, None, one_call)
    if choice == "required":
        return Tools(tools, "", one_call)
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom"):
        return Tools(tools, _named(choice), one_call)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        given = inner if isinstance(inner, Mapping) else choice  # of chat completions, and of the Responses API
        return _allowed(tools, given.get("tools"), given.get("mode"), one_call=one_call)
    raise Refusal(400, f"tool_choice cannot be {choice!r:.80}; it is {_CHOICES}")


def _allowed(tools: Sequence[Tool], allowed: Json, mode: Json, *, one_call: bool) -> Tools:
    """The tools of which one may be called, or must be. Raises Refusal."""
    if mode not in (None, "auto", "required"):
        raise Refusal(400, f"the mode of allowed_tools cannot be {mode!r:.60}; it is auto or required")
    if not isinstance(allowed, list) or not all(isinstance(each, dict) for each in allowed):
        raise Refusal(400, "allowed_tools must have tools, a list of objects with names")
    names = {_named(each) for each in allowed if not str(each.get("type")).startswith(LEFT_OUT)}
    if missing := sorted(names - {tool["function"]["name"] for tool in tools}):
        raise Refusal(400, f"allowed_tools names {missing[0]!r:.80}, which is none of the tools")
    kept = tuple(tool for tool in tools if tool["function"]["name"] in names)
    return Tools(kept, "" if mode == "required" else None, one_call)


def _named(choice: JsonMapping) -> str:
    """The name that the model knows a chosen tool by. Raises Refusal."""
    inner = choice.get("function")
    name = choice.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
    if not isinstance(name, str) or not name:
        raise Refusal(400, "tool_choice must have the name of the tool")
    return flat_name(choice.get("namespace"), name)
