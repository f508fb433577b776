"""Answers that must be a call of a tool: held to the JSON of its arguments, within what the model's syntax needs.

Values that stand in plain text between marks are held one by one. Of forms that nest (Gemma 4, MiniMax-M3) only the
beginning of a call can be held, and so not the tool that is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from moeinf.engine.stored.facts import StoredFacts
from moeinf.sampling.constraint import AnswerFormat, FramedJson, FramedValues, Value
from moeinf.server.http_errors import Refusal
from moeinf.text.forms.held_calls import TOOL_NAME, arguments_schema
from moeinf.text.tool_calls.choice import syntax_for
from moeinf.text.tool_calls.schemas import Schema
from moeinf.text.tool_calls.syntax import Elements
from moeinf.types import JsonMapping, Tool

_KEY = re.compile(r"[\w.:/-]{1,128}")


def forced_calls(facts: StoredFacts, tools: Sequence[Tool], name: str | None) -> AnswerFormat:
    """`format` of Model.pieces for a call of one of these tools, or of the one of that name. Reads small files.

    Raises Refusal, also where a model cannot be held to that, and TextError.
    """
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    if not functions:
        missing = f"no tool is called {name!r:.80}" if name else "there are no tools"
        raise Refusal(400, f"tool_choice asks for a call, but {missing}")
    template = facts.template_with_tools
    syntax = syntax_for(template)
    if syntax is None:
        raise Refusal(400, f"tool_choice: {facts.name} cannot be made to call a tool; give auto or none")
    if syntax.frame is None and syntax.elements is None:
        if name is not None:
            raise Refusal(400, f"tool_choice: {facts.name} cannot be held to one tool; give it that tool alone")
        return "call"
    forms: list[FramedJson | FramedValues] = []
    for function in functions:
        if not TOOL_NAME.fullmatch(function["name"]):
            raise Refusal(400, f"tool_choice: {function['name']!r:.60} cannot be a tool's name: use letters and digits")
        schema = arguments_schema(function)
        if syntax.frame is not None:
            forms.append(FramedJson(schema, *syntax.frame(function["name"], template)))
        elif syntax.elements is not None:
            forms.append(_of_values(syntax.elements(function["name"]), schema))
    return forms


def _of_values(elements: Elements, schema: JsonMapping) -> FramedValues:
    """The parameters that the schema declares, in its order. Text is free where the schema allows text."""
    declared = schema.get("properties") or {}
    required = schema.get("required") or ()
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    values = []
    for key, own in declared.items() if isinstance(declared, Mapping) else ():
        if not _KEY.fullmatch(key):
            raise Refusal(400, f"tool_choice: {key!r:.60} cannot be a parameter's name here: use letters and digits")
        own = own if isinstance(own, Mapping) else {}
        types, listed = Schema(schema).types(key), own.get("enum")
        is_text, choices = types is None or "string" in types, listed if isinstance(listed, list) else []
        texts = choices if is_text and all(isinstance(each, str) and each for each in choices) else ()
        held = None if is_text else {**shared, **own}
        values.append(Value(elements.opening(key, is_text), elements.end, held, texts, key in required))
    return FramedValues(values, elements.before, elements.behind)
