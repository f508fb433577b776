"""How rank 0 and a worker show each other that they have the same key, before either believes anything else.

    rank 0 -> worker    greeting   magic, version, purpose, 32 random bytes
    worker -> rank 0    greeting   magic, version, 0,       32 random bytes of its own
    rank 0 -> worker    proof      MAC, and what rank 0 says of itself
    worker -> rank 0    answer     MAC, and what the worker says; all zero for a proof that is wrong

Every message has one size, so that nobody names a length. A MAC is an HMAC-SHA-256 of the sender's role, of all bytes
that were exchanged before, and of what is said with it: it serves for one meeting, one side and one purpose. Nothing
that is said is looked at before its MAC is. Of all four messages and the key come two more keys, with which each side
signs what it sends afterwards (link.py). Here are no sockets: bytes go in, and bytes come out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

VERSION: Final = 3  # of this protocol; 1 met over a store of torch, 2 did not sign what follows a meeting
SAID_BYTES: Final = 512
_MAGIC: Final = b"moeinf-w"
_GREETING: Final = struct.Struct("!8sHH32s")
GREETING_BYTES: Final = _GREETING.size
_MAC_BYTES: Final = 32
PROOF_BYTES: Final = _MAC_BYTES + SAID_BYTES
ANSWER_BYTES: Final = PROOF_BYTES
_WRONG_KEY: Final = bytes(ANSWER_BYTES)
_ROUNDS: Final = 200_000  # of SHA-256 for each guess at a key, by whoever has read a meeting off the network


class Purpose(IntEnum):
    SERVE = 1  # rank 0 comes to have its experts computed
    PULSE = 2  # a second connection of a rank 0 that is served, by which each sees that the other is there


class Keys(NamedTuple):
    """What one side of a meeting signs its messages with, and what those of the other are checked with. [32] each."""

    ours: bytes
    theirs: bytes


class StrangerError(Exception):
    """The other side has not shown that it has the key. Says why; reply: what is to be sent to it before its end."""

    def __init__(self, why: str, reply: bytes = b"") -> None:
        super().__init__(why)
        self.reply = reply


@cache
def stretched(key: bytes) -> bytes:
    """The key that MACs are made with [32]: slow to make, so that a weak key takes long to guess."""
    return hashlib.pbkdf2_hmac("sha256", key, b"moeinf worker", _ROUNDS)


class Visitor:
    """What a worker knows of one that has connected, from its first byte to its proof."""

    def __init__(self, key: bytes) -> None:
        """key: as a file has it."""
        self._key, self._so_far, self._got = key, b"", b""
        self.wanted = GREETING_BYTES  # how many bytes are to come; 0 once it is proved
        self.purpose, self.said = 0, b""  # [SAID_BYTES]; of one that is proved

    @property
    def is_proved(self) -> bool:
        return bool(self.said)

    def take(self, data: bytes) -> bytes:
        """Takes at most `wanted` bytes; returns what is to be sent. Raises StrangerError."""
        self._got += data
        self.wanted -= len(data)
        if not self._so_far and not self._got.startswith(_MAGIC[: len(self._got)]):
            raise StrangerError("it does not speak as moeinf does")
        if self.wanted:
            return b""
        got, self._got = self._got, b""
        return self._prove(got) if self._so_far else self._greet(got)

    def _greet(self, greeting: bytes) -> bytes:
        _, version, self.purpose, _ = _GREETING.unpack(greeting)
        ours = _GREETING.pack(_MAGIC, VERSION, 0, secrets.token_bytes(32))
        if version != VERSION:
            raise StrangerError(_versions("it", version, "this worker"), ours)
        self._so_far, self.wanted = greeting + ours, PROOF_BYTES
        return ours

    def _prove(self, proof: bytes) -> bytes:
        said = proof[_MAC_BYTES:]
        if not hmac.compare_digest(proof[:_MAC_BYTES], _mac(self._key, b"rank 0", self._so_far, said)):
            raise StrangerError("it does not know the key", _WRONG_KEY)
        self._so_far += proof
        self.said = said
        return b""

    def answer(self, said: bytes) -> bytes:
        """What is sent to one that is proved; said: at most SAID_BYTES."""
        said = said.ljust(SAID_BYTES, b"\0")
        answer = _mac(self._key, b"worker", self._so_far, said) + said
        self._so_far += answer
        return answer

    @property
    def keys(self) -> Keys:
        """Of the worker, once it has answered."""
        return Keys(*_keys(self._key, self._so_far)[::-1])


class Caller:
    """Rank 0's side: its three messages are `greeting`, then what `proof` returns, and it reads the answer."""

    def __init__(self, key: bytes, purpose: Purpose, said: bytes) -> None:
        """key: as a file has it; said: at most SAID_BYTES, which are not secret."""
        self._key, self._said = key, said.ljust(SAID_BYTES, b"\0")
        self.greeting = _GREETING.pack(_MAGIC, VERSION, purpose, secrets.token_bytes(32))
        self._so_far = self.greeting

    def proof(self, greeting: bytes) -> bytes:
        """Of the worker's greeting [GREETING_BYTES]. Raises StrangerError."""
        magic, version, _, _ = _GREETING.unpack(greeting)
        if magic != _MAGIC:
            raise StrangerError("what answers there is no worker")
        if version != VERSION:
            raise StrangerError(_versions("it", version, "rank 0"))
        self._so_far += greeting
        proof = _mac(self._key, b"rank 0", self._so_far, self._said) + self._said
        self._so_far += proof
        return proof

    def said(self, answer: bytes) -> bytes:
        """What the worker says [SAID_BYTES] in its answer [ANSWER_BYTES]. Raises StrangerError."""
        if answer == _WRONG_KEY:
            raise StrangerError("it refuses: it has another key")
        said = answer[_MAC_BYTES:]
        if not hmac.compare_digest(answer[:_MAC_BYTES], _mac(self._key, b"worker", self._so_far, said)):
            raise StrangerError("who answers does not know the key")
        self._so_far += answer
        return said

    @property
    def keys(self) -> Keys:
        """Of rank 0, once it knows what the worker has said."""
        return Keys(*_keys(self._key, self._so_far))


def _mac(key: bytes, role: bytes, so_far: bytes, said: bytes) -> bytes:
    """role: so that what one side has sent proves nothing for the other."""
    return hmac.digest(stretched(key), role + b"\n" + so_far + said, "sha256")


def _keys(key: bytes, so_far: bytes) -> tuple[bytes, bytes]:
    """Of what rank 0 sends after this meeting, and of what the worker does."""
    rank_0, worker = (_mac(key, role, so_far, b"") for role in (b"sent by rank 0", b"sent by worker"))
    return rank_0, worker


def _versions(who: str, theirs: int, us: str) -> str:
    return f"{who} speaks version {theirs} of the protocol, {us} version {VERSION}; install the same moeinf on both"
