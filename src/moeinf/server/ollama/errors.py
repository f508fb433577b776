"""Errors as ollama's clients read them."""

from __future__ import annotations

import re

from moeinf.server.http_errors import Fault
from moeinf.types import JsonObject


def error_body(fault: Fault) -> JsonObject:
    """One line. Of a model that is not there it has no remedy: some clients compare the whole of it.

    A context that is too short is marked, so that `moeinf run` can drop what was said first.
    """
    missing = re.match(r"model '.*' not found", fault.message) if fault.kind == "not_found" else None
    body: JsonObject = {"error": missing[0] if missing else fault.message}
    return body | ({"moeinf": {"kind": fault.kind}} if fault.kind == "context" else {})
