"""Answers that must be a call of a tool: held to the JSON of its arguments, within what the model's syntax needs.

Where arguments are no JSON only the beginning of a call can be held, and so not the tool that is called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeinf.engine.stored.facts import StoredFacts
from moeinf.sampling.constraint import AnswerFormat, FramedJson
from moeinf.server.http_errors import Refusal
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.types import Tool

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # without what could be a control token


def forced_calls(facts: StoredFacts, tools: Sequence[Tool], name: str | None) -> AnswerFormat:
    """`format` of Model.pieces for a call of one of these tools, or of the one of that name. Reads small files.

    Raises Refusal, also where a model cannot be held to that, and TextError.
    """
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    if not functions:
        missing = f"no tool is called {name!r:.80}" if name else "there are no tools"
        raise Refusal(400, f"tool_choice asks for a call, but {missing}")
    template = facts.template_with_tools
    syntax = find_syntax(template)
    if syntax is None:
        raise Refusal(400, f"tool_choice: {facts.name} cannot be made to call a tool; give auto or none")
    if syntax.frame is None and name is not None:
        raise Refusal(400, f"tool_choice: {facts.name} cannot be held to one tool; give it that tool alone")
    if syntax.frame is None:
        return "call"
    forms = []
    for function in functions:
        if not _NAME.fullmatch(function["name"]):
            raise Refusal(400, f"tool_choice: {function['name']!r:.60} cannot be a tool's name: use letters and digits")
        schema = {**(function.get("parameters") or {}), "type": "object"}
        forms.append(FramedJson(schema, *syntax.frame(function["name"], template)))
    return forms
