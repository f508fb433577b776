"""Modelfiles, as ollama has them: what a model is made of, and what goes with its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.errors import UsageError
from moeinf.store.library import StoredModel

_MOST_BYTES: Final = 1 << 16
_QUOTES: Final = '"""'
_REFUSED: Final = {
    "TEMPLATE": "each checkpoint brings its own chat template; leave TEMPLATE out",
    "ADAPTER": "adapters are not supported; merge it into the weights first",
    "MESSAGE": "messages are not kept with a model; say it in SYSTEM",
    "LICENSE": "the licence is that of the checkpoint (`moeinf show --license`); leave LICENSE out",
    "REQUIRES": "versions of ollama mean nothing here; leave REQUIRES out",
}


@dataclass(frozen=True, slots=True)
class Modelfile:
    source: str  # of FROM: a name, a repository, a folder or a GGUF file
    preset: Preset


def read_modelfile(path: Path) -> Modelfile:
    """Raises UsageError, naming the line, for what is not understood or would be ignored."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"specified Modelfile wasn't found: {path}; -f names another") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} is longer than {_MOST_BYTES >> 10} KiB")
    return parse_modelfile(data.decode("utf-8", "replace"), str(path))


def parse_modelfile(text: str, where: str) -> Modelfile:
    """Raises as read_modelfile does."""
    source, system, pairs = "", "", []
    for number, word, rest in _commands(text, where):
        at = f"{where}, line {number}"
        if word in _REFUSED:
            raise UsageError(f"{at}: {_REFUSED[word]}")
        if not rest:
            raise UsageError(f"{at}: {word} is followed by nothing")
        if word == "FROM":
            if source:
                raise UsageError(f"{at}: there is a second FROM; a model is made of one")
            source = rest
        elif word == "SYSTEM":
            system = rest
        elif word == "PARAMETER":
            name, _, value = rest.partition(" ")
            pairs.append((name.lower(), _unquoted(value.strip())))
            try:
                Preset(options=(pairs[-1],))
            except UsageError as error:
                raise UsageError(f"{at}: {error}") from error
        else:
            raise UsageError(f"{at}: {word[:40]!r} is no command; known: FROM, PARAMETER, SYSTEM")
    if not source:
        raise UsageError(f"{where} has no FROM line: it names the model, such as FROM mixtral")
    return Modelfile(source, Preset(system, tuple(pairs)))


def _commands(text: str, where: str) -> Iterator[tuple[int, str, str]]:
    """Yields the line, the command in capitals, and what follows it, of which three quotes may hold many lines."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if rest.startswith(_QUOTES):
            block = rest[len(_QUOTES) :]
            while not block.rstrip().endswith(_QUOTES):
                following = next(lines, None)
                if following is None:
                    raise UsageError(f"{where}, line {number}: the three quotes are not closed")
                block += "\n" + following[1]
            rest = block.rstrip()[: -len(_QUOTES)].strip("\n")
        elif re.fullmatch(r"system", word, re.IGNORECASE):
            rest = _unquoted(rest)
        yield number, word.upper(), rest


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def own_modelfile(stored: StoredModel) -> str:
    """A Modelfile that makes the same model of itself. Raises StoreError."""
    preset, lines = preset_of(stored), [f"FROM {stored.name}"]
    lines += [f"PARAMETER {name} {_quoted(value)}" for name, value in preset.options]
    if preset.system:
        lines.append(f"SYSTEM {_QUOTES}{preset.system}{_QUOTES}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return f'"{text}"' if text != text.strip() or " " in text or text[:1] == '"' else text
