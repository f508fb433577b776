"""Models of the same weights keep them once: equal files of a store are hard links of one file."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from moeinf.errors import StoreError
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import Manifest


def share_files(library: Library, made: StoredModel) -> None:
    """Puts files of a model that was made just now in the place of equal ones of other models.

    Not the other way round: what was made now has been read back, while the files of others may be damaged. Where the
    file system knows no hard links, both stay.
    """
    ours = _contents(made.manifest)
    with library.lock(), suppress(OSError):
        for other in library.list():
            with suppress(StoreError):
                if other.id != made.id:
                    same = {name for name, content in _contents(other.manifest).items() if ours.get(name) == content}
                    _link(made.path, other.path, same)


def _contents(manifest: Manifest) -> dict[str, object]:
    """What tells the content of each file."""
    shards = {shard.file: (shard.num_bytes, shard.sha256) for shard in manifest.shards}
    return shards | {file.file: (file.num_bytes, file.sha256) for file in manifest.all_files}


def _link(source: Path, target: Path, names: set[str]) -> None:
    """Replaces files one by one: whoever has the old one open keeps it. A kill leaves only what `rm` sweeps away."""
    apart = {name for name in names if not os.path.samefile(source / name, target / name)}
    if not apart:
        return
    aside = target.with_name(f".trash-{target.name}-{os.getpid()}")
    aside.mkdir()
    try:
        for name in sorted(apart):
            os.link(source / name, aside / name)
            os.replace(aside / name, target / name)
    finally:
        shutil.rmtree(aside)
