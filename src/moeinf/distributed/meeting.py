"""How rank 0 and a worker meet: over a TCPStore of the worker, each shows the other that it knows the key."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch lists them not

from moeinf.distributed.group import Group, LostError, reason_of
from moeinf.errors import WorkerError

MEET_S: Final = 5.0  # for each answer of the other
_LOOK_S = 0.01
_LARGEST_BYTES = 1 << 16
_NUM_PINGS = "pings"


@dataclass(frozen=True, slots=True)
class Facts:
    """What has to agree, so that a worker computes what rank 0 would."""

    version: str  # of moeinf
    model: str  # digest of what is stored of its experts; "" of a worker that has no model yet
    isa: str  # instruction set of the kernels: each rounds in its own way


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker brings."""

    num_slots: int
    bytes_per_s: float
    lacks_model: bool = False  # it has to be sent first: then nothing else is asked of it in this visit


class Listener:
    """A worker's address, to which rank 0 comes. Called from one thread, but `pings`."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """Port 0: any that is free. Raises WorkerError where the address cannot be had."""
        self._key, self._next = key, 1
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen()
        except OSError as error:
            listening.close()
            raise WorkerError(f"--bind {host}:{port}: {error.strerror}; give an address of this machine") from error
        self.host, self.port = host, int(listening.getsockname()[1])
        self._store = TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=MEET_S),
            master_listen_fd=listening.detach(),
        )

    def pings(self) -> int:
        """How often rank 0 has said that it is there."""
        return int(self._store.add(_NUM_PINGS, 0))

    def accept(self, facts: Facts, offer: Offer, should_stop: Callable[[], bool]) -> Group | None:
        """Waits for rank 0, which knows the key, and whose facts agree; None where should_stop() says so.

        Raises WorkerError, which tells why one was refused, and LostError for one that has gone again.
        """
        while not should_stop():
            visitor = self._visitor()
            if visitor is not None:
                return self._meet(visitor, facts, offer)
            time.sleep(_LOOK_S)
        return None

    def refuse_others(self, why: str) -> None:
        """Tells whoever waits why it cannot come in."""
        while (visitor := self._visitor()) is not None:
            visitor.set("answer", json.dumps({"refused": why}))

    def _visitor(self) -> PrefixStore | None:
        """The last one that has said hello. Others before it have mostly given up, and call again if not."""
        last = int(self._store.add("visitors", 0))
        for number in range(last, self._next - 1, -1):
            if self._store.check([f"{number}/hello"]):
                self._next = last + 1
                return PrefixStore(str(number), self._store)
        return None

    def _meet(self, visitor: PrefixStore, facts: Facts, offer: Offer) -> Group:
        try:
            theirs, ours = visitor.get("hello")[:64].decode("ascii", "replace"), secrets.token_hex(16)
            visitor.set("challenge", ours)
            proof = _proof_in(_awaited(visitor, "proof"))
        except (DistStoreError, DistNetworkError) as error:
            raise LostError(reason_of(error)) from error
        names = f"{theirs} {ours}"
        if not hmac.compare_digest(proof[0], _mac(self._key, "rank 0", names, proof[1])):
            visitor.set("answer", json.dumps({"refused": "it has another key"}))
            raise WorkerError("refused a peer that does not know the key")
        why = _disagreement(facts, proof[1])
        if why:
            visitor.set("answer", json.dumps({"refused": why}))
            raise WorkerError(f"refused rank 0: {why}")
        text = json.dumps(asdict(offer))
        visitor.set("answer", json.dumps({"facts": text, "mac": _mac(self._key, "worker", names, text)}))
        return Group(PrefixStore(_mac(self._key, "group", names, ""), visitor), 1, self.host)


def call(host: str, port: int, key: bytes, facts: Facts) -> tuple[Offer, Group, Callable[[], None]]:
    """Comes to a worker; returns what it brings, the group with it, and what tells it that rank 0 is there (a ping).

    A ping blocks for as long as the worker's process stands still. Raises WorkerError where it refuses, or is not the
    one that knows the key, and LostError where nothing answers.
    """
    try:
        socket.create_connection((host, port), MEET_S).close()  # TCPStore would go on trying where nobody listens
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=MEET_S))
        visit = PrefixStore(str(store.add("visitors", 1)), store)
        ours = secrets.token_hex(16)
        visit.set("hello", ours)
        names = f"{ours} {_awaited(visit, 'challenge', 'answer').decode('ascii', 'replace')}"
        if visit.check(["challenge"]):
            text = json.dumps(asdict(facts))
            visit.set("proof", json.dumps({"facts": text, "mac": _mac(key, "rank 0", names, text)}))
        answer = _awaited(visit, "answer")
    except OSError as error:
        raise LostError(f"nothing answers there: {error.strerror or 'no answer in time'}") from error
    except (DistStoreError, DistNetworkError, RuntimeError, ValueError) as error:
        raise LostError("what answers there is no worker") from error
    refused = _fields(answer).get("refused")
    if refused:
        raise WorkerError(f"it refuses: {str(refused)[:300]}")
    mac, text = _proof_in(answer)
    if not hmac.compare_digest(mac, _mac(key, "worker", names, text)):
        raise WorkerError("who answers does not know the key")
    offer = Offer(**_fields(text.encode()))
    group = Group(PrefixStore(_mac(key, "group", names, ""), visit), 0, own_address(host, port))
    return offer, group, lambda: (store.add(_NUM_PINGS, 1), None)[1]


def _disagreement(ours: Facts, text: str) -> str:
    """Why a worker cannot compute for a rank 0 with these facts; "" where it can."""
    theirs = _fields(text.encode())
    if theirs.get("version") != ours.version:
        return f"it runs moeinf {ours.version}, rank 0 {theirs.get('version')}; install the same on both"
    if not ours.model:
        return ""  # it takes whatever rank 0 has
    if theirs.get("model") != ours.model:
        return "it has another model, or another state of it; pull the same on both"
    if theirs.get("isa") != ours.isa:
        return f"its kernels are those of {ours.isa}, rank 0's of {theirs.get('isa')}; set MOEINF_ISA to one for both"
    return ""


def _awaited(store: Store, *names: str) -> bytes:
    """The first of these that is there, within MEET_S. Raises DistStoreError."""
    give_up_at = time.monotonic() + MEET_S
    while time.monotonic() < give_up_at:
        for name in names:
            if store.check([name]):
                return bytes(store.get(name)[:_LARGEST_BYTES])
        time.sleep(_LOOK_S)
    raise DistStoreError(f"no {names[0]} within {MEET_S:.0f} s")


def _proof_in(data: bytes) -> tuple[str, str]:
    fields = _fields(data)
    return str(fields.get("mac", "")), str(fields.get("facts", ""))


def _fields(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _mac(key: bytes, role: str, names: str, text: str) -> str:
    """names: both random numbers, so that no proof serves twice; role: so that none serves the other side."""
    return hmac.new(key, f"{role}\n{names}\n{text}".encode(), hashlib.sha256).hexdigest()


def own_address(host: str, port: int) -> str:
    """The address of this machine from which that one is reached; nothing is sent there. Raises LostError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LostError(str(error.strerror)) from error
