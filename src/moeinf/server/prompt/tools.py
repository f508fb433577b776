"""Tools that a request gives the model, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterable

from moeinf.server.http_errors import Refusal
from moeinf.types import JsonMapping, Tool


def checked_tools(tools: Iterable[JsonMapping] | None) -> tuple[Tool, ...]:
    """The tools as chat templates take them. Raises Refusal for what is no function with a name."""
    return tuple(_checked(tool, f"tools[{at}]") for at, tool in enumerate(tools or ()))


def _checked(tool: JsonMapping, where: str) -> Tool:
    kind, function = tool.get("type") or "function", tool.get("function")
    if kind != "function":
        raise Refusal(400, f"{where}: a tool of type {kind!r:.60} cannot be called; give functions")
    if function is None and tool.get("name"):  # as the Responses API has it
        raise Refusal(400, f"{where}: put name, description and parameters into an object `function`")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Refusal(400, f"{where}: a function must have a name")
    if not isinstance(function.get("parameters") or {}, dict):
        raise Refusal(400, f"{where}: parameters must be a JSON schema")
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
