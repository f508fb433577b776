"""Chat templates, rendered in a sandbox, in which no control token of a client passes for one of the template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jinja2
from jinja2.exceptions import SecurityError

from moeinf.errors import TextError
from moeinf.text.templates.accommodations import (
    accommodations,
    drops_result,
    drops_system,
    drops_user,
    in_parts,
    moves_system,
)
from moeinf.text.templates.given import given, given_messages
from moeinf.text.templates.sandbox import environment
from moeinf.text.templates.traced import MARK, OWN, Traced, alternatives, origins_of, traced_concat
from moeinf.types import JsonMapping, Message

_MAX_OUTPUT_CHARS = 4 << 20
_SPELT_OUT = "'type': 'text'"  # what a template writes that takes parts for a text


class ChatTemplate:
    """One compiled template. `specials` are the variables bos_token, eos_token and so on."""

    def __init__(self, source: str, specials: Mapping[str, str], roles: Sequence[str]) -> None:
        """roles: those that messages have unless a client invents one."""
        self._specials = {name: Traced(text, OWN) for name, text in specials.items()}
        self._roles = roles
        self._template = environment().from_string(source)

    def render(
        self, messages: Sequence[Message], variables: JsonMapping, *, prompts: bool = True
    ) -> tuple[Traced, list[str]]:
        """Returns the text, and a note for each change that the template required.

        prompts: the text ends where the assistant speaks, and not behind the last message.

        Some templates refuse a system message, a late one or two turns of one role in a row, and some drop or move a
        system message, or drop a tool's result, in silence; accommodations.py has what is done then.
        Raises jinja2.TemplateError with the template's own words when nothing helps.
        """
        refusals: list[jinja2.TemplateError] = []
        without_results: tuple[Traced, list[str]] | None = None
        messages = given(messages)
        for candidate, notes in accommodations(messages, lambda: _why_without_tools(refusals)):
            try:
                text = self._written(candidate, variables, prompts)
            except jinja2.TemplateError as error:
                refusals.append(error)
                continue
            if drops_system(candidate, text) or moves_system(candidate, text):
                continue
            if not drops_result(messages, text):
                return text, notes
            without_results = without_results or (text, notes)
        if without_results is not None:  # which the template may write in a way of its own
            return without_results
        raise refusals[0] if refusals else jinja2.TemplateError("the template leaves out the system message")

    def _written(self, messages: Sequence[Message], variables: JsonMapping, prompts: bool) -> Traced:
        """With texts in parts where the template refuses plain ones, or leaves out what a user said. As `_render`."""
        text, refusal = None, jinja2.TemplateError()
        try:
            text = self._render(messages, variables, prompts)
        except jinja2.TemplateError as error:
            refusal = error
        if text is not None and not drops_user(messages, text):
            return text
        try:
            other = self._render(in_parts(messages), variables, prompts)
        except jinja2.TemplateError:
            other = None
        if other is not None and not drops_user(messages, other) and _SPELT_OUT not in other:
            return other
        if text is None:
            raise refusal
        return text

    def _render(self, messages: Sequence[Message], variables: JsonMapping, prompts: bool) -> Traced:
        known = {"tools": None, "documents": None, **self._specials} | given(variables)
        known |= {"messages": given_messages(messages, self._roles), "add_generation_prompt": prompts}
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(known):
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
        return traced_concat(pieces)


def _why_without_tools(refusals: Sequence[jinja2.TemplateError]) -> str:
    """What a template did with the calls and results of a chat. refusals: none where it only left results out."""
    said = " ".join(str(refusals[0]).split())[:200] if refusals else ""
    if refusals and isinstance(refusals[0], SecurityError):
        return f"the chat template does with tools what none may do here ({said})"
    return "the chat template knows no tools" + (f" ({said})" if said else "")


def marked(text: Traced, tokens: Sequence[str]) -> str:
    """The text, in which control tokens that are not the template's own in every character are marked as letters."""
    pattern, origins = alternatives(tokens), origins_of(text)
    parts, start, at = list[str](), 0, 0
    while pattern and (match := pattern.search(text, at)):
        if set(origins[match.start() : match.end()]) == {OWN}:
            at = match.end()
            continue
        at = match.start() + 1
        parts += [str.__str__(text[start:at]), MARK]
        start = at
    return "".join([*parts, text[start:]])


def split_marked(text: str, tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Pieces of rendered text without marks; True for those whose control tokens are plain text.

    Cuts only at control tokens that the template wrote: tokenizers cut there anyway, so the ids of the other pieces
    are those of the whole text.
    """
    pattern = alternatives(tokens)
    start = 0
    for match in pattern.finditer(text) if pattern else ():
        yield from _unmarked(text[start : match.start()])
        yield match[0], False
        start = match.end()
    yield from _unmarked(text[start:])


def _unmarked(text: str) -> Iterator[tuple[str, bool]]:
    if text:
        yield text.replace(MARK, ""), MARK in text
