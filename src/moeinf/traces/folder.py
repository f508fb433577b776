"""A recorded trace's folder: trace.json says of which model it is, and each finished request has a file of its own."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.errors import UsageError
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small, sync_folder
from moeinf.types import JsonMapping, MoeShape

FACTS_FILE: Final = "trace.json"
WHOLE_FILE: Final = "routing.npz"  # all requests in one: what was imported, or written by other tools
FORMAT: Final = "moeinf trace"
VERSION: Final = 1
_MOST_LAYERS: Final = 10_000
_REQUEST: Final = re.compile(r"request-(\d{6,12})\.(npz|tmp)")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What trace.json holds. model_id: of the store, or "" for a trace that was imported."""

    model: str
    shape: MoeShape
    model_id: str = ""
    version: int = VERSION
    expert_bytes: tuple[int, ...] = ()  # of an expert of each layer, where they differ

    def dumps(self) -> bytes:
        shape = self.shape
        facts = {
            "format": FORMAT,
            "version": self.version,
            "model": self.model,
            "model_id": self.model_id,
            "num_layers": shape.num_layers,
            "num_experts": list(shape.counts) or shape.num_experts,
            "top_k": shape.top_k,
        }
        if self.expert_bytes:
            facts["expert_bytes"] = list(self.expert_bytes)
        return (json.dumps(facts, indent=2) + "\n").encode()


def shape_of(num_layers: int, num_experts: int | list[int], top_k: int) -> MoeShape:
    """num_experts: how many each layer has, in one number or one for each. Raises ValueError for what is no shape."""
    given = num_experts if isinstance(num_experts, list) else [num_experts]
    numbers = (num_layers, top_k, *given)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ValueError("layers, experts and top_k are not whole numbers")
    if not 1 <= num_layers <= _MOST_LAYERS:
        raise ValueError("no model has so many layers, or so few")
    counts = tuple(given) if isinstance(num_experts, list) else (num_experts,) * num_layers
    if len(counts) != num_layers or not 1 <= top_k <= min(counts):
        raise ValueError("layers, experts and top_k do not fit each other")
    return MoeShape(num_layers, max(counts), top_k, counts if len(set(counts)) > 1 else ())


def read_facts(folder: Path) -> TraceFacts | None:
    """What a trace's folder says of itself; None where it has no trace.json.

    Raises UsageError for a trace.json that is damaged, or of a later version.
    """
    path = folder / FACTS_FILE
    try:
        with errors_named(path, UsageError):
            facts = parse_json_object(read_small(path, 1 << 20), str(path), UsageError)
    except UsageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return _facts_of(facts, path)


def _facts_of(facts: JsonMapping, path: Path) -> TraceFacts:
    if facts.get("format") != FORMAT or not isinstance(facts.get("version"), int):
        raise UsageError(f'{path} does not describe a trace (its format is not "{FORMAT}"); name another folder')
    if facts["version"] > VERSION:
        raise UsageError(
            f"{path} has version {facts['version']}, and this moeinf reads up to {VERSION}: use a newer one"
        )
    model, model_id = facts.get("model"), facts.get("model_id", "")
    if not isinstance(model, str) or not isinstance(model_id, str):
        raise UsageError(f"{path} names no model; name another folder")
    try:
        shape = shape_of(facts["num_layers"], facts["num_experts"], facts["top_k"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} does not tell the shape of its model ({error}); name another folder") from error
    expert_bytes = facts.get("expert_bytes", [])
    if not isinstance(expert_bytes, list) or len(expert_bytes) not in (0, shape.num_layers):
        raise UsageError(f"{path} does not tell the size of each layer's experts; name another folder")
    if not all(type(size) is int and size > 0 for size in expert_bytes):
        raise UsageError(f"{path} has a size of experts that is no number of bytes; name another folder")
    return TraceFacts(model, shape, model_id, facts["version"], tuple(expert_bytes))


def request_files(folder: Path) -> list[Path]:
    """The files of the requests that were recorded whole, in the order of their numbers."""
    with errors_named(folder, UsageError):
        found = [(int(match[1]), entry) for entry in os.listdir(folder) if (match := _REQUEST.fullmatch(entry))]
    return [folder / name for _, name in sorted(found) if name.endswith(".npz")]


def size_of_folder(folder: Path) -> int:
    """Bytes of the requests that were recorded."""
    return sum(path.stat().st_size for path in request_files(folder))


def prepare_folder(folder: Path) -> TraceFacts | None:
    """Makes a folder to record into; what it says of itself, where it has a recording to go on with.

    Raises UsageError for a folder of anything else, which stays as it is, and for one that cannot be written.
    """
    with errors_named(folder, UsageError):
        make_folders(folder)
        known, names = read_facts(folder), os.listdir(folder)
    if known is None and not all(name.endswith(".tmp") for name in names):
        raise UsageError(f"{folder} holds other files, and no trace to go on with; name an empty folder")
    if WHOLE_FILE in names:
        raise UsageError(f"{folder} holds a trace that was imported; record into another folder")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} is read-only; record into another folder")
    return known


def open_folder(folder: Path, facts: TraceFacts) -> None:
    """Makes a folder ready for requests of this model. Raises UsageError as prepare_folder, and for another model."""
    known = prepare_folder(folder)
    if known is None:
        with errors_named(folder, UsageError):
            publish(folder / FACTS_FILE, facts.dumps())
    elif known.model != facts.model:
        raise UsageError(f"{folder} holds a trace of {known.model}, not of {facts.model}; record into another folder")
    elif known.shape != facts.shape or known.model_id != facts.model_id:
        raise UsageError(f"{folder} holds a trace of another version of {facts.model}; record into another folder")


def add_request(folder: Path, data: bytes) -> Path:
    """Writes the file of a finished request, under a number of its own; raises OSError.

    It has its name only once it is whole. A temporary name is made by one process alone, and the number is taken
    only where no file has it, so several processes may record into one folder.
    """
    while True:
        path, temporary = _next_names(folder)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        try:
            with os.fdopen(fd, "wb") as file:
                if path.exists():
                    continue
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.rename(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(folder)
        return path


def _next_names(folder: Path) -> tuple[Path, Path]:
    """The first number beyond all that are there, finished or not: the file's name, and its temporary one."""
    numbers = [int(match[1]) for entry in os.listdir(folder) if (match := _REQUEST.fullmatch(entry))]
    path = folder / f"request-{max(numbers, default=0) + 1:06d}.npz"
    return path, path.with_suffix(".tmp")
