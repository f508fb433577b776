"""What rank 0 and a worker tell each other when they meet, and how rank 0 comes to a worker."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from moeinf.distributed.link import Link, LostError, MalformedError, printable
from moeinf.distributed.proof import ANSWER_BYTES, GREETING_BYTES, SAID_BYTES, Caller, Purpose, StrangerError
from moeinf.errors import WorkerError

MEET_S: Final = 5.0  # for each answer of the other
SESSION_BYTES: Final = 16
_WELCOME: Final = struct.Struct(f"!?qd?{SESSION_BYTES}s")
_MOST_SLOTS: Final = 1 << 40
_MOST_BYTES_PER_S: Final = 1e15
_LONGEST_FACT: Final = 128


@dataclass(frozen=True, slots=True)
class PeerAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What has to agree, so that a worker computes what rank 0 would. Printable ASCII."""

    version: str  # of moeinf
    model: str  # digest of what is stored of its experts; "" of a worker that has no model yet
    isa: str  # instruction set of the kernels: each rounds in its own way

    def packed(self) -> bytes:
        return "\n".join((self.version, self.model, self.isa)).encode("ascii", "replace")

    @staticmethod
    def parse(said: bytes) -> Facts:
        """Raises MalformedError."""
        parts = [part.decode("ascii", "replace") for part in said.rstrip(b"\0").split(b"\n")]
        if len(parts) != 3 or not all(_is_fact(part) for part in parts):
            raise MalformedError("it does not say which moeinf and which model it has")
        return Facts(*parts)

    def disagreement(self, theirs: Facts) -> str:
        """Why a worker with these facts cannot compute for a rank 0 with those; "" where it can."""
        if theirs.version != self.version:
            return f"it runs moeinf {self.version}, rank 0 {theirs.version}; install the same on both"
        if not self.model:
            return ""  # it takes whatever rank 0 has
        if theirs.model != self.model:
            return "it has another model, or another state of it; pull the same on both"
        if theirs.isa != self.isa:
            return f"its kernels are those of {self.isa}, rank 0's of {theirs.isa}; set MOEINF_ISA to one for both"
        return ""


def _is_fact(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST_FACT


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker brings."""

    num_slots: int
    bytes_per_s: float
    lacks_model: bool = False  # it has to be sent first: then nothing else is asked of it in this visit


def welcome(offer: Offer, session: bytes) -> bytes:
    """What a worker says to a rank 0 that it serves. session [SESSION_BYTES]: by which its pulse is known."""
    return _WELCOME.pack(True, offer.num_slots, offer.bytes_per_s, offer.lacks_model, session)


def refusal(why: str) -> bytes:
    """What a worker says to a rank 0 that it does not serve."""
    return b"\0" + why.encode("ascii", "replace")[: SAID_BYTES - 1]


def parse_answer(said: bytes) -> tuple[Offer, bytes]:
    """What `welcome` was given. Raises WorkerError for a refusal, MalformedError for what is neither."""
    if not said[0]:
        raise WorkerError(f"it refuses: {printable(said[1:].rstrip(bytes(1)))}")
    _, num_slots, bytes_per_s, lacks_model, session = _WELCOME.unpack_from(said)
    if not (0 <= num_slots <= _MOST_SLOTS and 0 <= bytes_per_s <= _MOST_BYTES_PER_S):  # nor NaN
        raise MalformedError(f"it offers {num_slots} experts at {bytes_per_s} bytes a second, which cannot be meant")
    return Offer(num_slots, bytes_per_s, lacks_model), session


def call(host: str, port: int, key: bytes, facts: Facts) -> tuple[Offer, Link, Link]:
    """Comes to a worker; returns what it brings, the link to it, and that of the pulse, on which it echoes each byte.

    Raises WorkerError where it refuses, or is not the one that knows the key, and LostError where nothing answers.
    """
    caller = Caller(key, Purpose.SERVE, facts.packed())
    link, said = _met(host, port, caller)
    try:
        offer, session = parse_answer(said)
        link.sign(caller.keys)
        pulse, said = _met(host, port, Caller(key, Purpose.PULSE, session))
        try:
            parse_answer(said)
        except BaseException:
            pulse.close()
            raise
    except BaseException:
        link.close()
        raise
    return offer, link, pulse


def _met(host: str, port: int, caller: Caller) -> tuple[Link, bytes]:
    """The link to a worker that has the key, and what it says."""
    try:
        link = Link(socket.create_connection((host, port), MEET_S))
    except OSError as error:
        raise LostError(f"nothing answers there: {error.strerror or 'no answer in time'}") from error
    except ValueError as error:  # a name that is none
        raise LostError(f"nothing answers there: {error}") from error
    try:
        greeting, answer = bytearray(GREETING_BYTES), bytearray(ANSWER_BYTES)
        try:
            link.send(caller.greeting, MEET_S)
            link.receive(greeting, MEET_S)
        except LostError as error:
            raise LostError(f"what answers there does not greet as a worker of this version does: {error}") from error
        link.send(caller.proof(bytes(greeting)), MEET_S)
        link.receive(answer, MEET_S)
        return link, caller.said(bytes(answer))
    except StrangerError as error:
        link.close()
        raise WorkerError(str(error)) from error
    except BaseException:
        link.close()
        raise
