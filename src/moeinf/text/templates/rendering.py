"""Chat templates, rendered in a sandbox, in which no control token of a message passes for one of the template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2

from moeinf.errors import TextError
from moeinf.text.templates.accommodations import accommodations, drops_result, drops_system, moves_system
from moeinf.text.templates.sandbox import environment

Message = Mapping[str, Any]

# Put behind the first character of a control token that stands in a message, so that neither the template nor the
# tokenizer takes it for one. A noncharacter: it cannot occur in interchanged text, and is removed from messages first.
MARK = "\ufdd0"

_MAX_OUTPUT_CHARS = 4 << 20


class ChatTemplate:
    """One compiled template. `specials` are the variables bos_token, eos_token and so on."""

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        self._specials = dict(specials)
        self._template = environment().from_string(source)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Returns the text up to where the assistant speaks, and a note for each change that the template required.

        Some templates refuse a system message, a late one or two turns of one role in a row, and some drop or move a
        system message, or drop a tool's result, in silence; accommodations.py has what is done then.
        Raises jinja2.TemplateError with the template's own words when nothing helps.
        """
        refusal: jinja2.TemplateError | None = None
        without_results: tuple[str, list[str]] | None = None
        for candidate, notes in accommodations(messages):
            try:
                text = self._render(candidate, variables)
            except jinja2.TemplateError as error:
                refusal = refusal or error
                continue
            if drops_system(candidate, text) or moves_system(candidate, text):
                continue
            if not drops_result(messages, text):
                return text, notes
            without_results = without_results or (text, notes)
        if without_results is not None:  # which the template may write in a way of its own
            return without_results
        raise refusal or jinja2.TemplateError("the template leaves out the system message")

    def _render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        given = {"tools": None, "documents": None, **self._specials, **variables}
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(given | {"messages": list(messages), "add_generation_prompt": True}):
                num_chars += len(piece)
                if num_chars > _MAX_OUTPUT_CHARS:
                    raise TextError("the chat template writes more than 4 MiB; use --raw to do without it")
                pieces.append(piece)
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as error:  # of what the template does with a message
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)


def mark_control_tokens(messages: Sequence[Message], tokens: Sequence[str]) -> list[dict[str, Any]]:
    """Messages in which every control token is marked as plain text (see MARK), at any depth."""
    pattern = _alternatives(tokens)

    def mark(value: Any) -> Any:
        if isinstance(value, str):
            plain = value.replace(MARK, "")
            return pattern.sub(lambda match: match[0][0] + MARK + match[0][1:], plain) if pattern else plain
        if isinstance(value, Mapping):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [mark(item) for item in value]
        return value

    return [mark(message) for message in messages]


def split_marked(text: str, tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Pieces of rendered text without marks; True for those whose control tokens are plain text.

    Cuts only at control tokens that the template wrote: tokenizers cut there anyway, so the ids of the other pieces
    are those of the whole text.
    """
    pattern = _alternatives(tokens)
    start = 0
    for match in pattern.finditer(text) if pattern else ():
        yield from _unmarked(text[start : match.start()])
        yield match[0], False
        start = match.end()
    yield from _unmarked(text[start:])


def _unmarked(text: str) -> Iterator[tuple[str, bool]]:
    if text:
        yield text.replace(MARK, ""), MARK in text


def _alternatives(tokens: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if tokens else None
