"""The journal of a pull: which shards are on the disk for good, in a file that survives a kill."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from moeinf.errors import MALFORMED, StoreError
from moeinf.pull.checkpoint.conversion_plan import Conversion
from moeinf.pull.coded.blocks import Loss, Losses, added
from moeinf.store.files import errors_named, is_there, make_folders, parse_json_object, publish, read_small
from moeinf.store.processes.partials import JOURNAL_FILE, PulledAs
from moeinf.types import Json

_VERSION = 2
_DAMAGED = "the journal of the interrupted pull is damaged; starting again"


class Journal:
    """The work folder of a pull, and the record of the shards that are done.

    It belongs to one state of the source and one layout. A shard is recorded after its bytes have reached the disk, so
    that the record is never ahead of them: the opposite of a write-ahead log, and nothing needs to be replayed.
    """

    def __init__(self, folder: Path, asked: PulledAs, fingerprint: str) -> None:
        self._folder = folder
        self._asked = asked
        self._fingerprint = fingerprint
        self.model_folder = folder / "model"  # becomes the stored model
        self.download_folder = folder / "downloads"
        self._layout = ""
        self._converted: list[str] = []
        self._losses: dict[str, Losses] = {}  # by shard
        self.own: frozenset[str] | None = None  # copies that differ from what they would be copies of, once compared

    def begin(self) -> None:
        """Makes the folder, so that shards can be downloaded before the layout is known."""
        with errors_named(self._folder):
            make_folders(self.download_folder)
            if not (self._folder / JOURNAL_FILE).exists():
                self._save()

    def own_tensors(self) -> frozenset[str] | None:
        """What an earlier pull of this state of the source, or this one, has found; None where none has."""
        if self.own is None:
            with suppress(FileNotFoundError, StoreError):
                value = parse_json_object(read_small(self._folder / JOURNAL_FILE), JOURNAL_FILE, StoreError)
                names = value.get("own")
                if value.get("fingerprint") == self._fingerprint and isinstance(names, list):
                    self.own = frozenset(map(str, names))
        return self.own

    def open(self, conversion: Conversion) -> str:
        """Takes over the work in the folder where it fits; else empties the folder, and returns in one line why.

        Raises StoreError, DiskSpaceError.
        """
        self._layout = _layout_hash(conversion)
        with errors_named(self._folder):
            notice = self._load(conversion)
            if notice and self._folder.exists():
                shutil.rmtree(self._folder)
            if notice == "" and self.model_folder.exists():  # of another layout; what was downloaded stays
                shutil.rmtree(self.model_folder)
            make_folders(self.model_folder)
            make_folders(self.download_folder)
            self._save()
        return notice or ""

    def peek(self, conversion: Conversion) -> None:
        """Like `open`, but changes nothing on the disk."""
        self._layout = _layout_hash(conversion)
        with errors_named(self._folder):
            self._load(conversion)

    def converted(self, shard: str) -> bool:
        return shard in self._converted

    def losses(self) -> Losses:
        """Returns what was lost in all shards, which does not depend on the pulls that it took."""
        return added(self._losses[shard] for shard in sorted(self._losses))

    def record(self, shard: str, losses: Losses) -> None:
        """Records a shard whose bytes have reached the disk, and what was lost on their way."""
        self._converted.append(shard)
        self._losses[shard] = losses
        with errors_named(self._folder):
            self._save()

    def written_bytes(self) -> int:
        """Disk space that the model folder takes so far. Its files are sparse until they are filled."""
        if not self.model_folder.exists():
            return 0
        with errors_named(self.model_folder):
            return sum(path.stat().st_blocks * 512 for path in self.model_folder.iterdir())

    def close(self) -> None:
        """Deletes the work folder, after the model has left it."""
        with errors_named(self._folder):
            if self._folder.exists():
                shutil.rmtree(self._folder)

    def _load(self, conversion: Conversion) -> str | None:
        """Loads what an earlier pull recorded.

        Returns None if this pull can go on with it, else the reason why not; "" if there is no record.
        """
        try:
            value = parse_json_object(read_small(self._folder / JOURNAL_FILE), JOURNAL_FILE, StoreError)
        except FileNotFoundError:
            return ""
        except StoreError:
            return _DAMAGED
        known = [value.get(key) for key in ("version", "fingerprint", "layout", "converted")]
        losses = _parsed_losses(value.get("losses", {}))
        if not isinstance(known[3], list) or losses is None:
            return _DAMAGED
        if known[1] != self._fingerprint:
            return "the source has changed since the interrupted pull; starting again"
        if known[:1] != [_VERSION] or known[2] != self._layout:
            return "the interrupted pull was made by another version of moeinf; starting again" if known[3] else ""
        if known[3] and not self._all_there(conversion):
            return "files of the interrupted pull are missing; starting again"
        self._converted = [str(shard) for shard in known[3]]
        self._losses = losses
        return None

    def _all_there(self, conversion: Conversion) -> bool:
        """Tells whether every weight file has its full size, which `create_files` gave it before the first record."""
        sizes = conversion.file_sizes()
        paths = {name: self.model_folder / name for name in sizes}
        return all(is_there(path) and path.stat().st_size == sizes[name] for name, path in paths.items())

    def _save(self) -> None:
        value = {
            "version": _VERSION,
            **self._asked.to_json(),
            "fingerprint": self._fingerprint,
            "layout": self._layout,
            "converted": self._converted,
            "losses": self._losses,
            **({} if self.own is None else {"own": sorted(self.own)}),
        }
        publish(self._folder / JOURNAL_FILE, json.dumps(value).encode())


def _parsed_losses(value: Json) -> dict[str, Losses] | None:
    """Returns what `_save` has written, None for anything else."""
    try:
        return {
            str(shard): {str(kind): Loss(*(float(number) for number in loss)) for kind, loss in losses.items()}
            for shard, losses in value.items()
        }
    except MALFORMED:
        return None


def _layout_hash(conversion: Conversion) -> str:
    """Hashes all that decides which byte goes where."""
    parts = (
        conversion.dense_head + conversion.ahead.head + conversion.vision.head,
        repr(conversion.layout).encode(),
        repr(conversion.moe).encode(),
        repr(conversion.formats.dense).encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
