"""The work folders of pulls: listed by what is pulled, held by the one process that works in each, and deleted."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from moeinf.errors import MALFORMED, MoeinfError, StoreError
from moeinf.store.files import errors_named, make_folders, parse_json_object, read_small
from moeinf.store.manifest import ModelSource, parse_source
from moeinf.store.naming.names import DEFAULT_TAG, parse_name, plain_name, written
from moeinf.store.processes.locks import Lock, TakenError, is_taken, take
from moeinf.store.quantisation import DENSE_CHOICES, EXPERT_CHOICES, KEEP, Quantisation
from moeinf.types import JsonMapping, JsonObject

JOURNAL_FILE = "journal.json"
_LOOK_S = 0.5  # between two looks at whether another pull has ended


@dataclass(frozen=True, slots=True)
class PulledAs:
    """What a pull was asked for.

    The journal of the pull keeps it, so that an interrupted pull is found and continued by its name. The source record
    of the model keeps it too, so that a damaged model can be pulled again by its name.
    """

    name: str  # "mixtral:latest"
    source: ModelSource  # its revision is the one that was asked for, "" for the default
    quantisation: Quantisation = KEEP
    adapter: ModelSource | None = None  # that is merged into the weights

    def to_json(self) -> JsonObject:
        value = {"label": self.name, "source": self.source.to_json(), "quantisation": asdict(self.quantisation)}
        return value | ({"adapter": self.adapter.to_json()} if self.adapter else {})


@dataclass(frozen=True, slots=True)
class PartialPull:
    """A pull that is running or was interrupted. Repeating it goes on where it stopped."""

    asked: PulledAs | None  # None where the journal is damaged, or of an older version
    path: Path
    size_bytes: int  # on disk
    running: bool

    @property
    def name(self) -> str:
        """The name by which `rm` and `pull` know it: the folder's name where the journal does not tell."""
        return self.asked.name if self.asked else self.path.name

    def matches(self, reference: str) -> bool:
        """Tells whether a reference given to `rm` is this pull's name or its source, `org/repo[@revision]`."""
        source = written(self.asked.source).lower() if self.asked else ""
        return self.is_named(reference) or reference.lower() == source

    def is_named(self, reference: str) -> bool:
        """Tells whether this is its name, in whatever capitals."""
        names = (self.name.lower(), self.name.lower().removesuffix(f":{DEFAULT_TAG}"))
        return plain_name(reference).lower() in names

    def discard(self) -> int:
        """Deletes the work folder; returns the bytes that were freed. Raises StoreError where the pull is running."""
        with pull_lock(self.path, self.name), errors_named(self.path):
            shutil.rmtree(self.path)
        return self.size_bytes


def partial_folder(home: Path, locator: str) -> Path:
    """Returns the work folder that all pulls of one source share."""
    return home / "partial" / hashlib.sha256(locator.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def find_partials(home: Path) -> Iterator[PartialPull]:
    """Yields the pulls that are running or were interrupted."""
    for folder in sorted(path for path in home.glob("partial/*") if path.is_dir() and not path.is_symlink()):
        with suppress(FileNotFoundError):  # the pull has just ended
            files = [path for path in folder.rglob("*") if path.is_file()]
            size_bytes = sum(path.stat().st_blocks * 512 for path in files)
            yield PartialPull(_asked(folder), folder, size_bytes, is_taken(_lock_file(folder)))


def _asked(folder: Path) -> PulledAs | None:
    path = folder / JOURNAL_FILE
    try:
        values = parse_json_object(read_small(path, 1 << 24), str(path), StoreError)
        return _parse_asked(values, str(path))
    except (OSError, MoeinfError, *MALFORMED):
        return None


def _parse_asked(values: JsonMapping, where: str) -> PulledAs:
    """Raises one of MALFORMED or a MoeinfError for anything but what `PulledAs.to_json` has made."""
    name, source, formats = (values.get(key) for key in ("label", "source", "quantisation"))
    if not (isinstance(name, str) and isinstance(source, dict) and isinstance(formats, dict)):
        raise ValueError("not the journal of a pull")
    if formats.keys() != {"experts", "dense"}:
        raise ValueError("no formats of a pull")
    if formats["experts"] not in EXPERT_CHOICES or formats["dense"] not in DENSE_CHOICES:
        raise ValueError("formats that are not known")
    adapter = values.get("adapter")
    if not isinstance(adapter, dict | None):
        raise ValueError("an adapter that is none")
    merged = None if adapter is None else parse_source(adapter, where)
    return PulledAs(":".join(parse_name(name)), parse_source(source, where), Quantisation(**formats), merged)


def parse_source_record(record: Mapping[str, str]) -> PulledAs | None:
    """Returns what a stored model was pulled as; None where an older version has made it."""
    try:
        return _parse_asked(parse_json_object(record["asked"].encode(), "source record", StoreError), "source record")
    except (MoeinfError, *MALFORMED):
        return None


@contextmanager
def pull_lock(
    folder: Path, label: str, say: Callable[[str], None] | None = None, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Holds the lock of a work folder, in which only one process may work.

    The kernel frees the lock when the process is killed.

    A process that finds it taken says so and waits; without `say` it raises StoreError. waiting: called about twice a
    second meanwhile; what it raises ends the wait.
    """
    path = _lock_file(folder)
    with errors_named(path):
        make_folders(path.parent)
        lock = _acquire(path, label, say, waiting)
    try:
        yield
    finally:
        lock.release(remove=True)


def _lock_file(folder: Path) -> Path:
    return folder.with_suffix(".lock")


def _acquire(path: Path, label: str, say: Callable[[str], None] | None, waiting: Callable[[], None]) -> Lock:
    said = False
    while True:
        try:
            return take(path)
        except TakenError as taken:
            if say is None:
                raise StoreError(f"a pull of '{label}' is running ({taken}); stop it first") from taken
            if not said:
                say(f"another pull of '{label}' is running ({taken}); waiting")
            said = True
        waiting()
        time.sleep(_LOOK_S)
