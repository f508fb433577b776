"""Errors as ollama's clients read them."""

from __future__ import annotations

import re
from typing import Any

from moeinf.server.http_errors import Fault


def error_body(fault: Fault) -> dict[str, Any]:
    """One line. Of a model that is not there it has no remedy: some clients compare the whole of it.

    A context that is too short is marked, so that `moeinf run` can drop what was said first.
    """
    missing = re.match(r"model '.*' not found", fault.message) if fault.kind == "not_found" else None
    body: dict[str, Any] = {"error": missing[0] if missing else fault.message}
    return body | ({"moeinf": {"kind": fault.kind}} if fault.kind == "context" else {})
