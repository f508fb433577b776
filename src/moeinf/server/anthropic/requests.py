"""What clients of Anthropic's API send. Fields that are not listed are refused, or change no answer: see fields.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from moeinf.server.anthropic.conversation import plain_messages
from moeinf.server.anthropic.fields import MESSAGE, NESTED, OUTPUT, PROMPT, THINKING, TOOL
from moeinf.server.anthropic.tool_changes import Given, after_changes
from moeinf.server.ask import ADAPTIVE, Ask, Thoughts, Tools
from moeinf.server.body_fields import Fields
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.continuing import begun_answer
from moeinf.server.prompt.thinking_field import budget_of
from moeinf.server.prompt.tools import checked_tools
from moeinf.types import JsonMapping, JsonObject, Tool

TOOL_FIELDS = ("type", "name", "description", "input_schema")


class Thinking(msgspec.Struct):
    published: ClassVar[Fields] = THINKING
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class Metadata(msgspec.Struct):
    published: ClassVar[Fields] = NESTED
    user_id: str | None = None


class OutputFormat(msgspec.Struct):
    published: ClassVar[Fields] = NESTED
    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct):
    """effort: how hard to think, where the chat template has levels."""

    published: ClassVar[Fields] = OUTPUT
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ToolChoice(msgspec.Struct):
    published: ClassVar[Fields] = NESTED
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Prompted(msgspec.Struct, kw_only=True):
    """What a message and the counting of its tokens have in common."""

    published: ClassVar[Fields] = PROMPT
    model: str
    messages: list[JsonObject]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where the format stood before output_config


class MessageRequest(Prompted, kw_only=True):
    published: ClassVar[Fields] = MESSAGE
    max_tokens: int
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    keep_alive: str | float | None = None  # beyond Anthropic's own


def prompt_of(asked: Prompted) -> Ask:
    """What of an ask a prompt is made of. Raises Refusal."""
    tools = after_changes(asked.tools or (), asked.messages)
    messages, continues = begun_answer(plain_messages(asked.system, asked.messages))
    return Ask(
        asked.model,
        messages,
        continues=continues,
        thoughts=Thoughts(_think(asked.thinking), level=asked.output_config.effort if asked.output_config else None),
        tools=Tools(_offered(tools, asked.tool_choice)),
    )


def params_given(asked: MessageRequest) -> JsonObject:
    """The fields of SamplingParams that the request sets. Raises Refusal."""
    if asked.max_tokens < 0:
        raise Refusal(400, "max_tokens must be at least 0")
    given = {name: getattr(asked, name) for name in ("temperature", "top_p", "top_k")}
    if asked.thinking is not None and asked.thinking.budget_tokens is not None:
        given["thought_tokens"] = budget_of(asked.thinking.budget_tokens, "thinking.budget_tokens")
    if asked.stop_sequences:
        given["stop"] = tuple(asked.stop_sequences)
    return {name: value for name, value in given.items() if value is not None} | {"num_predict": asked.max_tokens}


def _offered(tools: Sequence[Given], choice: ToolChoice | None) -> tuple[Tool, ...]:
    """The tools that the model may call, in OpenAI's form. Raises Refusal."""
    checked = checked_tools(_function(tool, f"tools[{at}]") for at, tool in enumerate(tools))
    return () if choice is not None and choice.type == "none" else checked


def forced_tool(choice: ToolChoice | None) -> str | None:
    """The tool that must be called; "": any; None: the model decides. Raises Refusal."""
    if choice is None or choice.type in ("auto", "none"):
        return None
    if choice.type == "tool" and not choice.name:
        raise Refusal(400, "tool_choice of type tool must have a name")
    return choice.name or "" if choice.type == "tool" else ""


def _function(tool: JsonMapping, where: str) -> Tool:
    tool = {name: value for name, value in tool.items() if value is not None}
    kind = tool.get("type", "custom")
    if kind != "custom":
        raise Refusal(400, f"{where}: tools of type {kind!r:.60} are not here; give each with an input_schema")
    TOOL.check(tool, TOOL_FIELDS, f"{where}.")
    if not isinstance(tool.get("input_schema"), dict):
        raise Refusal(400, f"{where}: a tool must have an input_schema")
    described = {"description": tool["description"]} if tool.get("description") else {}
    function = {"name": tool.get("name"), **described, "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def format_of(asked: MessageRequest) -> JsonObject | None:
    """The JSON schema that the answer is held to."""
    given = asked.output_format or (asked.output_config.format if asked.output_config else None)
    return given.schema if given else None


def _think(thinking: Thinking | None) -> bool | str | None:
    """Thoughts.think: None leaves it to the chat template."""
    if thinking is None:
        return None
    return {"enabled": True, "disabled": False}.get(thinking.type, ADAPTIVE)
