"""Who has the key is believed, in one meeting and in one role; nobody else is, whatever it says."""

from __future__ import annotations

import math

import pytest

from moeinf.distributed.link import MalformedError
from moeinf.distributed.meeting import Facts, Offer, parse_answer, refusal, welcome
from moeinf.distributed.proof import (
    ANSWER_BYTES,
    GREETING_BYTES,
    PROOF_BYTES,
    SAID_BYTES,
    Caller,
    Purpose,
    StrangerError,
    Visitor,
)
from moeinf.errors import WorkerError

KEY, SESSION = b"a key that both have", bytes(range(16))
FACTS = Facts("1.2.3", "0" * 64, "avx512")


def test_two_with_the_same_key_believe_each_other() -> None:
    rank_0, worker = Caller(KEY, Purpose.PULSE, b"hello"), Visitor(KEY)
    greeting = worker.take(rank_0.greeting)
    assert len(greeting) == GREETING_BYTES and not worker.is_proved
    assert worker.take(rank_0.proof(greeting)) == b"" and worker.is_proved and worker.wanted == 0
    assert (worker.purpose, worker.said) == (Purpose.PULSE, b"hello".ljust(SAID_BYTES, b"\0"))
    assert rank_0.said(worker.answer(b"welcome")) == b"welcome".ljust(SAID_BYTES, b"\0")


def test_bytes_may_come_one_by_one() -> None:
    rank_0, worker, sent = Caller(KEY, Purpose.SERVE, b""), Visitor(KEY), b""
    for byte in rank_0.greeting:
        sent += worker.take(bytes([byte]))
    for byte in rank_0.proof(sent):
        assert not worker.is_proved
        worker.take(bytes([byte]))
    assert worker.is_proved


def test_another_key_is_no_key() -> None:
    rank_0, worker = Caller(KEY + b"x", Purpose.SERVE, b""), Visitor(KEY)
    with pytest.raises(StrangerError, match="does not know the key") as refused:
        worker.take(rank_0.proof(worker.take(rank_0.greeting)))
    assert not worker.is_proved
    with pytest.raises(StrangerError, match="it refuses: it has another key"):
        rank_0.said(refused.value.reply)


def test_a_worker_without_the_key_is_found_out() -> None:
    rank_0, impostor = Caller(KEY, Purpose.SERVE, b""), Visitor(KEY + b"x")
    rank_0.proof(impostor.take(rank_0.greeting))
    with pytest.raises(StrangerError, match="who answers does not know the key"):
        rank_0.said(impostor.answer(b"welcome"))


def test_a_proof_serves_once_and_for_one_purpose() -> None:
    rank_0, worker = Caller(KEY, Purpose.SERVE, b""), Visitor(KEY)
    proof = rank_0.proof(worker.take(rank_0.greeting))
    again = Visitor(KEY)
    again.take(rank_0.greeting)
    with pytest.raises(StrangerError, match="does not know the key"):
        again.take(proof)  # the worker's random bytes are others
    purpose_at = 11
    other = bytearray(rank_0.greeting)
    other[purpose_at] = Purpose.PULSE
    for said, greeting in ((b"x", rank_0.greeting), (b"", bytes(other))):
        changed, third = Caller(KEY, Purpose.SERVE, said), Visitor(KEY)
        changed.greeting = changed._so_far = rank_0.greeting
        proof = changed.proof(third.take(greeting))
        with pytest.raises(StrangerError, match="does not know the key"):
            third.take(proof if said != b"x" else proof[:-1] + b"y")


def test_what_one_side_sends_proves_nothing_for_the_other() -> None:
    rank_0, worker = Caller(KEY, Purpose.SERVE, b""), Visitor(KEY)
    proof = rank_0.proof(worker.take(rank_0.greeting))
    assert len(proof) == PROOF_BYTES == ANSWER_BYTES
    with pytest.raises(StrangerError, match="does not know the key"):
        rank_0.said(proof)  # sent back


def test_each_meeting_gives_each_side_a_key_of_its_own() -> None:
    found = set()
    for key in (KEY, KEY, KEY + b"x"):
        rank_0, worker = Caller(key, Purpose.SERVE, b""), Visitor(key)
        worker.take(rank_0.proof(worker.take(rank_0.greeting)))
        rank_0.said(worker.answer(b"welcome"))
        assert rank_0.keys == worker.keys[::-1]
        found |= {*rank_0.keys}
    assert len(found) == 6


def test_versions_of_the_protocol_are_told_apart_on_both_sides() -> None:
    greeting = bytearray(Caller(KEY, Purpose.SERVE, b"").greeting)
    greeting[9] = 7
    with pytest.raises(StrangerError, match=r"it speaks version 7 .* this worker version 3; install") as refused:
        Visitor(KEY).take(bytes(greeting))
    assert len(refused.value.reply) == GREETING_BYTES  # so that the other one can tell
    with pytest.raises(StrangerError, match=r"it speaks version 7 .* rank 0 version 3; install the same moeinf"):
        Caller(KEY, Purpose.SERVE, b"").proof(bytes(greeting))


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0", b"moeinf-v", b"SSH-2.0-x\r\n"]
)
def test_what_speaks_otherwise_is_refused_at_its_first_bytes(sent: bytes) -> None:
    with pytest.raises(StrangerError, match="it does not speak as moeinf does"):
        Visitor(KEY).take(sent[:GREETING_BYTES])
    with pytest.raises(StrangerError, match="what answers there is no worker"):
        Caller(KEY, Purpose.SERVE, b"").proof(sent.ljust(GREETING_BYTES, b"\0")[:GREETING_BYTES])


# ---- what is said


def test_facts_come_out_as_they_went_in() -> None:
    assert Facts.parse(FACTS.packed().ljust(SAID_BYTES, b"\0")) == FACTS
    assert Facts.parse(Facts("1", "", "x").packed()) == Facts("1", "", "x")


@pytest.mark.parametrize(
    "said",
    [b"", b"1\n2", b"1\n2\n3\n4", b"\xff\n2\n3", b"\x1b[2J\n2\n3", b"1\n" + b"2" * 200 + b"\n3", b"\0" * SAID_BYTES],
)
def test_facts_that_cannot_be_meant_are_refused(said: bytes) -> None:
    with pytest.raises(MalformedError):
        Facts.parse(said)


def test_an_offer_comes_out_as_it_went_in() -> None:
    for offer in (Offer(12, 2.5e9), Offer(0, 0.0, lacks_model=True)):
        assert parse_answer(welcome(offer, SESSION).ljust(SAID_BYTES, b"\0")) == (offer, SESSION)


@pytest.mark.parametrize(
    "offer", [Offer(-1, 1.0), Offer(1 << 62, 1.0), Offer(1, math.nan), Offer(1, 1e300), Offer(1, -1.0)]
)
def test_an_offer_that_cannot_be_meant_is_refused(offer: Offer) -> None:
    with pytest.raises(MalformedError, match="which cannot be meant"):
        parse_answer(welcome(offer, SESSION).ljust(SAID_BYTES, b"\0"))


def test_a_refusal_is_one_line_that_does_nothing_to_a_terminal() -> None:
    with pytest.raises(WorkerError, match=r"^it refuses: \?\[2Jno\?$"):
        parse_answer(refusal("\x1b[2Jno\n").ljust(SAID_BYTES, b"\0"))
    assert len(refusal("x" * 9999)) == SAID_BYTES
