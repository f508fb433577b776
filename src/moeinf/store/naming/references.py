"""What a reference to a repository of the Hub means: which repository, revision and file, and the name that it gets."""

from __future__ import annotations

import re

from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import DEFAULT_TAG, name_from, word_from

DEFAULT_BRANCH = "main"  # of every model on the Hub
LEAST_COMMIT = 7  # digits of a commit that are taken for one
_HUB_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://", re.IGNORECASE)
_REPO = re.compile(r"([^/\s@:.~][^/\s@:]*/[^/\s@:]+)(?::([^/\s@:]+))?(?:@(\S+))?")
_GGUF_PAGE = re.compile(r"([^/\s@:]+/[^/\s@:]+)/(?:blob|resolve)/([^/\s]+)/(\S+\.gguf)(?:\?\S*)?", re.IGNORECASE)
_COMMIT = re.compile(rf"[0-9a-f]{{{LEAST_COMMIT},40}}")
_GGUF_END = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_COMMIT_DIGITS = 12  # of a commit, in a name


def address_source(text: str) -> ModelSource | None:
    """What an address of the Hub means; None for what is none. A page that is no repository's is one all the same."""
    prefix = _HUB_PREFIX.match(text)
    if prefix is None:
        return None
    rest = text[prefix.end() :]
    page = _GGUF_PAGE.fullmatch(rest)
    if page is not None:
        return ModelSource("hub", page[1], asked_revision(page[2]), page[3])
    rest = re.sub(r"/tree/([^/]+)/?$", r"@\1", rest).rstrip("/")
    return repository_source(rest) or ModelSource("hub", rest)


def repository_source(text: str) -> ModelSource | None:
    """What org/repo[:GGUF tag][@revision] means; None for what has another form."""
    match = _REPO.fullmatch(text)
    if match is None:
        return None
    tag = "" if match[2] is None or match[2].lower() == DEFAULT_TAG else match[2]
    return ModelSource("hub", match[1], asked_revision(match[3] or ""), tag)


def asked_revision(revision: str) -> str:
    """The revision that is asked for, "" for the default branch by whatever name."""
    return "" if revision == DEFAULT_BRANCH else revision


def is_commit(revision: str) -> bool:
    """Whether this may be the id of a commit, whole or shortened."""
    return bool(_COMMIT.fullmatch(revision))


def written(source: ModelSource) -> str:
    """The reference that means a source."""
    file = f":{source.file}" if source.file else ""
    return f"{source.location}{file}" + (f"@{source.revision}" if source.revision else "")


def default_name(source: ModelSource) -> str:
    """The name of what is pulled from the Hub: the repository's, and as a tag what tells its models apart."""
    word = name_from(source.location) if "/" in source.location else "model"
    file = name_from(_GGUF_END.sub("", source.file.rpartition("/")[2])) if source.file else ""
    tag = "-".join(filter(None, (revision_tag(source.revision), file)))[:80]
    return f"{word}:{tag}" if tag else word


def revision_tag(revision: str) -> str:
    """What a revision is called in a tag; "" for the default branch."""
    if is_commit(revision):
        return revision[:_COMMIT_DIGITS]
    word = word_from(revision) or ("revision" if revision else "")
    return f"revision-{word}"[:80] if word == DEFAULT_TAG else word


def is_file(tag: str, file: str) -> bool:
    """Whether a tag means this GGUF file of a repository: its quantisation, or its name; "" means any."""
    stem, plain = (_GGUF_END.sub("", each.lower()) for each in (file, tag))
    return not tag or stem == plain or stem.endswith(tuple(f"{before}{plain}" for before in "-._/"))
