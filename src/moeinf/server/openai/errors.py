"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from moeinf.server.http_errors import Fault
from moeinf.types import JsonObject

_TYPES = {
    "not_found": "not_found_error",
    "key": "authentication_error",
    "forbidden": "permission_error",
    "busy": "unavailable_error",
    "server": "api_error",
}
_CODES = {
    "context": "context_length_exceeded",
    "not_found": "model_not_found",
    "route": "unknown_url",
    "previous": "previous_response_not_found",
    "method": "method_not_supported",
}


def error_body(fault: Fault) -> JsonObject:
    code = _CODES.get(fault.kind)
    kind = _TYPES.get(fault.kind, "invalid_request_error")
    return {"error": {"message": message_of(fault), "type": kind, "param": None, "code": code}}


def message_of(fault: Fault) -> str:
    """A prompt that is too long is refused in OpenAI's words, by which clients know it, with the remedy behind."""
    if (too_long := fault.too_long) is None:
        return fault.message
    return (
        f"This model's maximum context length is {too_long.context} tokens. However, your messages resulted in "
        f"{too_long.num_tokens} tokens: {too_long.remedy}"
    )
