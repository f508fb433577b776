"""Calls as forms of an answer: the text around the arguments, and the schema that these have to be valid for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moeinf.text.tool_calls.syntax import Syntax

_MOST_BYTES = 64 << 10  # of schemas: what compiles in a moment


def framed_calls(syntax: Syntax, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The forms (see grammar.py) of a call of each tool.

    [] where the syntax has no JSON object for arguments, and for more schemas than are quickly compiled.
    """
    if syntax.frame is None:
        return []
    forms = []
    for function in (tool["function"] for tool in tools):
        prefix, suffix = syntax.frame(str(function["name"]))
        schema = json.dumps({"type": "object"} | dict(function.get("parameters") or {}))
        forms.append({"prefix": prefix, "schema": schema, "suffix": suffix})
    return forms if sum(len(form["schema"]) for form in forms) <= _MOST_BYTES else []
