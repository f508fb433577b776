"""The GGUF files of a repository that make up one model: its parts and its tower, by their headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.gguf.header import Gguf, GgufHeader, join_parts, parse_gguf, part_names
from moeinf.pull.gguf.gguf_files import choose
from moeinf.pull.gguf.index import all_files, check_runs
from moeinf.pull.gguf.towers import NONE, with_tower
from moeinf.pull.hub.repository import HubRepository
from moeinf.store.manifest import ModelSource

_POSITIONS = ("rope_freqs.", "rope_factors_")  # tensors whose numbers a config is made of


class HubFiles:
    """A model of one GGUF file, or of all parts of a split.

    parts: their names in the repository. tower: likewise; "" for text alone. gguf: the headers of all files, without
    what they only point to.
    """

    def __init__(self, repository: HubRepository, tag: str, mmproj: str | None, note: Callable[[str], None]) -> None:
        """tag: or a file's name; "" for the usual one. mmproj: the repository's file of its tower, or "none"; None:
        the one beside it, if any is.

        Reads the headers alone, by range. Raises CheckpointError and UnsupportedModelError.
        """
        self._repository = repository
        first = choose(repository.names, tag, repository.repo)
        folder = first.rpartition("/")[0]
        header = self._header(first)
        plain = part_names(header, first.rpartition("/")[2], f"{repository.repo}: {first}")
        self.parts: Sequence[str] = [f"{folder}/{each}" if folder else each for each in plain]
        missing = [each for each in self.parts if each not in repository.names]
        if missing:
            raise CheckpointError(f"{repository.repo} lacks {missing[0]}, a part of {first}; take another of its files")
        headers = [header, *(self._header(each) for each in self.parts[1:])]
        joined = join_parts([self._placed(each) for each in zip(self.parts, headers, strict=True)])
        tensors = {name: tensor for name, tensor in joined.tensors.items() if not name.startswith(_POSITIONS)}
        joined = replace(joined, tensors=tensors)
        check_runs(joined)
        if mmproj not in (None, NONE) and mmproj not in repository.names:
            raise CheckpointError(f"{repository.repo} has no file {mmproj!r:.100}, which --mmproj names")
        beside = [name for name in repository.names if name.rpartition("/")[0] in (folder, "")]  # or in no folder
        self.gguf, self.tower = with_tower(joined, mmproj, beside, self._tower, note)

    @property
    def source(self) -> ModelSource:
        return replace(self._repository.origin, file=self.parts[0])

    @property
    def all(self) -> Sequence[str]:
        """The parts, and the tower's."""
        return [*self.parts, *([self.tower] if self.tower else [])]

    @property
    def fingerprint(self) -> str:
        """Of the download, which either kind of pull goes on with."""
        return ":".join([self._repository.fingerprint, self.parts[0], *([self.tower] if self.tower else [])])

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in all_files(self.gguf))

    def _header(self, part: str) -> GgufHeader:
        repository = self._repository
        return parse_gguf(repository.reader(part), repository.num_bytes(part), f"{repository.repo}: {part}")

    def _placed(self, part: tuple[str, GgufHeader]) -> tuple[Path, GgufHeader]:
        """What errors call a file."""
        return Path(f"{self._repository.repo}: {part[0].rpartition('/')[2]}"), part[1]

    def _tower(self, name: str) -> Gguf:
        return join_parts([self._placed((name, self._header(name)))])
