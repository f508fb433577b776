"""What ranks send each other comes out as it went in."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from moeinf.distributed.frames import (
    REPLY_HEAD_BYTES,
    Counts,
    Kind,
    ReplyForm,
    Request,
    RequestForm,
    counts_of,
    kind_of,
    no_numbers,
    numbers_of,
    order,
    top_k_of,
)
from moeinf.runtime.cache.stats import CacheStats
from moeinf.types import Routing

TOP_K, HIDDEN = 3, 20


def request(tokens: int, guesses: tuple[int, int] | None = None, top_k: int = TOP_K) -> Request:
    rng = np.random.default_rng(tokens)
    guess = None
    if guesses is not None:
        guess = Routing(rng.integers(0, 99, guesses), rng.random(guesses).astype(np.float32))
    hidden = rng.standard_normal((tokens, HIDDEN)).astype(np.float32)
    return Request(5, rng.integers(0, 99, (tokens, top_k)), hidden, 40, 7, 6, guess)


@pytest.mark.parametrize(
    "sent",
    [
        request(1),
        request(1, (1, TOP_K)),
        request(0, (1, TOP_K)),
        request(1, (1, 9)),
        request(2),
        request(30, (30, TOP_K)),
        request(1, top_k=6),
    ],
)
def test_a_request_comes_out_as_it_went_in(sent: Request) -> None:
    theirs, ours = RequestForm(TOP_K, HIDDEN), RequestForm(TOP_K, HIDDEN)
    theirs.pack(request(3, (3, TOP_K)), frame := np.zeros(theirs.frame_bytes, np.uint8))  # it is used anew
    rest = theirs.pack(sent, frame)
    assert kind_of(frame) == Kind.RUN and ours.rest_bytes(frame) == (0 if rest is None else len(rest))
    found = ours.unpack(frame, rest)
    assert (found.layer, found.pass_tokens, found.num_rows, found.guess_layer) == (5, 40, 7, 6)
    assert np.array_equal(found.ids, sent.ids) and found.ids.dtype == np.int64
    assert np.array_equal(found.hidden, sent.hidden)
    assert (found.guess is None) == (sent.guess is None)
    if found.guess is not None and sent.guess is not None:
        assert np.array_equal(found.guess.ids, sent.guess.ids)
        assert np.array_equal(found.guess.weights, sent.guess.weights)


def test_a_token_with_its_guess_fits_the_frame() -> None:
    form = RequestForm(TOP_K, HIDDEN)
    frame = np.zeros(form.frame_bytes, np.uint8)
    assert form.pack(request(1, (1, TOP_K)), frame) is None
    assert form.pack(request(2), frame) is not None


class Read:
    """moeinf.runtime.io.protocol.ReadFacts of a reader that has read something."""

    backend, notice = "pure", ""

    def bytes_read(self) -> int:
        return 1 << 40

    def busy_seconds(self) -> float:
        return 0.75


def test_what_was_counted_comes_out_as_it_went_in() -> None:
    stats = CacheStats(**{field.name: number for number, field in enumerate(fields(CacheStats), start=2**33)})
    stats.stall_s = 1.5
    form = ReplyForm(HIDDEN)
    form.say(frame := form.frame(1), numbers_of(stats, Read()))
    assert counts_of(form.numbers(frame)) == Counts(stats, 1 << 40, 0.75)
    assert counts_of(form.numbers(frame) - form.numbers(frame)) == Counts(CacheStats(), 0, 0.0)


def test_a_reply_has_rows_or_a_fault() -> None:
    form = ReplyForm(HIDDEN)
    frame = form.frame(4)
    form.rows(frame)[:] = wanted = np.arange(4 * HIDDEN, dtype=np.float32).reshape(4, HIDDEN)
    numbers = tuple(no_numbers().tolist())
    form.say(frame, numbers)
    assert form.fault(frame) == "" and np.array_equal(form.rows(frame), wanted)
    form.say(frame, numbers, "the disk is gone")
    assert form.fault(frame) == "the disk is gone"
    form.say(frame, numbers, "é" * 4 * HIDDEN * 4)
    assert set(form.fault(frame).rstrip("�")) == {"é"}
    empty = form.frame(0)
    form.say(empty, numbers, "no room for a reason")
    assert len(empty) == REPLY_HEAD_BYTES and form.fault(empty) == "it failed"


def test_an_order_is_no_request() -> None:
    form = RequestForm(TOP_K, HIDDEN)
    form.pack(request(1), frame := np.zeros(form.frame_bytes, np.uint8))
    order(Kind.OWN, frame, 96, 2)
    assert kind_of(frame) == Kind.OWN and top_k_of(frame) == 2 and form.rest_bytes(frame) == 96
