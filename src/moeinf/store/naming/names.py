"""Names of stored models: what is allowed, which of them is meant, and how one is made from a path or a repository.

A name is [[HOST[:PORT]/]NAMESPACE/]MODEL[:TAG], as ollama has it. Capitals tell names apart, also on disks that ignore
them, and whoever writes others than a name has still means it where no other name is that near.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote

from moeinf.errors import UsageError

DEFAULT_TAG = "latest"
MOST_CHARS = 4096  # of what may be a name or say where a model is from, as of a path
MOST_FILE_BYTES = 240  # of the name of a folder or file that stands for a part of a name
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_PORT = re.compile(r":\d{1,5}$")
_HUB_HOSTS = ("hf.co", "www.hf.co", "huggingface.co", "www.huggingface.co")
_REGISTRY = re.compile(r"(?:https?://)?registry\.ollama\.ai/", re.IGNORECASE)  # which ollama leaves out
_LIBRARY = re.compile(r"library/(?=[^/]+$)", re.IGNORECASE)  # likewise


def plain_name(text: str) -> str:
    """The name without ollama's registry and its library: `registry.ollama.ai/library/demo:chat` is `demo:chat`."""
    rest = text[match.end() :] if (match := _REGISTRY.match(text)) else text
    return rest[match.end() :] if (match := _LIBRARY.match(rest)) else rest


def parse_name(text: str) -> tuple[str, str]:
    """Parses a name to (name, tag). Refuses `..` and whatever else could lead out of the store. Raises UsageError."""
    path, slash, last = plain_name(text[: MOST_CHARS + 1]).rpartition("/")
    word, colon, tag = last.partition(":")
    tag = tag if colon else DEFAULT_TAG
    *host, space = path.split("/") if slash else ["default"]
    words = (word, tag, space, *(_PORT.sub("", each) for each in host))
    name = path + slash + word
    if len(text) > MOST_CHARS or not all(map(is_word, words)) or len(host) > 1 or len(file_of(name)) > MOST_FILE_BYTES:
        raise UsageError(
            f"{text[:100]!r} is not a model name: letters, digits and _ . - only, at most 80, "
            "with a tag behind one colon if wanted, and NAMESPACE/ or HOST/NAMESPACE/ before it"
        )
    if host and host[0].lower() in _HUB_HOSTS:
        raise UsageError(f"{text[:100]!r} is an address of the Hub, and no name; take one without {host[0]}/")
    return name, tag


def is_word(text: str) -> bool:
    return bool(_WORD.fullmatch(text)) and ".." not in text


def has_tag(reference: str) -> bool:
    return ":" in reference.rpartition("/")[2]


def meant(reference: str, names: Collection[str]) -> list[str]:
    """The full names that a reference may mean: itself, else those with other capitals, else one with another tag.

    Only where the reference has no tag, and each name but for its tag is the same, tags are looked at. Raises
    UsageError for what is no name.
    """
    name, tag = parse_name(reference)
    full = f"{name}:{tag}"
    if full in names:
        return [full]
    found = sorted(each for each in names if each.lower() == full.lower())
    if found or has_tag(reference):
        return found
    tagged = sorted(each for each in names if each.rpartition(":")[0].lower() == name.lower())
    return [each for each in tagged if each.rpartition(":")[0] == name] or tagged


def file_of(word: str) -> str:
    """The file or folder that stands for a name or a tag: one of its own on every disk, whatever the disk ignores."""
    return re.sub(r"[^a-z0-9_.-]", lambda each: f"%{ord(each[0]):02X}", word)


def word_of(file: str) -> str:
    """The name or the tag that a file or folder stands for; those of older versions have capitals as they are."""
    return unquote(file)


def name_from(text: str) -> str:
    """Makes a valid name of the last component of a path or repository: lower case, other characters become `-`."""
    return word_from(re.split(r"[/\\]", text.rstrip("/\\"))[-1]) or "model"


def word_from(text: str) -> str:
    """Makes a valid word of any text; "" where nothing is left."""
    return re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9_.-]+", "-", text.lower())).lstrip(".-")[:80]
