"""Picture files that a user names, among the words of a prompt or by /read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from moeinf.config.user_text import open_file
from moeinf.engine.stored.facts import StoredFacts
from moeinf.errors import UsageError
from moeinf.pictures.decode import MOST_BYTES, check_decoder
from moeinf.store.library import StoredModel
from moeinf.types import JsonObject

_ENDS: Final = (".png", ".jpg", ".jpeg")


def pictures_among(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The words that are paths of picture files, and the others."""
    pictures = [word for word in words if word.lower().endswith(_ENDS) and _is_file(word)]
    return [Path(word) for word in pictures], [word for word in words if word not in pictures]


def check_pictures(stored: StoredModel, pictures: Sequence[Path], words: Sequence[str]) -> None:
    """Raises UsageError, before anything is loaded, for pictures that the model cannot see.

    To a model that sees, a single word that is named like a picture file and is none is one, too: it is not to be
    answered as text.
    """
    why = StoredFacts(stored).why_no_vision
    if pictures and why:
        raise UsageError(f"{why}; put the whole prompt into quotes if {pictures[0]} is part of it")
    for word in words if not why else ():
        if word.lower().endswith(_ENDS) and len(word.split()) == 1:
            raise UsageError(f"there is no picture file {word}; put the whole prompt into quotes if it is part of it")
    if pictures:
        check_decoder()


def picture_part(path: Path) -> JsonObject:
    """The part of a message that a picture file is. Raises UsageError for one that cannot be read."""
    try:
        with open_file(path.expanduser()) as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    return {"type": "image", "image": data, "name": str(path)}


def _is_file(word: str) -> bool:
    try:
        return Path(word).expanduser().is_file()
    except (OSError, RuntimeError):  # a name that is too long, say, or the home folder of nobody
        return False
