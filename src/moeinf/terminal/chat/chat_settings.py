"""The command /set: options of the chat, of sampling and of the model."""

from __future__ import annotations

import shlex

from moeinf.config import RuntimeConfig, ollama_value
from moeinf.config.option import Option, http_options, options
from moeinf.errors import UsageError
from moeinf.sampling.params import SamplingParams, as_ollama_means
from moeinf.terminal.arguments.chat_options import modes
from moeinf.terminal.arguments.values import format_text
from moeinf.terminal.chat.help import HELP_SET
from moeinf.terminal.chat.line_editor import LineReader
from moeinf.terminal.chat.switch import ModelSwitch
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.user_notes import say


class Settings:
    """Changes what a conversation, its model and its reader go by."""

    def __init__(self, conversation: Conversation, switch: ModelSwitch, reader: LineReader) -> None:
        self._conversation = conversation
        self._switch = switch
        self._reader = reader

    def set(self, rest: str) -> None:
        """What follows /set. Raises UsageError for what the model cannot be told."""
        what, _, value = rest.partition(" ")
        if what == "parameter":
            self._set_parameter(value)
        elif what == "system" and value.strip():
            self._conversation.set_system(value.strip())
            say("Set system message.")
        elif what in ("think", "nothink"):
            self._set_think(what, value.strip())
        elif what == "noformat" or (what == "format" and value.strip()):
            self._conversation.change(format=format_text(value.strip()) if what == "format" else None)
            say(f"Set '{what}' mode.")
        elif what in modes():
            self._set_mode(what)
        else:
            say(
                HELP_SET if what in ("", "system", "format") else f"Unknown command '/set {what}'. Type /? set for help"
            )

    def _set_mode(self, mode: str) -> None:
        option, on = modes()[mode]
        self._conversation.change(**{option.name: on})
        if option.name == "history":
            self._reader.keep_history = on
        say(f"Set '{mode}' mode.")

    def _set_think(self, mode: str, level: str) -> None:
        think = "false" if mode == "nothink" else level or "true"
        variables = self._conversation.options.variables or {}
        self._conversation.model.template_variables(think, variables)  # refuses what the model cannot be told
        self._conversation.change(think=think)
        say(f"Set '{mode}' mode{f' to {level!r}' if level else ''}.")

    def _set_parameter(self, text: str) -> None:
        name, *values = _words(text)
        try:
            known = http_options("ollama", SamplingParams, RuntimeConfig)
            if name not in known:
                raise UsageError(f"unknown parameter '{name}'; known: {', '.join(sorted(known))}")
            if not values:
                raise UsageError(f"'{name}' needs a value")
            self._store_parameter(known[name], values)
        except UsageError as error:
            say(f'Couldn\'t set parameter: "{error}"')
            return
        say(f"Set parameter '{name}' to '{', '.join(values)}'")

    def _store_parameter(self, option: Option, values: list[str]) -> None:
        value = tuple(values) if option.name == "stop" else ollama_value(option, values[0])
        if option in options(RuntimeConfig):
            config = self._switch.config.changed(**{option.name: value})
            self._switch.change(self._conversation.model.name, config)
        else:
            sampling = as_ollama_means(self._conversation.sampling | {option.name: value})
            self._conversation.model.params(**sampling)  # refuses what is out of range
            self._conversation.sampling = sampling


def _words(text: str) -> list[str]:
    """Words as a shell splits them, so that a stop string may hold spaces; at least one."""
    try:
        return shlex.split(text) or [""]
    except ValueError:
        return text.split() or [""]
