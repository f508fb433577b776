"""Messages whose content is a list of parts, pictures among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeinf.errors import UsageError
from moeinf.text.tool_calls.told.result_order import in_order_of_calls
from moeinf.types import Json, JsonMapping, Message


@dataclass(frozen=True, slots=True)
class GivenPicture:
    """As a message has it: {"type": "image", "image": bytes of a PNG or JPEG}, and "name", which errors say."""

    name: str
    data: bytes


def without_pictures(messages: Sequence[Message]) -> tuple[list[Message], list[GivenPicture]]:
    """The messages as a chat template takes them, with {"type": "image"} for each picture; and the pictures, in order.

    Texts without a picture are one text, a line each, as the server makes of them: few templates read parts.
    Raises UsageError for a part that is neither text nor a picture.
    """
    found: list[GivenPicture] = []

    def plain(part: Json) -> JsonMapping:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if kind == "image" and isinstance(part.get("image"), bytes):
            found.append(GivenPicture(str(part.get("name") or f"picture {len(found) + 1}"), part["image"]))
            return {"type": "image"}
        raise UsageError(
            'a part of a message is {"type": "text", "text": ...} or {"type": "image", "image": bytes of a PNG or JPEG}'
        )

    made: list[Message] = []
    for message in in_order_of_calls(messages):  # in which a template then meets the pictures
        content = message.get("content")
        if isinstance(content, list | tuple):
            parts = list(map(plain, content))
            seen = any(part["type"] == "image" for part in parts)
            message = {**message, "content": parts if seen else "\n".join(str(part["text"]) for part in parts)}
        made.append(message)
    return made, found


def text_alone(messages: Sequence[Message]) -> str:
    """The texts of all messages, one below the other."""
    return "\n".join(
        "".join(str(part.get("text", "")) for part in content) if isinstance(content, list | tuple) else str(content)
        for content in (message["content"] for message in messages)
    )
