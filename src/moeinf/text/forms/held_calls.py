"""Answers that are free text until they begin a call of a tool, which is then held to the JSON of the tool's schema.

For models that are told of tools by moeinf, and not by their template (see generic_calls.py): they were seldom trained
to write calls, and leave out a brace or a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import JsonMapping, JsonObject

_MOST_TOOLS = 128
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # without what could be a control token


def call_forms(tools: Sequence[JsonMapping], syntax: Syntax) -> list[dict[str, str]]:
    """The form of a call of each tool (see Grammars.constrain); [] where one has a name that cannot be held."""
    functions = [tool["function"] for tool in tools]
    sound = len(functions) <= _MOST_TOOLS and all(TOOL_NAME.fullmatch(function["name"]) for function in functions)
    if syntax.frame is None or not sound:
        return []
    forms = []
    for function in functions:
        prefix, suffix = syntax.frame(function["name"], "")
        forms.append({"prefix": prefix, "schema": json.dumps(arguments_schema(function)), "suffix": suffix})
    return forms


def arguments_schema(function: JsonMapping) -> JsonObject:
    """That of the arguments of a function, which are an object whatever is said of them."""
    return {**(function.get("parameters") or {}), "type": "object"}


def any_object(form: Mapping[str, str]) -> dict[str, str]:
    """The form for arguments of whatever names."""
    return {**form, "schema": '{"type": "object"}'}


def rules_of_calls(lead: str, lead_begins: bytes, mark: str, token: str | None, call: str) -> list[str]:
    """Rules of Lark for text in which `call` follows each mark.

    lead: what comes before the text. lead_begins: its letters, where it may be left out. mark: its letters, and token:
    an expression for it, where it is a token.
    """
    unmarked = f"~/(?s:.*){escaped(mark)}(?s:.*)/"
    text = "/(?s:.*)/" if not lead_begins else f"/(?s:.*)/ & ~/{escaped(lead_begins.decode())}(?s:.*)/"
    return [
        f"start: {lead} (FIRST | opened ({call}) (again ({call}))* FREE)",
        f"opened: FIRST {token}" if token else f"opened[suffix={json.dumps(mark)}]: {text}",
        f"again: FREE {token}" if token else f"again[suffix={json.dumps(mark)}]: /(?s:.*)/",
        f"FIRST: {text} & {unmarked}",
        f"FREE: /(?s:.*)/ & {unmarked}",
    ]


def escaped(text: str) -> str:
    """Within a regular expression of Lark."""
    return re.escape(text).replace("/", "\\/")
