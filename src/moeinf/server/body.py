"""Bodies of requests read into types: what every API does alike with JSON before it looks at a field."""

from __future__ import annotations

import codecs
import re
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from moeinf.server.errors import Refusal
from moeinf.server.fields import Fields

T = TypeVar("T")
MOST_VALUES = 200_000  # of JSON: reading more would keep Python's lock from the event loop for too long
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
    """Raises Refusal for JSON of more than MOST_VALUES values. Texts may be long: they are not looked into."""
    if _opened(body) < MOST_VALUES:
        return
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    most_quotes = 4 * MOST_VALUES  # of a name and a text for each
    if plain.count(b'"') > most_quotes or _opened(b"".join(plain.split(b'"')[::2])) >= MOST_VALUES:
        raise Refusal(413, f"the JSON of {where} has more than {MOST_VALUES:,} values; send fewer")


def _opened(text: bytes) -> int:
    """How many marks are in a text of which JSON has one before each value."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _decoded(body: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:  # a number that is out of range: the type knows the name of its field
        msgspec.json.decode(body, type=kind)
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not isinstance(error, UnicodeDecodeError) and rb"\ud" not in body.lower():
            raise  # of what is no JSON for another reason
        mended = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], body)
        return msgspec.json.decode(mended.decode("utf-8", "replace"))


def checked(value: Any, kind: Any, where: str = "") -> Any:
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
def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of its fields, by their names in JSON, which take long to find out."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
