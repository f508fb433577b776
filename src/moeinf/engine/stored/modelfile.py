"""The form of Modelfiles, which are ollama's: read into commands, and written of a stored model."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from moeinf.engine.stored.preset import preset_of
from moeinf.errors import UsageError
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import written
from moeinf.store.processes.partials import parse_source_record
from moeinf.store.quantisation import KEEP

_QUOTES: Final = '"""'
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")  # of every system, and no others: a text may hold U+2028
_Lines = deque[str]


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    word: str  # in capitals
    name: str  # of a parameter, in small letters
    value: str  # without its quotes; "" where nothing follows


def commands(text: str, where: str) -> Iterator[Command]:
    """Quotes hold text of many lines, wherever a value may stand: three, or one if the text has none (ollama#6212).

    Raises UsageError where three are not closed.
    """
    lines = deque(_LINE_ENDS.split(text))
    num_lines = len(lines)
    while lines:
        number, line = num_lines - len(lines) + 1, lines.popleft()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, rest = _split(line)
        word = word.upper()
        name, rest = _split(rest) if word == "PARAMETER" else ("", rest)
        value = _value(rest, lines, f"{where}, line {number}")
        yield Command(number, word, name.lower(), _unquoted(value, "'") if word in ("FROM", "ADAPTER") else value)


def own_modelfile(stored: StoredModel) -> str:
    """A Modelfile that makes the same model. Raises StoreError."""
    preset = preset_of(stored)
    lines = [f"FROM {_base(stored)}"]
    lines += [f"PARAMETER {name} {quoted(value)}" for name, value in preset.options]
    if preset.system:
        text = preset.system
        lines.append(f"SYSTEM {_as_read(text, [_block(text), text, _short(text), _lines(text)])}")
    if preset.messages:
        lines.append(f"# {len(preset.messages)} messages of a saved chat go with the name, and are left out here.")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """A value as a Modelfile has it, in quotes where it needs some."""
    simple = re.fullmatch(r"[^\s\"']+", text)
    held = [_short(text), _block(text), _lines(text)]
    return _as_read(text, [text, *held] if simple else [*held, text, _block(text)])


def _base(stored: StoredModel) -> str:
    """What has the weights alone: another stored name, else the source; the name itself where it has nothing more."""
    if not stored.preset_text:
        return stored.name
    library = Library(stored.home)
    names = [model.name for model in library.list() if model.id == stored.id and not model.preset_text]
    source, asked = stored.manifest.source, parse_source_record(stored.source_record())
    other = stored.manifest.formats.asked != KEEP or (asked is not None and asked.adapter is not None)
    if names or other:  # no pull of FROM would store the source like that
        return min(names, default=stored.name)
    if "/" in source.file:
        return f"hf.co/{source.location}/blob/{source.revision}/{source.file}"
    return written(source)


def _as_read(text: str, forms: list[str]) -> str:
    """The first form that reads as the text, else the last."""
    return next((form for form in forms if _reads_as(form, text)), forms[-1])


def _reads_as(form: str, text: str) -> bool:
    try:
        return [each.value for each in commands(f"SYSTEM {form}", "")] == [text]
    except UsageError:
        return False


def _short(text: str) -> str:
    return f'"{text}"'


def _block(text: str) -> str:
    return f"{_QUOTES}{text}{_QUOTES}"


def _lines(text: str) -> str:
    """With the quotes on lines of their own: a first or last line may be blank."""
    return _block(f"\n{text}\n")


def _split(text: str) -> tuple[str, str]:
    """The first word, and what follows it with the spaces at the end."""
    word, *rest = text.split(None, 1) or [""]
    return word, rest[0] if rest else ""


def _value(rest: str, lines: _Lines, at: str) -> str:
    if rest.startswith('"') and not rest.startswith(_QUOTES):
        return _unquoted(_joined(rest, lines), '"')
    if not rest.startswith(_QUOTES):
        return rest.rstrip()
    block = rest[len(_QUOTES) :]
    while not block.rstrip().endswith(_QUOTES):
        if not lines:
            raise UsageError(f"{at}: the three quotes are not closed")
        block += "\n" + lines.popleft()
    return block.rstrip()[: -len(_QUOTES)].strip("\n")


def _joined(rest: str, lines: _Lines) -> str:
    """A value that begins with a quote, up to the line that ends with the next quote; else the quote is a letter."""
    closing = next((i for i, line in enumerate(lines) if '"' in line), None)
    if '"' in rest[1:] or closing is None or not re.fullmatch(r'[^"]*"\s*', lines[closing]):
        return rest.rstrip()
    return "\n".join([rest, *(lines.popleft() for _ in range(closing + 1))]).rstrip()


def _unquoted(text: str, quote: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == quote else text
