"""Errors as Anthropic's clients read them."""

from __future__ import annotations

import secrets

from moeinf.server.http_errors import Fault
from moeinf.types import JsonObject

_TYPES = {
    "not_found": "not_found_error",
    "route": "not_found_error",
    "key": "authentication_error",
    "forbidden": "permission_error",
    "size": "request_too_large",
    "busy": "overloaded_error",
    "server": "api_error",
}


def error_body(fault: Fault, request_id: str = "") -> JsonObject:
    """request_id: of the request, where it has got one already.

    A prompt that is too long is refused in Anthropic's words: by them coding agents know that they must shorten the
    conversation themselves, and by how much.
    """
    kind = _TYPES.get(fault.kind, "invalid_request_error")
    message = fault.message
    if (too_long := fault.too_long) is not None:
        message = f"prompt is too long: {too_long.num_tokens} tokens > {too_long.context} maximum: {too_long.remedy}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id or new_request_id()}


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"
