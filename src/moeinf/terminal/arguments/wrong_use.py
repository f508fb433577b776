"""Error lines for a wrong command line: words of other tools, and words that are nearly right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from moeinf.errors import UsageError
from moeinf.terminal.arguments.first_steps import first_steps
from moeinf.terminal.arguments.other_tools import FORMATS, cure_of
from moeinf.text.thinking_text import THINK_WORDS

# Verbs of ollama that people type by habit, and what moeinf has instead.
_ABSENT: Mapping[str, str] = {
    "push": "this version uploads nothing: name the source of a model (`moeinf show --json`) to those who want it",
    "signin": "no account is needed: --token or HF_TOKEN opens what the Hugging Face Hub guards",
    "signout": "no account is needed: --token or HF_TOKEN opens what the Hugging Face Hub guards",
}


def usage_text(error: Any, words: Sequence[str]) -> str:
    """One line for an error of the parser of the command line, which had these words."""
    if (option := getattr(error, "option_name", None)) is not None:
        known = _options(error.ctx)
        return f"no such option: {option}; {cure_of(option, known) or _nearest(option, known)}"
    context = getattr(error, "ctx", None)
    for word in words if context is not None else ():  # -ngl is read as -n with the value gl
        if re.fullmatch("-[a-z]{2,}", word) and (cure := cure_of(word, _options(context))):
            return f"no such option: {word}; {cure}"
    text = str(error.format_message())
    verb = re.match(r"No such command '(.*?)'", text)  # the parser's error has no field for it in every version
    if verb is None:
        if context is not None and context.command.name == "run" and text.startswith("Missing argument 'MODEL'"):
            return f"run needs the name of a model; {first_steps()}"
        if (
            context is not None
            and context.command.name == "create"
            and (extra := re.search(r"extra argument\S* \((\S+?)[) ]", text))
        ):
            return f"{extra[1]} is one word too many; -q is --quiet here: {FORMATS}"
        return f"{text.removesuffix('.')} (see {context.command_path if context else 'moeinf'} --help)"
    return _ABSENT.get(verb[1]) or f"no such command: {verb[1]}; {_nearest(verb[1], _verbs(error.ctx))}"


def with_think(words: list[str]) -> list[str]:
    """Writes each bare --think as --think=true, since click would take the next word for its value.

    Raises UsageError where that word is a level, since it would become a part of the prompt.
    """
    for word, following in pairwise(words):
        if word == "--think" and following in THINK_WORDS:
            raise UsageError(
                f"--think {following} may mean two things: write --think={following} for how to think, or "
                f"--think=true {following} for a prompt that begins so"
            )
    return ["--think=true" if word == "--think" else word for word in words]


def _verbs(context: Any) -> list[str]:
    return [name for name, command in context.command.commands.items() if not command.hidden]


def _options(context: Any) -> list[str]:
    return [
        name
        for param in context.command.params
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    ]


def _nearest(word: str, known: Iterable[str]) -> str:
    """Asks whether a known word was meant: one that begins so, else one that looks similar."""
    bare = {name.lstrip("-"): name for name in sorted(known)}
    word = word.lstrip("-")
    found = [name for name in bare if len(word) > 1 and name.startswith(word)]
    close = [bare[name] for name in found or difflib.get_close_matches(word, bare, n=2, cutoff=0.7)]
    return f"did you mean {' or '.join(close)}?" if close else "see --help"
