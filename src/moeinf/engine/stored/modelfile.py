"""The form of Modelfiles, which are ollama's: read into commands, and written of a stored model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from moeinf.engine.stored.preset import preset_of
from moeinf.errors import UsageError
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.references import written
from moeinf.store.quantisation import KEEP

_QUOTES: Final = '"""'
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")  # of every system, and no others: a text may hold U+2028
_Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    word: str  # in capitals
    name: str  # of a parameter, in small letters
    value: str  # without its quotes; "" where nothing follows


def commands(text: str, where: str) -> Iterator[Command]:
    """Three quotes hold text of many lines, wherever a value may stand. Raises UsageError where they are not closed."""
    lines = iter(enumerate(_LINE_ENDS.split(text), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, rest = _split(line)
        word = word.upper()
        name, rest = _split(rest) if word == "PARAMETER" else ("", rest)
        value = _value(rest, lines, f"{where}, line {number}")
        yield Command(number, word, name.lower(), _unquoted(value, "'") if word == "FROM" else value)


def own_modelfile(stored: StoredModel) -> str:
    """A Modelfile that makes the same model. Raises StoreError."""
    preset = preset_of(stored)
    lines = [f"FROM {_base(stored)}"]
    lines += [f"PARAMETER {name} {quoted(value)}" for name, value in preset.options]
    if preset.system:
        text = preset.system
        lines.append(f"SYSTEM {_as_read(text, [_block(text), text, _short(text), _lines(text)])}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """A value as a Modelfile has it, in quotes where it needs some."""
    plain = [text, _short(text)] if re.fullmatch(r"[^\s\"']+", text) else [_short(text), text]
    return _as_read(text, [*plain, _block(text), _lines(text)])


def _base(stored: StoredModel) -> str:
    """What has the weights alone: another stored name, else the source; the name itself where it has nothing more."""
    if not stored.preset_text:
        return stored.name
    library = Library(stored.path.parents[1])
    names = [model.name for model in library.list() if model.id == stored.id and not model.preset_text]
    source = stored.manifest.source
    if names or stored.manifest.quantisation != KEEP:  # no pull of FROM would store the source in those formats
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
    """The first word, and what follows it."""
    word, *rest = text.strip().split(None, 1)[:2] or [""]
    return word, rest[0] if rest else ""


def _value(rest: str, lines: _Lines, at: str) -> str:
    if not rest.startswith(_QUOTES):
        return _unquoted(rest, '"')
    block = rest[len(_QUOTES) :]
    while not block.rstrip().endswith(_QUOTES):
        following = next(lines, None)
        if following is None:
            raise UsageError(f"{at}: the three quotes are not closed")
        block += "\n" + following[1]
    return block.rstrip()[: -len(_QUOTES)].strip("\n")


def _unquoted(text: str, quote: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == quote else text
