"""How a conversation is held and shown: the options of a chat, which `/set` changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeinf.config.option import Option, option, options
from moeinf.config.server_options import seconds_of
from moeinf.errors import UsageError
from moeinf.text.thinking_text import THINK_WORDS

if TYPE_CHECKING:  # loads numpy
    from moeinf.sampling.constraint import AnswerFormat


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat is told and shows. Raises UsageError for a word of --think that is unknown."""

    system: str | None = option(
        None,
        "System message.",
        metavar="TEXT",
        flags=("--system", "-s"),
        chat={"system <string>": "Set system message"},
    )
    think: str | None = option(  # one of THINK_WORDS
        None,
        "--think or --think=true, false, low, medium, high, max: whether and how hard to think, where the model can "
        "be told. [default: as its chat template has it]",
        metavar="WORD",
        chat={"think [level]": "Let the model think; some know low to max", "nothink": "Let it answer at once"},
    )
    format: str | None = option(
        None,
        "Let the answer be JSON: json for any object, else a JSON schema, or @FILE with one. Ask for JSON in the "
        "prompt, too.",
        metavar="json|SCHEMA",
        chat={
            "format <schema>": "Let answers be JSON: json, a schema, or @file",
            "noformat": "Let answers be any text",
        },
    )
    hidethinking: bool = option(False, "Do not show thoughts.")
    variables: Mapping[str, object] | None = option(
        None,
        "Set another variable of the chat template, to JSON or text; repeatable.",
        metavar="NAME=VALUE",
        flags=("--template-var",),
    )
    verbose: bool = option(
        False,
        "Print figures after each answer.",
        chat={"verbose": "Show figures after each answer", "quiet": "Show none"},
    )
    nowordwrap: bool = option(
        False,
        "Do not wrap lines at words.",
        chat={"nowordwrap": "Do not wrap lines at words", "wordwrap": "Wrap lines at words"},
    )
    quiet: bool = option(False, "Print no progress and no line about memory.", flags=("--quiet", "-q"))
    keepalive: str | None = option(
        None,
        "Keep the model loaded for so long after each answer: 5m, or -1 for ever. Where no server runs, one is started "
        "that does, and ends afterwards.",
        metavar="TIME",
    )
    history: bool = option(
        True,
        "Keep what is typed in the history file.",
        flags=(),
        chat={"history": "Keep what is typed in the history file", "nohistory": "Do not keep it"},
    )

    def __post_init__(self) -> None:
        if self.think is not None and self.think not in THINK_WORDS:
            raise UsageError(f"--think cannot be {self.think!r}; it is one of {', '.join(THINK_WORDS)}")
        if self.keepalive is not None:
            seconds_of("--keepalive", self.keepalive)
        self.answer_format()

    def answer_format(self) -> AnswerFormat | None:
        """What the answer has to be. Raises UsageError for a text that says neither json nor a schema."""
        if self.format is None or self.format == "json":
            return self.format
        try:
            schema = json.loads(self.format)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--format is neither json nor a JSON schema ({error}); @FILE names a file") from error
        if not isinstance(schema, dict):
            raise UsageError(f"--format {self.format[:40]!r} is no JSON schema, which is an object in braces")
        return schema


def modes() -> dict[str, tuple[Option, bool]]:
    """The words of /set that switch something on or off, and what they switch."""
    return {
        word: (each, number == 0)
        for each in options(ChatOptions)
        if each.kind == "bool"
        for number, word in enumerate(each.chat)
    }
