"""Messages as clients send them, made plain: text for the chat template, and nothing that a model here cannot read."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.pictures import joined, picture_at
from moeinf.types import JsonObject

_TEXT_KINDS = ("text", "input_text", "output_text")
_THOUGHT_KINDS = ("thinking", "reasoning", "redacted_thinking")  # the last of which nobody here can read


def plain_content(content: object, where: str) -> str | list[JsonObject]:
    """The text of a content that is a string, null, or a list of parts; the parts, where some are pictures.

    Raises Refusal for audio and the like.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(400, f"{where}: content must be text or a list of parts")
    parts = list[JsonObject]()
    for part in content:
        kind = part.get("type") or "text" if isinstance(part, dict) else None
        if kind == "refusal":
            parts.append({"type": "text", "text": str(part.get("refusal", ""))})
        elif kind in ("image_url", "input_image"):
            parts.append(picture_at(part.get("image_url"), where))
        elif kind not in _TEXT_KINDS:
            raise Refusal(
                400, f"{where}: models here read text and images; a part of type {kind!r:.60} must be left out"
            )
        elif not isinstance(part.get("text"), str):
            raise Refusal(400, f"{where}: a part of type {kind!r:.60} has no text")
        else:
            parts.append({"type": "text", "text": part["text"]})
    return joined(parts, where)


def thoughts_apart(content: object, where: str) -> tuple[object, str]:
    """The content of an answer without the parts that are thoughts, as some clients send them, and their text.

    Raises Refusal.
    """
    if not isinstance(content, list):
        return content, ""
    others, texts = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _THOUGHT_KINDS:
            others.append(part)
        elif kind != _THOUGHT_KINDS[-1]:
            texts.append(_thought(part, where))
    return others, "\n".join(filter(None, texts))


def _thought(part: JsonObject, where: str) -> str:
    """Its text, which stands under the name of its type or as text, and may be a list of parts again."""
    found = part.get(part["type"], part.get("text"))
    content = plain_content(found, where)
    if found is None or not isinstance(content, str):
        raise Refusal(400, f"{where}: a part of type {part['type']!r:.60} has no text")
    return content


def stops(stop: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Stop strings, given as one or several."""
    return None if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def role_of(given: object, where: str) -> str:
    """The role in lower case; `developer` is OpenAI's newer word for system, `function` its old one for tool.

    Raises Refusal.
    """
    role = str(given or "").lower()
    role = {"developer": "system", "function": "tool"}.get(role, role)
    if role not in ("system", "user", "assistant", "tool"):
        raise Refusal(400, f"{where}: role {given!r:.60} is none of system, user, assistant, tool")
    return role
