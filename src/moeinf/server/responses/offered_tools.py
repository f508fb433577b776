"""The tools of a request to the Responses API, as chat templates take them, and what a call of one becomes there.

A custom tool takes free text: the model sees a function with one argument, `input`. A grammar of that text is told to
the model: a Lark grammar in words, as no JSON schema says one; a regular expression as the pattern of the argument. A
tool in a namespace has the name of both, as namespaces mean nothing to templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moeinf.server.ask import Tools
from moeinf.server.body_fields import tell_once
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.tool_choice import LEFT_OUT, chosen_tools, flat_name
from moeinf.server.prompt.tools import checked_tools
from moeinf.types import Json, JsonMapping, JsonObject, Tool

_TEXT: Final[JsonObject] = {"type": "string"}
_GRAMMAR: Final = "The text of `input` has to keep to this Lark grammar:"


@dataclass(frozen=True, slots=True)
class Origin:
    """A tool as its client knows it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """What the model may call. origins: by the name that it calls them. told: those that were not left out."""

    tools: Tools
    origins: Mapping[str, Origin] = field(default_factory=dict)
    told: Sequence[JsonObject] = ()


def free_text(arguments: str) -> str:
    """The text that a custom tool was called with: the one text of the object, or what was written in its place."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    texts = list(found.values()) if isinstance(found, dict) else [found]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else arguments


def offered_tools(given: Sequence[Json], choice: str | JsonMapping | None, *, one_call: bool) -> OfferedTools:
    """given: the request's tools. choice: its tool_choice. Raises Refusal."""
    origins, functions, told = dict[str, Origin](), list[Tool](), list[JsonObject]()
    for at, tool in enumerate(given):
        where = f"tools[{at}]"
        if not isinstance(tool, dict):
            raise Refusal(400, f"{where} must be an object")
        kind = str(tool.get("type"))
        if kind.startswith(LEFT_OUT):
            tell_once(f"tools of the type {kind}, which do not run here")
            continue
        for origin, function in _functions(tool, where):
            name = flat_name(origin.namespace, origin.name)
            if name in origins:
                raise Refusal(400, f"{where}: two tools are called {name!r:.80}; give each a name of its own")
            origins[name] = origin
            functions.append({"type": "function", "function": {"name": name, **function}})
        told.append(tool)
    tools = chosen_tools(checked_tools(functions), choice, one_call=one_call)
    return OfferedTools(tools, origins, told)


def _functions(tool: JsonMapping, where: str, namespace: str | None = None) -> Iterator[tuple[Origin, JsonObject]]:
    """What can be called of a tool, or of a namespace's tools, and what the model is told beside the name."""
    kind, name = tool.get("type"), tool.get("name")
    if kind not in ("function", "custom", "namespace"):
        raise Refusal(400, f"{where}: a tool of type {kind!r:.60} does not run here; give functions or custom tools")
    if name is None and isinstance(tool.get("function"), dict):  # as chat completions have it
        raise Refusal(400, f"{where}: put name, description and parameters beside type, not into function")
    if not isinstance(name, str) or not name:
        raise Refusal(400, f"{where}: a tool must have a name")
    if kind == "namespace":
        inner = tool.get("tools")
        if namespace is not None or not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
            raise Refusal(400, f"{where}: a namespace must have a list of functions and custom tools")
        for at, each in enumerate(inner):
            yield from _functions(each, f"{where}.tools[{at}]", name)
        return
    described: JsonObject = {"description": tool["description"]} if tool.get("description") else {}
    if kind == "function":
        yield Origin(name, namespace), {**described, "parameters": tool.get("parameters") or {"type": "object"}}
        return
    text, told = _form_of(tool.get("format") or {}, where)
    if told:
        described = {"description": f"{tool['description']}\n\n{told}" if described else told}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    yield Origin(name, namespace, is_custom=True), {**described, "parameters": parameters}


def _form_of(form: Json, where: str) -> tuple[JsonObject, str]:
    """The schema of a custom tool's text, and what its description tells of it. Raises Refusal."""
    kind = form.get("type", "text") if isinstance(form, dict) else None
    if kind == "text":
        return _TEXT, ""
    syntax, definition = (form.get("syntax"), form.get("definition")) if isinstance(form, dict) else (None, None)
    if kind == "grammar" and isinstance(definition, str) and definition:
        if syntax == "regex":
            return {**_TEXT, "pattern": f"^(?:{definition})$"}, ""
        if syntax == "lark":
            return _TEXT, f"{_GRAMMAR}\n\n{definition}"
    raise Refusal(400, f"{where}.format is text, or a grammar with syntax lark or regex and a definition")
