"""What is written for a model: names of stored models, and references to repositories of the Hub.

A name is [[HOST[:PORT]/]NAMESPACE/]MODEL[:TAG], as ollama has it. Capitals tell names apart, also on disks that ignore
them, and whoever writes others than a name has still means it where no other name is that near.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

from moeinf.errors import UsageError
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.gguf_models import model_files

DEFAULT_TAG = "latest"
MTP = "mtp"  # the architecture of a layer that guesses tokens (multi-token prediction), and what --draft calls it
MOST_CHARS = 4096  # of what may be a name or say where a model is from, as of a path
MOST_FILE_BYTES = 240  # of the name of a folder or file that stands for a part of a name
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_PORT = re.compile(r":\d{1,5}$")
_HUB_HOSTS = ("hf.co", "www.hf.co", "huggingface.co", "www.huggingface.co")
_REGISTRY = re.compile(r"(?:https?://)?registry\.ollama\.ai/", re.IGNORECASE)  # which ollama leaves out
_LIBRARY = re.compile(r"library/(?=[^/]+$)", re.IGNORECASE)  # likewise
DEFAULT_BRANCH = "main"  # of every model on the Hub
LEAST_COMMIT = 7  # digits of a commit that are taken for one
_HUB_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://", re.IGNORECASE)
_REPO = re.compile(r"([^/\s@:.~][^/\s@:]*/[^/\s@:]+)(?::([^/\s@:]+))?(?:@(\S+))?")
_GGUF_PAGE = re.compile(r"([^/\s@:]+/[^/\s@:]+)/(?:blob|resolve)/([^/\s]+)/(\S+\.gguf)(?:\?\S*)?", re.IGNORECASE)
_COMMIT = re.compile(rf"[0-9a-f]{{{LEAST_COMMIT},40}}")
_GGUF_END = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_WINDOWS = re.compile(r"([A-Za-z]):[\\/](.*)", re.DOTALL)
_WSL = re.compile(r"[\\/]{2}wsl(?:\$|\.localhost)[\\/][^\\/]+[\\/](.*)", re.IGNORECASE | re.DOTALL)
_COMMIT_DIGITS = 12  # of a commit, in a name


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
    layers = set(map(mtp_name, names))  # which run with their models alone
    tagged = sorted(each for each in names if each.rpartition(":")[0].lower() == name.lower() and each not in layers)
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


def outside_source(text: str) -> ModelSource | None:
    """What a path or an address of the Hub means, which go before stored names; None for what is neither.

    A path is told by its form, or it is the name of a checkpoint folder here. Raises UsageError for one of Windows.
    """
    _refuse_windows(text)
    address = address_source(text)
    path = os.path.expanduser(text)
    looks_so = text in (".", "..", "~") or text.startswith(("/", "./", "../", "~/"))
    on_the_hub = ":" in path or address is not None  # org/repo:FILE.gguf, or a page
    is_gguf = path.lower().endswith(".gguf") and (os.path.isfile(path) or not on_the_hub)
    is_folder = any(os.path.isfile(os.path.join(path, f"{adapter}config.json")) for adapter in ("", "adapter_"))
    if "\0" in text or not (looks_so or is_gguf or is_folder):
        return address
    found = Path(os.path.realpath(path))  # not Path.resolve, which raises for a loop of links
    if found.parent.name == "blobs" and is_gguf:  # of the Hub's cache, where the link has the file's name
        found = Path(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    only = _only_gguf(found)
    if only is not None:
        return ModelSource("file", str(only))
    is_file = (found.suffix.lower() == ".gguf" and not found.is_dir()) or _is_blob(found)
    return ModelSource("file" if is_file else "folder", str(found))


def _refuse_windows(text: str) -> None:
    """As it is copied from there, and as Windows calls files of Linux under WSL."""
    drive, inside = _WINDOWS.fullmatch(text), _WSL.fullmatch(text)
    if (drive is None and inside is None) or os.path.exists(text):
        return
    here = f"/mnt/{drive[1].lower()}/{drive[2]}" if drive is not None else f"/{inside[1] if inside else ''}"
    raise UsageError(f"{text} is a path of Windows; under WSL it is {here.replace(chr(92), '/')}")


def _only_gguf(folder: Path) -> Path | None:
    """The model of a folder that holds nothing but it, as programs that fetch GGUF files leave it."""
    try:
        names = os.listdir(folder)
    except OSError:  # no folder, or one that may not be read: what opens it says so
        return None
    files = model_files(names)
    return folder / next(iter(files.values())) if len(files) == 1 and "config.json" not in names else None


def _is_blob(path: Path) -> bool:
    """Whether this is a GGUF file by the name that ollama gives to files."""
    return _BLOB.fullmatch(path.name) is not None and path.is_file()


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
    """The name of what is pulled: the file's, the folder's or the repository's, with a tag that tells models apart."""
    if source.kind in ("file", "folder"):
        path = Path(source.location)
        return name_from(path.stem if source.kind == "file" else path.name)
    word = name_from(source.location) if "/" in source.location else "model"
    file = name_from(_GGUF_END.sub("", source.file.rpartition("/")[2])) if source.file else ""
    tag = "-".join(filter(None, (revision_tag(source.revision), file)))[:80]
    return f"{word}:{tag}" if tag else word


def mtp_name(full: str) -> str:
    """Under which the layer of a model that guesses tokens is stored: `qwen3-next:q4_k-mtp` of `qwen3-next:q4_k`."""
    return f"{full}-{MTP}"


def full_name(name: str) -> str:
    """Completes a name that a user gave to `name:tag`. Raises UsageError."""
    return ":".join(parse_name(name))


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
