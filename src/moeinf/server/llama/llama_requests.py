"""What clients of llama.cpp's server send to its small routes. `model` may be left out where one is meant anyway."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from moeinf.server.body_fields import Fields, log_unknown
from moeinf.server.openai.requests import ChatRequest

_NAMED: Final = Fields({}, {}, log_unknown)


class TokenizeRequest(msgspec.Struct, kw_only=True):
    published: ClassVar[Fields] = _NAMED
    content: str
    model: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    published: ClassVar[Fields] = _NAMED
    tokens: list[int]
    model: str = ""


class TemplateRequest(ChatRequest, kw_only=True):
    model: str = ""
