"""The chat templates of a checkpoint, with tools and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jinja2

from moeinf.errors import TextError
from moeinf.text.channels.xtml_calls import XTML
from moeinf.text.templates.given import begun, with_own_marks
from moeinf.text.templates.rendering import ChatTemplate, marked
from moeinf.text.templates.template_facts import read_facts
from moeinf.text.templates.traced import BEGUN, Traced, origins_of
from moeinf.text.thinking_text import TemplateFacts
from moeinf.text.tool_calls.choice import syntax_for
from moeinf.text.tool_calls.syntaxes.generic_calls import GENERIC, NOTE
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.told.call_messages import checked, described, fitted, in_templates_form, told_of
from moeinf.text.tool_calls.told.typescript_tools import as_typescript, sorted_deep
from moeinf.types import JsonMapping, Message

_SORTED = (KIMI, XTML)  # as Kimi's own tokenizers do with tools
_TYPESCRIPT = "tools_ts_str"  # what they give the template of Kimi K2.5


class ChatTemplates:
    """The template of chats, and that of chats with tools, which mostly is the same.

    syntax: in which the model is asked to call tools.
    """

    def __init__(self, source: str, with_tools: str, specials: Mapping[str, str], control: Sequence[str]) -> None:
        """specials: the variables bos_token and so on. control: the control tokens, which messages cannot write."""
        self.syntax = syntax_for(with_tools)
        self._source, self._with_tools = source, with_tools
        self._specials, self._control = specials, control
        self._writer = with_own_marks(self.syntax, control) if self.syntax else None
        self._roles = ("system", "user", "assistant", "tool", *([self.syntax.result_role] if self.syntax else []))
        self._compiled: dict[str, ChatTemplate] = {}

    def source(self, tools: object) -> str:
        """The text of the template for a chat, with tools or without."""
        return self._with_tools if tools else self._source

    def facts(self) -> TemplateFacts:
        facts = read_facts(self._source)
        return replace(facts, tools=read_facts(self._with_tools).tools)

    def render(
        self, messages: Sequence[Message], variables: JsonMapping, *, continues: bool = False
    ) -> tuple[str, list[str]]:
        """Returns text with marked control tokens (see traced.MARK), and notes for the user.

        messages, and variables["tools"]: in OpenAI's form. continues: the last message is the assistant's, and the
        text ends in the middle of it. Raises TextError.
        """
        tools, source = variables.get("tools"), self.source(variables.get("tools"))
        generic, writer = self.syntax is GENERIC, self._writer
        if generic and not tools:
            writer = None
        messages = in_templates_form(messages, self.syntax)
        if continues:
            messages = [*messages[:-1], _begun(messages[-1:])]
        messages = fitted(messages, source, writer)
        if tools:
            tools = checked(tools)
            if self.syntax in _SORTED:
                tools = sorted_deep(tools)
            messages = told_of(described(tools), messages, source, writer)
        try:
            told = {**variables, "tools": None if generic else tools or None}
            if tools and _TYPESCRIPT in source:
                told = {_TYPESCRIPT: as_typescript(tools)} | told
            text, notes = self._rendered(source, messages, told, prompts=not continues)
        except jinja2.TemplateError as error:
            raise TextError(f"the chat template refuses this chat: {error}") from error
        if generic and tools:
            notes = [NOTE, *notes]
        return marked(_cut(text) if continues else text, self._control), notes

    def _rendered(
        self, source: str, messages: Sequence[Message], told: JsonMapping, *, prompts: bool
    ) -> tuple[Traced, list[str]]:
        """With the tools as they were given, else with all members that a template may want. Raises TemplateError."""
        if source not in self._compiled:
            self._compiled[source] = ChatTemplate(source, self._specials, self._roles)
        template, tools = self._compiled[source], told["tools"]
        try:
            return template.render(messages, told, prompts=prompts)
        except jinja2.TemplateError:
            if not tools or (filled := described(tools)) == tools:
                raise
            return template.render(messages, {**told, "tools": filled}, prompts=prompts)


def _begun(last: Sequence[Message]) -> Message:
    """The last message of a chat as the beginning of the answer. Raises TextError where it is none."""
    if not last or last[0].get("role") != "assistant" or last[0].get("tool_calls"):
        raise TextError("only an answer can be continued: the last message must be the assistant's, and call no tool")
    return begun(last[0])


def _cut(text: Traced) -> Traced:
    """The text up to the end of the answer that was begun."""
    end = origins_of(text).rfind(BEGUN) + 1
    if not end:
        raise TextError("there is nothing to continue: the chat template shows no text of the last message")
    return text[:end]
