"""Joins a model on this machine with the workers that compute some of its experts."""

from __future__ import annotations

import codecs
import hashlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from moeinf.config import RuntimeConfig
from moeinf.config.user_text import open_file
from moeinf.engine.build_context import BuildContext
from moeinf.engine.stored_weights import Weights
from moeinf.engine.weights.expert_files import expert_parts
from moeinf.errors import UsageError, WorkerError
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.io.reader_protocol import DiskReader, ReadFacts
from moeinf.sampling.step_queue import Interrupted
from moeinf.store.files import errors_named
from moeinf.store.format import MERGED_FILE
from moeinf.store.manifest import Manifest
from moeinf.store.placed.verify_placed import samples_digest
from moeinf.types import JsonObject
from moeinf.version import __version__

if TYPE_CHECKING:  # what a run on one machine does without
    from moeinf.distributed.kernels import JoiningKernel, RowKernel
    from moeinf.distributed.meeting import Facts, PeerAddress
    from moeinf.distributed.ownership import Capacity
    from moeinf.distributed.peer import Connection
    from moeinf.distributed.rank_experts import SharedExperts
    from moeinf.distributed.star import Star
    from moeinf.runtime.experts import StreamedExperts

_SAMPLE_BYTES: Final = 64 << 20  # read to learn the disk's rate
_SAMPLE_S: Final = 0.5
_LEAST_KEY_BYTES: Final = 16
_MOST_KEY_BYTES: Final = 4096
_OPEN_S: Final = 60.0  # for a worker to open a model that it was sent
_LOOK_S: Final = 0.5


def join(context: BuildContext, tier: ExpertTier, reader: DiskReader, kernel: RowKernel) -> JoiningKernel:
    """Calls the workers that the configuration names; returns what computes a layer together with them.

    From then on the tier holds what is this machine's own. Raises UsageError, WorkerError.
    """
    from moeinf.distributed.kernels import JoiningKernel
    from moeinf.distributed.peer import Connection, Peer
    from moeinf.distributed.star import Star
    from moeinf.distributed.transfer import send_model

    config, kernels, width = context.host.config, context.host.kernels, expert_width(context.manifest)
    key, facts = read_key("--worker-key-file", config.compute.worker_key_file), facts_of(context.weights, kernels.isa)

    def connect(address: PeerAddress) -> Connection:
        connection = called(address)
        if connection.offer.lacks_model:
            context.reporting.notify(f"worker {address} has no such model: it is sent there")
            try:
                send_model(connection.link, context.weights.stored)
            finally:
                connection.close()
            connection = _when_open(lambda: called(address))
            if connection.offer.lacks_model:
                connection.close()
                raise WorkerError("it has no such model, though it was sent it; see what it says there")
        return connection

    def called(address: PeerAddress) -> Connection:
        return Connection(address, key, facts, context.manifest.moe, width, context.should_stop)

    peers = [Peer(address, connect) for address in addresses_of(config.compute.workers)]
    here = capacity_of(tier, reader, context.manifest.layout.stride_bytes)
    star = Star(peers, here, context.moe, tier, context.reporting.notify)

    def check() -> None:
        if context.should_stop():
            raise Interrupted

    return JoiningKernel(kernel, kernels, star, tier, check)


def shared(streamed: StreamedExperts, joining: JoiningKernel, config: RuntimeConfig) -> SharedExperts:
    """The experts of a model that `streamed` computes over `joining`."""
    from moeinf.distributed.rank_experts import SharedExperts

    return SharedExperts(streamed, joining, guesses=config.experts.prefetch and joining.star.reads_elsewhere)


class RankReaders:
    """moeinf.runtime.io.reader_protocol.ReadFacts of all ranks, whose disks read side by side."""

    def __init__(self, here: ReadFacts, star: Star) -> None:
        self._here, self._star = here, star
        self.backend = here.backend

    @property
    def notice(self) -> str:
        return self._here.notice

    def bytes_read(self) -> int:
        return self._here.bytes_read() + self._star.counted().read_bytes

    def busy_seconds(self) -> float:
        """Of the rank that reads most."""
        return max(self._here.busy_seconds(), self._star.counted().busy_s)


