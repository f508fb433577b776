"""Looks at this machine as moeinf will use it: what is there, what is wrong, and what mends it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf import __version__
from moeinf._native import available_isas
from moeinf.config.environment import api_key, server_address
from moeinf.engine.speed.rates import Rates
from moeinf.errors import DeviceError, MoeinfError, StoreError
from moeinf.gpu.cuda import find_cuda, is_absent, without_advice
from moeinf.hardware import Machine, cpu_name
from moeinf.pull.spreading import same_disk
from moeinf.pull.steps import free_bytes
from moeinf.store.library import Library, StoredModel
from moeinf.store.spread.copy_list import CopyList
from moeinf.store.spread.whole import fault_of
from moeinf.terminal.remote.client import NoServerError, ServerClient
from moeinf.text.quantities import binary_size_text, size_text

_LITTLE_MEMORY: Final = 1 << 30
_LITTLE_DISK: Final = 5_000_000_000
_SLOW_DISK: Final = 300e6  # bytes a second: a hard disk, or a network's
_ASK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what is there, and where something is wrong what to do about it."""

    name: str
    text: str
    remedy: str = ""  # "" where all is well

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "text": self.text, "remedy": self.remedy}


def check_machine(home: Path, machine: Machine, isa: str) -> list[Finding]:
    """Everything but rates: takes less than a second, unless a GPU is there."""
    return [
        Finding("moeinf", f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"),
        Finding("CPU", f"{cpu_name()}, {_cores_text(machine)}, {isa}{_fallback_text(isa)}"),
        _memory(machine),
        _gpu(),
        *_store(home),
        _server(),
        _hub(),
    ]


def check_rates(rates: Rates) -> Iterator[Finding]:
    """What is wrong with what was measured."""
    best = max(rates.disk.values())
    if best < _SLOW_DISK:
        yield Finding(
            "disk",
            f"reads {size_text(best)}/s at best: each expert that is not in memory will be waited for",
            "put the store on an SSD of this machine with MOEINF_HOME",
        )
    if not rates.direct:
        yield Finding("disk", "was read through the page cache, as asked", "leave --no-direct-io out to measure it")


def _cores_text(machine: Machine) -> str:
    logical = os.cpu_count() or machine.cores
    cores = f"{machine.cores} cores worth a thread"
    return cores if logical == machine.cores else f"{cores} of {logical} logical ones"


def _fallback_text(isa: str) -> str:
    best = available_isas()[0]
    return "" if isa == best else f" (asked for; {best} would be faster)"


def _memory(machine: Machine) -> Finding:
    limit = "" if machine.limited_by == "machine" else f", limited by {machine.limited_by}"
    text = f"{binary_size_text(machine.available_bytes)} of {binary_size_text(machine.total_bytes)} available{limit}"
    if machine.available_bytes >= _LITTLE_MEMORY:
        return Finding("memory", text)
    return Finding("memory", text, "end other programs, or raise the limit of the control group")


def _gpu() -> Finding:
    try:
        gpu = find_cuda("cuda", lambda line: None)
    except DeviceError as error:
        reason = without_advice(error)
        return Finding("GPU", f"none: {reason}") if is_absent(error) else Finding("GPU", *_split(reason))
    assert gpu is not None
    return Finding("GPU", f"{gpu.name}, {binary_size_text(gpu.free_bytes)} of {binary_size_text(gpu.total_bytes)} free")


def _split(reason: str) -> tuple[str, str]:
    """What is the matter, and the remedy, which follow each other in an error."""
    fault, _, remedy = reason.rpartition(": ")
    return (fault, remedy) if fault else (reason, "see docs/gpu.md")


def _store(home: Path) -> Iterator[Finding]:
    library, there = Library(home), home
    models, partials, faults = library.list(), library.partials(), library.faults()
    while not there.exists():
        there = there.parent
    free = free_bytes(there)
    text = f"{home}, {len(models)} models, {size_text(free)} free"
    if not os.access(there, os.W_OK):
        yield Finding("store", f"{text}, not writable", "make the folder writable, or set MOEINF_HOME to another")
    elif free < _LITTLE_DISK:
        yield Finding("store", text, "free some disk, or set MOEINF_HOME to a larger one; models take 1 to 400 GB")
    else:
        yield Finding("store", text)
    for fault in faults:
        line, _, remedy = fault.rpartition("; ")
        yield Finding("store", line, remedy)
    for model in models:
        if gone := next((path for path in model.shard_paths if not path.is_file()), None):
            remedy = f"put the file back, or `moeinf rm {model.name}` forgets this model"
            yield Finding("store", f"{model.name}: {gone} has gone", remedy)
    yield from _second_disks(home, {model.id: model for model in models})
    stopped = [partial for partial in partials if not partial.running]
    if stopped:
        size = size_text(sum(partial.size_bytes for partial in stopped))
        yield Finding("store", f"{len(stopped)} interrupted pulls hold {size}; pulling again goes on with them")


def _second_disks(home: Path, models: Mapping[str, StoredModel]) -> Iterator[Finding]:
    """What lies of the models' experts on other disks."""
    try:
        copies = CopyList(home).all()
    except StoreError as error:
        line, _, remedy = str(error).rpartition("; ")
        yield Finding("second disk", line, remedy)
        return
    for copy in copies:
        model = models.get(copy.id)
        if model is None:
            line = f"{copy.folder} has experts of a state of {copy.name} that is not stored any more"
            yield Finding("second disk", line, "`moeinf prune` deletes them")
            continue
        try:
            fault = fault_of(copy, model)
        except StoreError as error:
            fault = str(error)
        if fault:
            line, _, remedy = fault.rpartition("; ")
            yield Finding("second disk", line, remedy)
        elif same_disk(model.path, Path(copy.folder)):
            remedy = f"`moeinf spread {model.name} --gather` undoes it; name a folder on another disk"
            yield Finding("second disk", f"{copy.folder} and the store are on one disk, which is no faster", remedy)
        else:
            part = "a part of every expert" if copy.divided else "the experts"
            yield Finding("second disk", f"{copy.folder} has {part} of {model.name}")


def _server() -> Finding:
    client = ServerClient(server_address(), api_key(), connect_s=_ASK_S)
    try:
        loaded = client.ask("GET", "/api/ps", timeout_s=_ASK_S)["models"]
    except NoServerError:
        return Finding("server", f"none at {client.url} (`moeinf serve` starts one)")
    except (MoeinfError, KeyError, TypeError) as error:
        return Finding("server", f"{client.url} answers: {error}", "set MOEINF_API_KEY, or MOEINF_HOST to another")
    return Finding("server", f"{client.url}, {len(loaded)} models loaded")


def _hub() -> Finding:
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE):
        return Finding("Hub", "offline, as HF_HUB_OFFLINE says: only stored models can be run")
    token = "with a token" if any(os.environ.get(name) for name in _TOKENS) else "without a token in the environment"
    return Finding("Hub", f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}, {token}")


_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
