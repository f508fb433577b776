"""Bodies of requests read into types: what every API does alike with JSON before it looks at a field."""

from __future__ import annotations

import codecs
import math
import re
from functools import cache
from types import UnionType
from typing import TypeVar, Union, get_args, get_origin

import msgspec

from moeinf.server.body_fields import Fields
from moeinf.server.http_errors import Refusal
from moeinf.types import Json

T = TypeVar("T")
# Of JSON, values and bytes that are in no text: more would keep Python's lock from the event loop for too long.
MOST_VALUES, MOST_BARE_BYTES = 200_000, 2 << 20
_READ_TWICE = 64 << 10  # bytes: a larger body is not read again for the name of a field
# An escape within a string: a whole pair of surrogates, one without its other half, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def body_of(body: bytes, kind: type[T]) -> T:
    """A body's JSON as this type. Raises Refusal, which says what is wrong with which field.

    A field of a struct that is null counts as absent, where it may be. What is no character, half a surrogate pair or
    bytes that are no UTF-8, becomes U+FFFD, as with ollama: it comes from answers that were cut, and a conversation
    must be able to go on.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body:
        raise Refusal(400, "missing request body")
    check_size(body, "the body")
    try:
        return msgspec.convert(checked(_decoded(body, kind), kind), kind)
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal(400, "the body's JSON is nested too deeply") from None


def check_size(body: bytes, where: str) -> None:
    """Raises Refusal for JSON that is more than Python reads quickly. Texts may be long: they are not looked into."""
    if len(body) <= MOST_BARE_BYTES and _opened(body) < MOST_VALUES:
        return
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    most_quotes = 4 * MOST_VALUES  # of a name and a text for each
    if plain.count(b'"') <= most_quotes:
        bare = b"".join(plain.split(b'"')[::2])
        if len(bare) > MOST_BARE_BYTES:
            raise Refusal(413, f"the JSON of {where} has more than {MOST_BARE_BYTES >> 20} MiB beside texts; send less")
        if _opened(bare) < MOST_VALUES:
            return
    raise Refusal(413, f"the JSON of {where} has more than {MOST_VALUES:,} values; send fewer")


def _opened(text: bytes) -> int:
    """How many marks are in a text of which JSON has one before each value."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _number(written: str) -> float:
    """In Python, where other threads get its lock between two numbers. msgspec takes 20 us for some, and keeps it."""
    if math.isinf(number := float(written)):
        raise ValueError("Number out of range")
    return number


_json_of = msgspec.json.Decoder(float_hook=_number).decode


def _decoded(body: bytes, kind: type) -> Json:
    try:
        return _json_of(body)
    except msgspec.ValidationError:  # a number that is out of range: the type knows the name of its field
        if len(body) <= _READ_TWICE:
            msgspec.json.decode(body, type=kind)
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):  # versions of msgspec differ in what bytes of no UTF-8 raise
        if _is_utf_8(body) and rb"\ud" not in body.lower():
            raise  # of what is no JSON for another reason
        mended = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], body)
        return _json_of(mended.decode("utf-8", "replace"))


def _is_utf_8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def checked(value: Json, kind: object, where: str = "") -> Json:
    """A value of JSON without the nulls among the fields of a struct, and of the structs in it; others stay.

    Raises Refusal for a field that the struct has not, by the rules that it names as `published`.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)  # some languages write every number so
    for each in kinds:
        if isinstance(value, list) and get_origin(each) is list:
            return [checked(item, get_args(each)[0], f"{where[:-1]}[{at}].") for at, item in enumerate(value)]
        if isinstance(value, dict) and isinstance(each, type) and issubclass(each, msgspec.Struct):
            given = {name: item for name, item in value.items() if item is not None}
            of_fields = _fields(each)
            rules: Fields | None = getattr(each, "published", None)
            if rules is not None:
                rules.check(given, of_fields, where)
            return {name: checked(item, of_fields.get(name), f"{where}{name}.") for name, item in given.items()}
    return value


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, object]:
    """The types of its fields, by their names in JSON, which take long to find out."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
