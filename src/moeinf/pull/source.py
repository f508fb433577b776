"""The source of a checkpoint: what every source offers, and a local folder as a source."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from moeinf.errors import CheckpointError
from moeinf.pull.coded.declared import declared_by
from moeinf.store.files import (
    LFS_POINTER,
    errors_named,
    open_regular,
    parse_json_object,
    read_small,
    stands_for_another,
)
from moeinf.store.format import Header, read_header
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.gguf_models import join_them, whole_of
from moeinf.store.naming.lookup import printable
from moeinf.types import JsonObject

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"  # of PEFT
POOLING_FILE = "1_Pooling/config.json"  # of sentence-transformers: how the states of tokens become a vector
_CHAT_CODE = re.compile(r"(encoding/[\w.-]+|encoding_\w+)\.py")
TOOLS_TEMPLATE = "additional_chat_templates/tool_use.jinja"  # of transformers: the template of chats with tools
_MOST_JSON_BYTES = {
    "config.json": 1 << 20,
    "adapter_config.json": 1 << 20,
    "generation_config.json": 1 << 20,
    POOLING_FILE: 1 << 20,
    INDEX_FILE: 64 << 20,
}
_MOST_SMALL_BYTES = 100_000_000
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")
# Of a checkpoint that was split for several processors: matrices lie in shares, under one name in the file of each.
RANK_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,180}-TP-(\d{3}|common)\.safetensors")
# What a stored model takes over beside weights. An allow-list: nothing of a checkpoint can pose as a file of the store.
_KEPT_NAME = re.compile(
    r"(config|generation_config|(pre)?processor_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|chat_template|modules|1_Pooling/config)\.json"
    r"|(additional_chat_templates/tool_use|chat_template)\.jinja|merges\.txt|tokenizer\.model|tiktoken\.model"
    r"|(LICEN[CS]E|NOTICE|COPYING)(\.(txt|md))?"
)


@dataclass(frozen=True, slots=True)
class Shards:
    """The safetensors files of a checkpoint. weight_map: tensor -> file as its index has it, None without an index."""

    files: tuple[str, ...]
    weight_map: Mapping[str, str] | None


@runtime_checkable
class Source(Protocol):
    """A checkpoint: a local folder, or a repository of the Hub. Every method may block on disk or network."""

    @property
    def origin(self) -> ModelSource: ...

    @property
    def requested(self) -> str:
        """The revision that was asked for; "" for the default and for folders."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that differs when a byte of the checkpoint may differ."""
        ...

    @property
    def shards(self) -> Shards: ...

    @property
    def told(self) -> tuple[str, ...]:
        """Lines for users, of what its name does not say."""
        ...

    def chat_code(self) -> str:
        """The text of the code in it that writes chats; "" without any. It is not run."""
        ...

    def kept_files(self) -> list[str]:
        """Returns the names of the small files that a stored model takes over."""
        ...

    def read_file(self, name: str) -> bytes: ...

    def shard_bytes(self, shard: str) -> int: ...

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        """Returns the bytes that `open_shard` has to download into the folder; 0 if the shard is on this machine."""
        ...

    def copied_bytes(self, shard: str, folder: Path) -> int:
        """Returns the bytes that `open_shard` writes into the folder beside those that it downloads."""
        ...

    def headers(self) -> Mapping[str, Header]:
        """Reads the header of every shard, without downloading the shard."""
        ...

    def open_shard(self, shard: str, folder: Path) -> Path:
        """Returns the shard as a whole and checked file, downloaded into the folder if need be."""
        ...

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        """Deletes what `open_shard` has written; with `keep` not what it has downloaded."""
        ...

    def check_unchanged(self) -> None:
        """Raises CheckpointError where the checkpoint is no longer the one of the fingerprint."""
        ...


def is_kept(name: str) -> bool:
    return bool(_KEPT_NAME.fullmatch(name))


def read_config(source: Source) -> JsonObject:
    """Reads a source's config.json. Raises CheckpointError, and UnsupportedModelError for weights that are not read."""
    config = parse_json_object(source.read_file("config.json"), "config.json", CheckpointError)
    declared_by(config)
    return config


