"""Chat templates, rendered in a sandbox.

Templates are untrusted code. The sandbox keeps them from Python's internals; only the process of worker.py, which
alone renders them, bounds their time and memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moeinf.errors import TextError
from moeinf.text.accommodations import accommodations, drops_result, drops_system, moves_system

Message = Mapping[str, Any]

# Put behind the first character of a control token that stands in a message, so that neither the template nor the
# tokenizer takes it for one. A noncharacter: it cannot occur in interchanged text, and is removed from messages first.
MARK = "\ufdd0"

_MAX_OUTPUT_CHARS = 4 << 20
_MAX_INT_BITS = 4096  # of a product or power in a template: those that count messages stay far below


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


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also intercepts the operators with which one short expression takes all time or memory."""

    intercepted_binops = frozenset(["**", "*", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sides = (left, right) if operator == "*" else (left,)
        if any(isinstance(side, str | bytes | list | tuple) for side in sides):
            raise SecurityError(f"operator {operator} on text or lists is not allowed in a template")
        if isinstance(left, int) and isinstance(right, int) and _result_bits(operator, left, right) > _MAX_INT_BITS:
            raise SecurityError(f"operator {operator} gives too large a number for a template")
        return super().call_binop(context, operator, left, right)


def _result_bits(operator: str, left: int, right: int) -> int:
    if operator == "**":
        return left.bit_length() * max(right, 0)
    return left.bit_length() + right.bit_length()


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """Stands for dict, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """A jinja2 namespace that refuses underscored names, as transformers does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} is not allowed in a template")


def environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What filters such as map give, which is no list."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
