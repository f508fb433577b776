"""The chat templates of a checkpoint, with tools and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2

from moeinf.errors import TextError
from moeinf.text.templates.facts import read_facts
from moeinf.text.templates.rendering import ChatTemplate, mark_control_tokens
from moeinf.text.thinking import TemplateFacts
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.messages import Message, described, fitted, in_templates_form, told_of


class ChatTemplates:
    """The template of chats, and that of chats with tools, which mostly is the same.

    syntax: in which the model is asked to call tools; None where that is unknown.
    """

    def __init__(self, source: str, with_tools: str, specials: Mapping[str, str], control: Sequence[str]) -> None:
        """specials: the variables bos_token and so on. control: the control tokens, which messages cannot write."""
        self.syntax = find_syntax(with_tools)
        self._source, self._with_tools = source, with_tools
        self._specials, self._control = specials, control
        self._compiled: dict[str, ChatTemplate] = {}

    def source(self, tools: object) -> str:
        """The text of the template for a chat, with tools or without."""
        return self._with_tools if tools else self._source

    def facts(self) -> TemplateFacts:
        facts = read_facts(self._source)
        return replace(facts, tools=read_facts(self._with_tools).tools)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Returns text with marked control tokens (see rendering.MARK), and notes for the user.

        messages, and variables["tools"]: in OpenAI's form. Raises TextError.
        """
        tools, source = variables.get("tools"), self.source(variables.get("tools"))
        messages = mark_control_tokens(in_templates_form(messages, self.syntax), self._control)
        messages = fitted(messages, source, self.syntax)
        if tools:
            tools = mark_control_tokens(described(tools), self._control)
            messages = told_of(tools, messages, source, self.syntax)
        try:
            if source not in self._compiled:
                self._compiled[source] = ChatTemplate(source, self._specials)
            return self._compiled[source].render(messages, {**variables, "tools": tools or None})
        except jinja2.TemplateError as error:
            raise TextError(f"the chat template refuses this chat: {error}") from error
