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
# By these words coding agents know that they must shorten the conversation themselves.
_TOO_LONG = "prompt is too long: "


def error_body(fault: Fault, request_id: str = "") -> JsonObject:
    """request_id: of the request, where it has got one already."""
    kind = _TYPES.get(fault.kind, "invalid_request_error")
    too_long = fault.kind == "context" and "is empty" not in fault.message
    message = f"{_TOO_LONG if too_long else ''}{fault.message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id or new_request_id()}


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"
