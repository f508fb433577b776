"""Names of stored models: what is allowed, and how a name is made from a path or a repository."""

from __future__ import annotations

import re

from moeinf.errors import UsageError

DEFAULT_TAG = "latest"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


def parse_name(text: str) -> tuple[str, str]:
    """Parses `name` or `name:tag` to (name, tag). Refuses separators and `..`, so that no name leaves the store."""
    name, colon, tag = text.partition(":")
    tag = tag if colon else DEFAULT_TAG
    for word in (name, tag):
        if not is_word(word):
            raise UsageError(
                f"{text[:100]!r} is not a model name: letters, digits and _ . - only, at most 80, "
                "with a tag behind one colon if wanted"
            )
    return name, tag


def is_word(text: str) -> bool:
    return bool(_WORD.fullmatch(text)) and ".." not in text


def name_from(text: str) -> str:
    """Makes a valid name of the last component of a path or repository: lower case, other characters become `-`."""
    last = re.split(r"[/\\]", text.rstrip("/\\"))[-1].lower()
    word = re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9_.-]+", "-", last)).lstrip(".-")[:80]
    return word or "model"
