"""Folders of GGUF files and checkpoints: LM Studio's, llama.cpp's, and the Hub's cache."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from moeinf.errors import MALFORMED, MoeinfError
from moeinf.references.foreign.foreign_model import ForeignModel, Owner, first_files

_CACHED = re.compile(r"(?P<org>[^_]+)_(?P<repo>.+?[-_.]gguf)_(?P<file>.+)\.gguf", re.IGNORECASE)


def lm_studio_models(environment: Mapping[str, str], home: Path) -> Iterator[ForeignModel]:
    """LM Studio keeps MODELS/ORG/REPO/FILE.gguf; its settings may name another folder."""
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    settings = home / ".lmstudio" / "settings.json"
    if settings.is_file():
        try:
            named = json.loads(settings.read_text(encoding="utf-8")).get("downloadsFolder")
            folders += [Path(named)] if isinstance(named, str) and named else []
        except (OSError, *MALFORMED):
            pass  # then the usual folders are all that is known
    for folder in dict.fromkeys(each.resolve() for each in folders if each.is_dir()):
        for repository in sorted(folder.glob("*/*")):
            if repository.is_dir():
                yield from _files("lmstudio", repository, "/".join(repository.parts[-2:]))


def llama_cpp_models(environment: Mapping[str, str], home: Path) -> Iterator[ForeignModel]:
    """llama.cpp keeps CACHE/ORG_REPO_FILE.gguf (common/arg.cpp); newer versions use the Hub's cache."""
    usual = home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "llama.cpp"
    folder = Path(environment.get("LLAMA_CACHE") or usual)
    if folder.is_dir():
        for path, size in first_files(folder):
            found = _CACHED.fullmatch(path.name)
            repo = f"{found['org']}/{found['repo']}" if found else ""
            yield ForeignModel("llama.cpp", f"{repo}:{found['file']}" if found else path.stem, path, size, repo)


def hub_models(environment: Mapping[str, str], home: Path) -> Iterator[ForeignModel]:
    """The Hub's cache keeps models--ORG--REPO/snapshots/COMMIT/FILE, links to blobs."""
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface"
    hub = Path(environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or cache) / "hub")
    for snapshot in sorted(hub.glob("models--*--*/snapshots/*")):
        repo = snapshot.parts[-3].removeprefix("models--").replace("--", "/", 1)
        yield from _files("hub", snapshot, repo)
        if (snapshot / "config.json").is_file():
            yield from _checkpoint(snapshot, repo)


def _files(owner: Owner, folder: Path, repo: str) -> Iterator[ForeignModel]:
    for path, size in first_files(folder):
        yield ForeignModel(owner, f"{repo}:{path.name}", path, size, repo)


def _checkpoint(snapshot: Path, repo: str) -> Iterator[ForeignModel]:
    """A snapshot with all its shards. One that has some of them alone is a download that has not ended, or no model."""
    from moeinf.pull.source import FolderSource  # loads what only a conversion needs

    try:
        source = FolderSource(snapshot)
        size = sum(map(source.shard_bytes, source.shards.files))
    except MoeinfError:
        return
    yield ForeignModel("hub", repo, snapshot, size, repo)
