"""What a worker replies comes out as it went in, or is refused."""

from __future__ import annotations

import struct
from dataclasses import fields

import numpy as np
import pytest

from moeinf.distributed.link import MalformedError
from moeinf.distributed.replies import REPLY_HEAD_BYTES, Counts, ReplyForm, counts_of, no_numbers, numbers_of
from moeinf.runtime.cache.stats import CacheStats

WIDTH = 20
NUMBERS = tuple(no_numbers().tolist())


class Read:
    """moeinf.runtime.io.reader_protocol.ReadFacts of a reader that has read something."""

    backend, notice = "pure", ""

    def bytes_read(self) -> int:
        return 1 << 40

    def busy_seconds(self) -> float:
        return 0.75


def test_what_was_counted_comes_out_as_it_went_in() -> None:
    stats = CacheStats(**{field.name: number for number, field in enumerate(fields(CacheStats), start=2**33)})
    stats.stall_s = 1.5
    form = ReplyForm(WIDTH)
    form.say(frame := form.frame(1), numbers_of(stats, Read()))
    assert counts_of(form.numbers(frame)) == Counts(stats, 1 << 40, 0.75)
    assert counts_of(form.numbers(frame) - form.numbers(frame)) == Counts(CacheStats(), 0, 0.0)


def test_a_reply_has_rows_or_a_fault() -> None:
    form = ReplyForm(WIDTH)
    frame = form.frame(4)
    form.rows(frame)[:] = wanted = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    form.say(frame, NUMBERS)
    assert form.fault(frame) == "" and np.array_equal(form.rows(frame), wanted)
    form.say(frame, NUMBERS, "the disk is gone")
    assert form.fault(frame) == "the disk is gone"
    form.say(frame, NUMBERS, "é" * 4 * WIDTH * 4)
    assert set(form.fault(frame).rstrip("�")) == {"é"}
    empty = form.frame(0)
    form.say(empty, NUMBERS, "no room for a reason")
    assert len(empty) == REPLY_HEAD_BYTES and form.fault(empty) == "it failed"


def test_a_fault_does_nothing_to_a_terminal() -> None:
    form = ReplyForm(WIDTH)
    form.say(frame := form.frame(4), NUMBERS, "\x1b[2J\n\u202eforged")
    assert form.fault(frame) == "?[2J??forged"


@pytest.mark.parametrize(("verdict", "length"), [(2, 0), (-1, 0), (1, -1), (1, 4 * WIDTH + 1), (1, 2**31 - 1)])
def test_a_verdict_that_cannot_be_meant_is_refused(verdict: int, length: int) -> None:
    form = ReplyForm(WIDTH)
    form.say(frame := form.frame(1), NUMBERS)
    struct.pack_into("=2i", frame.data, 0, verdict, length)
    with pytest.raises(MalformedError, match="cannot be told whether it went well"):
        form.fault(frame)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 1e300])
@pytest.mark.parametrize("place", [0, len(NUMBERS) - 1])
def test_counts_that_cannot_be_meant_are_refused(wrong: float, place: int) -> None:
    form, numbers = ReplyForm(WIDTH), list(NUMBERS)
    numbers[place] = wrong
    form.say(frame := form.frame(1), tuple(numbers))
    with pytest.raises(MalformedError, match="counts that cannot be meant"):
        form.numbers(frame)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(wrong: float) -> None:
    form = ReplyForm(WIDTH)
    frame = form.frame(2)
    form.rows(frame)[:] = 0
    form.rows(frame)[1, -1] = wrong
    form.say(frame, NUMBERS)
    with pytest.raises(MalformedError, match="rows that are not finite"):
        form.fault(frame)