def find_shards(names: Collection[str], read: Callable[[str], bytes], where: str, base: str = "") -> Shards:
    """Finds the weight files among a source's file names. base: the original that the model card names.

    Raises CheckpointError in words that tell what is there instead.
    """
    if SINGLE_FILE in names:  # as transformers reads them: an index beside it is one of other files
        shards = Shards((SINGLE_FILE,), None)
    elif of_ranks := tuple(sorted(name for name in names if RANK_FILE.fullmatch(name))):  # an index names one rank's
        shards = Shards(of_ranks, None)
    elif INDEX_FILE in names:
        shards = parse_index(read(INDEX_FILE))
    else:
        remedy = f"; try `moeinf pull {base}`" if base else ""
        if ADAPTER_CONFIG in names:
            model = parse_json_object(read(ADAPTER_CONFIG), ADAPTER_CONFIG, CheckpointError)
            of = model.get("base_model_name_or_path") or base or "MODEL"
            remedy = f": pull its model with it, `moeinf pull {printable(str(of))} --lora {where}`"
        raise CheckpointError(f"{where} {_instead_of_shards(names)}{remedy}")
    for shard in shards.files:
        if shard not in names:
            raise CheckpointError(
                f"{where} lacks {shard}, which {INDEX_FILE} names; {_of_another_split(shards, names)}"
            )
    if "config.json" not in names:
        raise CheckpointError(f"{where} has no config.json: not a Hugging Face checkpoint")
    return shards


def chat_code(names: Collection[str], read: Callable[[str], bytes]) -> str:
    """The text of the code in a checkpoint that writes chats, as in DeepSeek-V3.2's and Kimi K3's; "" without any."""
    found = sorted(name for name in names if _CHAT_CODE.fullmatch(name))
    return "\n".join(read(name).decode("utf-8", "replace") for name in found)


def _of_another_split(shards: Shards, names: Collection[str]) -> str:
    """The remedy where a file of the index is not there."""
    others = sorted(name for name in names if _SHARD_NAME.fullmatch(name) and name not in shards.files)
    if not others:
        return "fetch it, or the whole checkpoint again"
    return f"{others[0]} is not in that index: fetch the index that belongs to it, or the files that the index names"


def most_bytes(name: str) -> int:
    """Returns the largest size of a small file that is read. Parsed in this process, it takes many times more."""
    return _MOST_JSON_BYTES.get(name, _MOST_SMALL_BYTES)


def _instead_of_shards(names: Collection[str]) -> str:
    if ADAPTER_CONFIG in names:
        return "is an adapter"
    if any(name.lower().endswith(".gguf") for name in names):
        return "has only GGUF files; name the one that you want"
    cut = sorted(filter(None, map(whole_of, names)))
    if cut:
        return f"has {cut[0]}, but {join_them(cut[0])}"
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return "has only PyTorch files; moeinf needs safetensors, so pull the original repository of the model"
    others = sorted(name for name in names if _SHARD_NAME.fullmatch(name))
    if others:
        return f"has {others[0]}, but no {INDEX_FILE}, which says which files belong together; fetch the index"
    return f"has neither {SINGLE_FILE} nor {INDEX_FILE}: not a checkpoint in safetensors form"


def _instead_of_folder(path: Path) -> str:
    if whole_of(path.name):
        return f"is not all of {whole_of(path.name)}: {join_them(whole_of(path.name))}"
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return "is a GGUF file by its first bytes; give it a name that ends in .gguf"
    return "is not a folder; give the folder of a checkpoint, or org/repo"


def parse_index(data: bytes) -> Shards:
    """Parses model.safetensors.index.json. Its file names must be plain, so that none leads out of the folder."""
    weight_map = parse_json_object(data, INDEX_FILE, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX_FILE}: weight_map is missing or empty; fetch that file again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
            raise CheckpointError(
                f"{INDEX_FILE}: weight_map puts {name[:100]!r} into {str(file)[:100]!r}, "
                "which is not a plain safetensors file name"
            )
    return Shards(tuple(sorted(set(weight_map.values()))), weight_map)


