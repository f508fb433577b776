"""What rank 0 sends a worker comes out as it went in, or is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from moeinf.distributed.frames import HEAD_BYTES, Head, Kind, Owned, Request, RequestForm
from moeinf.distributed.link import MalformedError
from moeinf.errors import UsageError
from moeinf.types import ByteArray, MoeShape, Routing

SHAPE, WIDTH = MoeShape(7, 99, 3), 20
MINE = np.arange(SHAPE.num_keys) % 3 == 0


def request(tokens: int, guesses: tuple[int, int] | None = None, top_k: int = SHAPE.top_k) -> Request:
    rng = np.random.default_rng(tokens)
    guess = None
    if guesses is not None:
        guess = Routing(rng.integers(0, 99, guesses), rng.random(guesses).astype(np.float32))
    hidden = rng.standard_normal((tokens, WIDTH)).astype(np.float32)
    ids = rng.integers(0, 99, (tokens, top_k))
    return Request(5, ids, hidden, 40, int(MINE[5 * 99 + ids].sum()), 6, guess)


@pytest.mark.parametrize(
    "sent",
    [
        request(1),
        request(1, (1, SHAPE.top_k)),
        request(0, (1, SHAPE.top_k)),
        request(1, (1, 9)),
        request(2),
        request(30, (30, SHAPE.top_k)),
        request(1, top_k=6),
    ],
)
def test_a_request_comes_out_as_it_went_in(sent: Request) -> None:
    theirs, ours = RequestForm(SHAPE, WIDTH), RequestForm(SHAPE, WIDTH)
    theirs.pack(request(3, (3, SHAPE.top_k)), frame := np.zeros(theirs.frame_bytes, np.uint8))  # it is used anew
    rest = theirs.pack(sent, frame)
    head = ours.head(frame)
    assert head.kind == Kind.RUN and head.rest_bytes == (0 if rest is None else len(rest))
    found = ours.unpack(head, frame, rest, Owned(MINE, sent.ids.shape[1]))
    assert (found.layer, found.pass_tokens, found.num_rows, found.guess_layer) == (5, 40, sent.num_rows, 6)
    assert np.array_equal(found.ids, sent.ids) and found.ids.dtype == np.int64
    assert np.array_equal(found.hidden, sent.hidden)
    assert (found.guess is None) == (sent.guess is None)
    if found.guess is not None and sent.guess is not None:
        assert np.array_equal(found.guess.ids, sent.guess.ids)
        assert np.array_equal(found.guess.weights, sent.guess.weights)


def test_a_token_with_its_guess_fits_the_frame() -> None:
    form = RequestForm(SHAPE, WIDTH)
    frame = np.zeros(form.frame_bytes, np.uint8)
    assert form.pack(request(1, (1, SHAPE.top_k)), frame) is None
    assert form.pack(request(2), frame) is not None


def test_orders_come_out_as_they_went_in() -> None:
    form = RequestForm(SHAPE, WIDTH)
    form.pack(request(1), frame := np.zeros(form.frame_bytes, np.uint8))
    bits = form.pack_order(Kind.OWN, frame, MINE, 2)
    head = form.head(frame)
    assert head == Head(Kind.OWN, rest_bytes=len(bits), top_k=2)
    owned = form.owned(head, np.frombuffer(bits, np.uint8))
    assert np.array_equal(owned.mine, MINE) and owned.top_k == 2
    assert form.pack_order(Kind.LEAVE, frame) == b"" and form.head(frame) == Head(Kind.LEAVE)


def test_more_tokens_than_a_message_holds_are_refused_before_they_are_sent() -> None:
    form = RequestForm(MoeShape(1, 2, 2), 4096)
    many = Request(0, np.zeros((40_000, 2), np.int64), np.zeros((40_000, 4096), np.float32), 40_000, 80_000)
    with pytest.raises(UsageError, match="40000 tokens at once are too many for --workers; lower --prefill-chunk"):
        form.pack(many, np.zeros(form.frame_bytes, np.uint8))


# ---- a rank 0 that has the key, and is wrong

HUGE = 2**31 - 1


def changed(frame: ByteArray, name: str, value: int) -> ByteArray:
    at = Head._fields.index(name)
    copy: ByteArray = frame.copy()
    copy[:HEAD_BYTES].view(np.int32)[at] = value
    return copy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in Head._fields for value in (-1, -(2**31), HUGE)),
        *(("kind", value) for value in (0, 4)),
        *(("rest_bytes", value) for value in (1, 2**20)),
        *(("top_k", value) for value in (0, 2, 100)),
        *(("layer", 7), ("guess_layer", 7), ("guesses", 100), ("num_rows", 4), ("tokens", 2)),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(name: str, value: int) -> None:
    form = RequestForm(SHAPE, WIDTH)
    form.pack(request(1, (1, 3)), frame := np.zeros(form.frame_bytes, np.uint8))
    frame = changed(frame, name, value)
    with pytest.raises(MalformedError, match=r"^it sent "):
        form.unpack(form.head(frame), frame, None, Owned(MINE, SHAPE.top_k))


@pytest.mark.parametrize("wrong", [{"ids": 99}, {"ids": -1}, {"hidden": np.nan}, {"hidden": np.inf}, {"num_rows": 1}])
def test_values_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    form, sent = RequestForm(SHAPE, WIDTH), request(1, (1, 3))
    if "num_rows" in wrong:
        sent = replace(sent, num_rows=(sent.num_rows + 1) % 3)
    for name in wrong.keys() - {"num_rows"}:
        getattr(sent, name)[0, -1] = wrong[name]
    form.pack(sent, frame := np.zeros(form.frame_bytes, np.uint8))
    with pytest.raises(MalformedError):
        form.unpack(form.head(frame), frame, None, Owned(MINE, SHAPE.top_k))


@pytest.mark.parametrize("where", ["ids", "weights"])
def test_guesses_that_cannot_be_meant_are_refused(where: str) -> None:
    form, sent = RequestForm(SHAPE, WIDTH), request(1, (1, 3))
    assert sent.guess is not None
    getattr(sent.guess, where)[0, 0] = 99 if where == "ids" else np.nan
    form.pack(sent, frame := np.zeros(form.frame_bytes, np.uint8))
    with pytest.raises(MalformedError):
        form.unpack(form.head(frame), frame, None, Owned(MINE, SHAPE.top_k))


def test_experts_that_a_model_lacks_are_nobodys() -> None:
    """Layers of a pruned model differ, and behind the last key are bits of none."""
    pruned = RequestForm(MoeShape(2, 5, 2, counts=(5, 3)), WIDTH)
    frame: ByteArray = np.zeros(pruned.frame_bytes, np.uint8)
    for key, is_sound in ((4, True), (7, True), (8, False), (10, False)):
        bits = np.packbits(np.arange(16) == key)
        struct.pack_into("=10i", frame.data, 0, *Head(Kind.OWN, rest_bytes=2, top_k=2))
        if is_sound:
            assert pruned.owned(pruned.head(frame), bits).mine[key]
        else:
            with pytest.raises(MalformedError, match="experts that the model does not have"):
                pruned.owned(pruned.head(frame), bits)