def _when_open(connect: Callable[[], Connection]) -> Connection:
    """Calls a worker that opens a model which it was sent just now. Raises as connect, in the end."""
    from moeinf.distributed.link import LostError

    give_up_at = time.monotonic() + _OPEN_S
    while True:
        try:
            return connect()
        except LostError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_LOOK_S)


def expert_width(manifest: Manifest) -> int:
    """How many numbers of a token an expert is given, and gives: the model's hidden size, or fewer."""
    _, _, width, _ = expert_parts(manifest.layout)["up"]
    return width


def facts_of(weights: Weights, isa: str) -> Facts:
    from moeinf.distributed.meeting import Facts

    return Facts(__version__, experts_digest(weights), isa)


def experts_digest(weights: Weights) -> str:
    """What tells the experts of a model, wherever they lie: their sums, forms and places within their files.

    Raises StoreError for a file that cannot be read.
    """
    whole: JsonObject = json.loads(weights.manifest.dumps())
    told = {name: whole.get(name) for name in ("experts", "shards", "scales")}
    if weights.manifest.in_place is not None:
        told["in_place"] = [_files_of_experts(weights), whole["in_place"]["experts"]]
    text = json.dumps([told, repr(weights.family.tensors.forms)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _files_of_experts(weights: Weights) -> list[tuple[int, str, str, str]]:
    """What tells a GGUF file, which has no checksum, and that of what an adapter has changed, which has one.

    Samples are read anew, as older stores lack them.
    """
    in_place, found = weights.manifest.in_place, []
    assert in_place is not None
    paths = in_place.paths(weights.stored.path)
    for number in sorted({part.file for layer in in_place.experts for part in layer}):
        file = in_place.files[number]
        with errors_named(paths[number]):
            samples = samples_digest(paths[number], file.num_bytes, file.header_bytes)
        merged = file.sha256 if file.file == MERGED_FILE else ""  # of others the Hub alone tells
        found.append((file.num_bytes, file.header_sha256, samples, merged))
    return found


def capacity_of(tier: ExpertTier, reader: DiskReader, expert_bytes: int) -> Capacity:
    """How many experts the tier holds, and how fast the disk is, which is asked for some of them now."""
    from moeinf.distributed.ownership import Capacity

    if not tier.has_room_for_all:
        keys = np.flatnonzero(tier.exists())
        count = max(1, min(tier.num_slots, _SAMPLE_BYTES // expert_bytes))
        give_up_at = time.monotonic() + _SAMPLE_S
        tier.fill(keys[:: max(1, len(keys) // count)][:count], lambda: time.monotonic() > give_up_at)
    busy_s = reader.busy_seconds()
    return Capacity(tier.num_slots, reader.bytes_read() / busy_s if busy_s else 0.0)


def read_key(option: str, path: str) -> bytes:
    """The key that a file holds. Raises UsageError."""
    if not path:
        raise UsageError(f"{option} PATH is missing: a file with the key that all machines share")
    try:
        with open_file(path) as file:
            data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}; name a readable file") from None
    if len(data) > _MOST_KEY_BYTES:
        raise UsageError(f"{option} {path} is longer than {_MOST_KEY_BYTES} bytes; name the file with the key")
    key = data.removeprefix(codecs.BOM_UTF8).strip()
    if len(key) < _LEAST_KEY_BYTES:
        raise UsageError(
            f"{option} {path} holds {len(key)} bytes; write a random key of at least {_LEAST_KEY_BYTES} into it, "
            "such as that of `openssl rand -hex 32`"
        )
    return key


def addresses_of(text: str) -> list[PeerAddress]:
    """host:port, with commas between several. Raises UsageError."""
    addresses = [address_of("--workers", each.strip()) for each in text.split(",")]
    if len(set(addresses)) < len(addresses):
        raise UsageError(f"--workers {text} names one twice; leave it out")
    return addresses


def address_of(option: str, text: str) -> PeerAddress:
    from moeinf.distributed.meeting import PeerAddress

    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"{option} {text!r} is no address; write HOST:PORT, such as 192.168.1.7:29400")
    return PeerAddress(host, int(port))
