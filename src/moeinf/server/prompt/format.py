"""The form that a request wants its answer in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeinf.sampling.constraint import AnswerFormat
from moeinf.server.errors import Refusal


def format_of(response_format: Mapping[str, Any] | None) -> AnswerFormat | None:
    """`format` of Model.pieces for OpenAI's response_format. Raises Refusal."""
    kind = "text" if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        raise Refusal(400, f"response_format cannot be {kind!r:.60}; it is text, json_object or json_schema")
    described = response_format.get("json_schema")
    return schema_of(described.get("schema") if isinstance(described, dict) else None, "response_format.json_schema")


def schema_of(schema: object, where: str) -> Mapping[str, Any]:
    """Raises Refusal for what is no JSON schema."""
    if not isinstance(schema, dict):
        raise Refusal(400, f"{where} must have a schema, which is an object")
    return schema
