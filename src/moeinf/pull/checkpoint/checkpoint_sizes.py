"""How many bytes the pull of a checkpoint fetches, converts and reads back, and what it needs of free disk."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from moeinf.pull.checkpoint.conversion_plan import Conversion
from moeinf.pull.checkpoint.convert import read_bytes
from moeinf.pull.checkpoint.journal import Journal
from moeinf.pull.events import Verb
from moeinf.pull.source import Source

_SPACE_MARGIN = 1.02  # for the file system's own records


class Sizes:
    """Of one pull, as far as its journal says that it is done."""

    def __init__(self, source: Source, journal: Journal) -> None:
        self._source, self._journal = source, journal

    def awaited(self, shard: str, conversion: Conversion) -> bool:
        """Tells whether the shard has to be converted, or its scales are needed for one that has to."""
        return any(
            shard in (other, *conversion.others[other])
            for other in self._source.shards.files
            if not self._journal.converted(other)
        )

    def steps(self, conversion: Conversion, downloads: Path, converting: Verb) -> list[tuple[Verb, int, int]]:
        """The bytes of each step, and those done before: fetching, converting, and reading back what was written."""
        fetched, fetched_before, converted, converted_before = 0, 0, 0, 0
        for shard in self._source.shards.files:
            copied = read_bytes(conversion.moves[shard])
            converted += copied
            if self._journal.converted(shard):
                converted_before += copied
            left = self._source.fetch_bytes(shard, downloads) if self.awaited(shard, conversion) else 0
            if left:
                fetched += self._source.shard_bytes(shard)
                fetched_before += self._source.shard_bytes(shard) - left
        return [
            ("pulling", fetched, fetched_before),
            (converting, converted, converted_before),
            ("verifying", conversion.total_bytes, 0),
        ]

    def needed(self, conversion: Conversion, downloads: Path, together: Collection[str]) -> int:
        """Of free disk. together: the shards that have to be there at once."""
        source, journal = self._source, self._journal
        shards = [shard for shard in source.shards.files if not journal.converted(shard)]
        largest = max(
            (sum(self._work_bytes(each, downloads) for each in (shard, *conversion.others[shard])) for shard in shards),
            default=0,
        )
        held = sum(self._work_bytes(shard, downloads) for shard in together)
        return int((max(0, conversion.total_bytes - journal.written_bytes()) + largest + held) * _SPACE_MARGIN)

    def _work_bytes(self, shard: str, downloads: Path) -> int:
        return self._source.fetch_bytes(shard, downloads) + self._source.copied_bytes(shard, downloads)
