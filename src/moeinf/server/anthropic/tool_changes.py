"""Tools that come and go within a conversation, as coding agents tell of them in blocks of messages.

A chat template tells of all tools at once, in front of the chat: of those that are offered where the chat ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.server.http_errors import Refusal
from moeinf.types import JsonMapping

Given = JsonMapping
_ADDED, _REMOVED = "tool_addition", "tool_removal"


def after_changes(tools: Sequence[Given], messages: Sequence[Given]) -> list[Given]:
    """The tools that are offered at the end of a chat. Raises Refusal, which names the message."""
    known = {str(tool.get("name")): tool for tool in tools}
    removed: set[str] = set()
    for at, message in enumerate(messages):
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            if not is_change(block):
                continue
            name = _changed(block, known, f"messages[{at}]")
            (removed.discard if block["type"] == _ADDED else removed.add)(name)
    declared = {str(tool.get("name")) for tool in tools}
    defined = [tool for name, tool in known.items() if name not in declared]
    return [tool for tool in (*tools, *defined) if str(tool.get("name")) not in removed]


def is_change(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in (_ADDED, _REMOVED)


def _changed(block: Given, known: dict[str, Given], where: str) -> str:
    """The name of the tool that a block is about, which may define it."""
    tool = block.get("tool")
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and kind == "tool_definition" and isinstance(tool.get("definition"), dict):
        name = str(tool["definition"].get("name"))
        known[name] = tool["definition"]
        return name
    if not isinstance(tool, dict) or kind != "tool_reference":
        raise Refusal(400, f"{where}: a {block['type']} must have a tool of the request, not one of type {kind!r:.60}")
    if tool.get("name") not in list(known):
        raise Refusal(400, f"{where}: a {block['type']} names {tool.get('name')!r:.60}, which is none of the tools")
    return str(tool["name"])
