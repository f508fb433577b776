"""Modelfiles, as ollama has them: what a model is made of, and what goes with its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded, open_file
from moeinf.engine.stored.modelfile import commands
from moeinf.engine.stored.preset import Preset
from moeinf.errors import UsageError

_MOST_BYTES: Final = 1 << 16
_REFUSED: Final = {
    "TEMPLATE": "each checkpoint brings its own chat template; leave TEMPLATE out",
    "MESSAGE": "a Modelfile has no messages here; say it in SYSTEM, or /save a chat, and leave MESSAGE out",
}
_PASSED_OVER: Final = {
    "LICENSE": "LICENSE is not kept; `moeinf show --license` prints that of the checkpoint",
    "REQUIRES": "REQUIRES means nothing here, as it asks for a version of ollama",
    "RENDERER": "RENDERER means nothing here, as each checkpoint brings its own chat template",
    "PARSER": "PARSER means nothing here, as answers are read as the checkpoint's template has them",
}


@dataclass(frozen=True, slots=True)
class Modelfile:
    source: str  # of FROM: a name, a repository, a folder or a GGUF file
    preset: Preset
    adapter: str | None = None  # of ADAPTER, as --lora has it
    notes: tuple[str, ...] = ()  # on commands that change nothing


def read_modelfile(path: Path) -> Modelfile:
    """Raises UsageError, naming the line, for what is not understood or would be ignored."""
    try:
        with open_file(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"specified Modelfile wasn't found: {path}; -f names another") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} is longer than {_MOST_BYTES >> 10} KiB")
    text = decoded(data)
    if "\ufffd" in text:
        raise UsageError(f"{path} is no UTF-8 text; save it as UTF-8")
    asked = parse_modelfile(text, str(path))
    beside = path.parent / (asked.adapter or "")
    return replace(asked, adapter=str(beside)) if asked.adapter and beside.is_dir() else asked


def parse_modelfile(text: str, where: str) -> Modelfile:
    """Raises as read_modelfile does."""
    given, system, pairs, notes = dict[str, str](), "", list[tuple[str, str]](), list[str]()
    for command in commands(text, where):
        at, word, value = f"{where}, line {command.line}", command.word, command.value
        if word in _REFUSED:
            raise UsageError(f"{at}: {_REFUSED[word]}")
        if word in _PASSED_OVER:
            notes.append(f"{at}: {_PASSED_OVER[word]}")
        elif word not in ("FROM", "ADAPTER", "SYSTEM", "PARAMETER"):
            raise UsageError(f"{at}: {word[:40]!r} is no command; known: FROM, ADAPTER, PARAMETER, SYSTEM")
        elif not value:
            raise UsageError(f"{at}: {word} {command.name}".rstrip() + " is followed by nothing")
        elif word in ("FROM", "ADAPTER"):
            if word in given:
                beside = (
                    "" if word == "ADAPTER" else ": of a split name one part, and an mmproj file beside it is found"
                )
                raise UsageError(f"{at}: there is a second {word}; a model is made of one{beside}")
            given[word] = value
        elif word == "SYSTEM":
            system = value
        else:
            pairs.append((command.name, value))
            try:
                Preset(options=(pairs[-1],))
            except UsageError as error:
                raise UsageError(f"{at}: {error}") from error
    if "FROM" not in given:
        raise UsageError(f"{where} has no FROM line: it names the model, such as FROM mixtral")
    return Modelfile(given["FROM"], Preset(system, tuple(pairs)), given.get("ADAPTER"), tuple(notes))
