"""Picture files that a user names, among the words of a prompt or by /read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from moeinf.engine.stored.facts import why_no_vision
from moeinf.errors import UsageError
from moeinf.pictures.decode import MOST_BYTES, check_decoder
from moeinf.store.library import StoredModel

_ENDS: Final = (".png", ".jpg", ".jpeg")


def pictures_among(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The words that are paths of picture files, and the others.

    Raises UsageError for a single word that is named like a picture file and is none: not to be answered as text.
    """
    pictures = [word for word in words if word.lower().endswith(_ENDS) and _is_file(word)]
    for word in words:
        if word.lower().endswith(_ENDS) and word not in pictures and len(word.split()) == 1:
            raise UsageError(f"there is no picture file {word}; put the whole prompt into quotes if it is part of it")
    return [Path(word) for word in pictures], [word for word in words if word not in pictures]


def picture_part(path: Path) -> dict[str, Any]:
    """The part of a message that a picture file is. Raises UsageError for one that cannot be read."""
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return {"type": "image", "image": data, "name": str(path)}


def check_sees(stored: StoredModel) -> None:
    """Raises UsageError, before anything is loaded, for a model that takes text alone."""
    if why := why_no_vision(stored):
        raise UsageError(why)
    check_decoder()


def _is_file(word: str) -> bool:
    try:
        return Path(word).expanduser().is_file()
    except OSError:  # a name that is too long, say
        return False
