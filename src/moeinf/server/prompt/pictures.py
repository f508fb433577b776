"""Pictures as clients send them, in base64, made parts of messages. Nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

from moeinf.server.errors import Refusal

MOST_PICTURES: Final = 32  # of one message
_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,20};base64,", re.IGNORECASE)


def picture_of(data: object, where: str) -> dict[str, Any]:
    """The part of a message that a picture in base64 is. Raises Refusal, which names the place."""
    if not isinstance(data, str) or not data:
        raise Refusal(400, f"{where}: an image must be the bytes of a PNG or JPEG file in base64")
    try:
        return {"type": "image", "image": base64.b64decode(data, validate=True), "name": f"the image of {where}"}
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"{where}: an image is no base64 ({error})") from error


def picture_at(url: object, where: str) -> dict[str, Any]:
    """The same of a data: URL, or of an object that has it. Raises Refusal, also for every other URL."""
    found = url.get("url") if isinstance(url, dict) else url
    head = _DATA_URL.match(found[:64]) if isinstance(found, str) else None
    if not isinstance(found, str) or head is None:
        raise Refusal(
            400,
            f"{where}: image_url must be a data: URL (data:image/png;base64,...): nothing is fetched from a network",
        )
    return picture_of(found[head.end() :], where)


def joined(parts: Sequence[dict[str, Any]], where: str) -> str | list[dict[str, Any]]:
    """The content of a message: text alone where it has no picture, else the parts. Raises Refusal for too many."""
    pictures = sum(part["type"] == "image" for part in parts)
    if not pictures:
        return "\n".join(part["text"] for part in parts)
    if pictures > MOST_PICTURES:
        raise Refusal(400, f"{where}: {pictures} images are more than {MOST_PICTURES}; send fewer")
    return list(parts)