class FolderSource:
    """A checkpoint folder on this machine. It is only read."""

    def __init__(
        self, path: Path, origin: ModelSource | None = None, fingerprint: str = "", over: Path | None = None
    ) -> None:
        """fingerprint: of what the folder is known to be a copy of; else one is made of its files.

        over: a folder whose files stand beside those of `path`, or in their place.
        Raises CheckpointError where the folder is not a checkpoint in safetensors form.
        """
        self.requested = ""
        self._path = Path(os.path.realpath(path))
        self.origin = origin or ModelSource("folder", str(self._path))
        with errors_named(self._path, CheckpointError):
            if not self._path.is_dir():
                raise CheckpointError(f"{path} {_instead_of_folder(self._path)}")
            self._folders = {entry.name: self._path for entry in os.scandir(self._path)}  # where each file lies
            if over is not None:
                self._folders |= {entry.name: over for entry in os.scandir(over)}
            inner = (name for name in (POOLING_FILE, TOOLS_TEMPLATE) if (self._path / name).is_file())
            self._folders |= dict.fromkeys(inner, self._path)
            self._names = set(self._folders)
        self.shards = find_shards(self._names, self.read_file, str(path))
        self.told: tuple[str, ...] = ()
        self._state_at_open = self._state()
        self.fingerprint = fingerprint or self._state_at_open

    def kept_files(self) -> list[str]:
        return sorted(name for name in self._names if is_kept(name))

    def read_file(self, name: str) -> bytes:
        path = self._file(name)
        with errors_named(path, CheckpointError):
            return read_small(path, most_bytes(name))

    def chat_code(self) -> str:
        inner = [f"encoding/{path.name}" for path in (self._path / "encoding").glob("*.py")]
        return chat_code([*self._names, *inner], self.read_file)

    def shard_bytes(self, shard: str) -> int:
        path = self._file(shard)
        with errors_named(path, CheckpointError):
            return path.stat().st_size

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0

    def copied_bytes(self, shard: str, folder: Path) -> int:
        return 0

    def headers(self) -> Mapping[str, Header]:
        found = {}
        for shard in self.shards.files:
            path = self._file(shard)
            with errors_named(path, CheckpointError):
                found[shard] = read_header(path)
        return found

    def open_shard(self, shard: str, folder: Path) -> Path:
        return self._file(shard)

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        """Does nothing, as nothing was written."""

    def check_unchanged(self) -> None:
        if self._state() != self._state_at_open:
            raise CheckpointError(f"{self._path} changed while it was converted; repeat the pull")

    def _file(self, name: str) -> Path:
        """Returns a file of the folder with its links resolved, which may lead out of it, as in an overlay.

        What is read as text, and may be shown, has to be what its name says: a link of such a file leads to a file of
        the same name, or into the Hub's cache, where `snapshots/<commit>/<name>` is a link to `blobs/<hash>`. Raises
        CheckpointError for any other.
        """
        folder = self._folders.get(name, self._path)
        path = Path(os.path.realpath(folder / name))
        cached = path.parent.name == "blobs" and path.parent.parent.name.startswith("models--")
        if path.parent == Path(os.path.realpath((folder / name).parent)):
            return path
        if not path.is_file():
            raise CheckpointError(
                f"{self._path / name} is a link to {path}, which is no file; put the file itself there"
            )
        if path.name == name or cached or _SHARD_NAME.fullmatch(name):
            return path
        raise CheckpointError(
            f"{self._path / name} is a link to {path}, a file of another name out of the checkpoint's folder; "
            "put the file itself there"
        )

    def _state(self) -> str:
        """Hashes names, sizes, times and inodes, as reading the weights would take as long as converting them."""
        state = []
        for name in (*self.shards.files, *self.kept_files()):
            path = self._file(name)
            with errors_named(path, CheckpointError):
                fd = open_regular(path)  # refuses FIFOs and devices before anything waits for them
                try:
                    begins, info = os.pread(fd, len(LFS_POINTER), 0), os.fstat(fd)
                finally:
                    os.close(fd)
            if begins == LFS_POINTER:
                raise CheckpointError(stands_for_another(str(path)))
            state.append([name, info.st_size, info.st_mtime_ns, info.st_ino])
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()
