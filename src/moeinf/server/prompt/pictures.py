"""Pictures as clients send them, in base64, made parts of messages. Nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from moeinf.server.http_errors import Refusal
from moeinf.types import JsonObject

MOST_PICTURES: Final = 32  # of one message
_MOST_HEAD = 1024  # characters of a data: URL before its comma
_SPACE = re.compile(rb"[ \t\r\n\f]+")  # which encoders put between lines of base64
_BY_NAME = bytes.maketrans(b"-_", b"+/")  # the letters of base64 that is safe in names of files


def picture_of(data: object, where: str) -> JsonObject:
    """The part of a message that a picture in base64 is, or in a data: URL. Raises Refusal, which names the place."""
    if not isinstance(data, str) or not data:
        raise Refusal(400, f"{where}: an image must be the bytes of a PNG or JPEG file in base64")
    is_url = data[:64].lstrip()[:5].lower() == "data:"
    found = _of_data_url(data.strip(), where) if is_url else _from_base64(data.encode(errors="replace"), where)
    return {"type": "image", "image": found, "name": f"the image of {where}"}


def picture_at(url: object, where: str) -> JsonObject:
    """The same of a data: URL, or of an object that has it. Raises Refusal, also for every other URL."""
    found = url.get("url") if isinstance(url, dict) else url
    if not isinstance(found, str) or found[:64].lstrip()[:5].lower() != "data:":
        raise Refusal(
            400,
            f"{where}: image_url must be a data: URL (data:image/png;base64,...): nothing is fetched from a network",
        )
    return picture_of(found, where)


def _of_data_url(url: str, where: str) -> bytes:
    """The bytes that a data: URL holds (RFC 2397): a type and parameters, none of which need be there, and the data.

    What is in a picture shows when it is decoded, whatever its type says.
    """
    head, comma, data = url[:_MOST_HEAD].partition(",")
    if not comma:
        raise Refusal(400, f"{where}: a data: URL must have a comma before its data")
    raw = unquote_to_bytes(data + url[_MOST_HEAD:])
    is_base64 = unquote(head).rpartition(";")[2].strip().lower() == "base64"
    return _from_base64(raw, where) if is_base64 else raw


def _from_base64(data: bytes, where: str) -> bytes:
    """Of base64 as encoders write it: with line ends, with the letters for names of files, with or without padding."""
    plain = _SPACE.sub(b"", data).translate(_BY_NAME).rstrip(b"=")
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"{where}: an image is no base64 ({error})") from error


def joined(parts: Sequence[JsonObject], where: str) -> str | list[JsonObject]:
    """The content of a message: text alone where it has no picture, else the parts. Raises Refusal for too many."""
    pictures = sum(part["type"] == "image" for part in parts)
    if not pictures:
        return "\n".join(part["text"] for part in parts)
    if pictures > MOST_PICTURES:
        raise Refusal(400, f"{where}: {pictures} images are more than {MOST_PICTURES}; send fewer")
    return list(parts)
