"""What rank 0 and a worker send each other, once they have met and before."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from moeinf.distributed.frames import Kind, Owned, Request, RequestForm
from moeinf.distributed.link import LostError
from moeinf.distributed.meeting import Facts, Offer, parse_answer, refusal, welcome
from moeinf.distributed.proof import SAID_BYTES, Caller, Purpose, StrangerError, Visitor
from moeinf.distributed.replies import ReplyForm, counts_of, no_numbers
from moeinf.distributed.serving import Session
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import ByteArray, Float32Array, MoeShape, Routing
from tests.support.campaign.targets.target import Target, check_line, refusing

_SHAPE, _WIDTH = MoeShape(3, 6, 2, counts=(6, 4, 6)), 4
_MINE: Final = (np.arange(_SHAPE.num_keys) % 2 == 0) & (np.arange(_SHAPE.num_keys) != 10)  # layer 1 has no expert 4
_KEY: Final = b"a key that both have"


class _Experts:
    """moeinf.distributed.serving.ServedExperts that looks at what it is asked."""

    def only(self, mine: BoolArray, top_k: int) -> None:
        assert mine.shape == (_SHAPE.num_keys,) and not mine[10:12].any() and 1 <= top_k <= _SHAPE.num_experts
        self.mine, self.top_k = mine, top_k

    def run(self, request: Request, rows: Float32Array) -> None:
        _check(request, Owned(self.mine, self.top_k))
        rows[:] = 1

    def counted(self) -> tuple[float, ...]:
        return tuple(no_numbers().tolist())

    def end(self) -> None:
        pass


def _check(request: Request, owned: Owned) -> None:
    """What experts may count on."""
    ids, guess = request.ids, request.guess
    assert 0 <= request.layer < _SHAPE.num_layers and request.pass_tokens >= 0
    assert ids.shape == (len(request.hidden), owned.top_k) and request.hidden.shape[1:] == (_WIDTH,)
    assert np.isfinite(request.hidden).all()
    assert ((ids >= 0) & (ids < _SHAPE.experts_of(request.layer))).all()
    assert request.num_rows == np.count_nonzero(owned.mine.reshape(3, -1)[request.layer][ids])
    if guess is not None:
        assert ((guess.ids >= 0) & (guess.ids < _SHAPE.experts_of(request.guess_layer))).all()
        assert guess.ids.shape == guess.weights.shape and np.isfinite(guess.weights).all()


class _Link:
    """Of a worker, on which rank 0 sends these bytes and then goes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def receive(self, data: Any, seconds: float) -> None:
        view = memoryview(data).cast("B")
        if self._at + len(view) > len(self._data):
            raise LostError("its connection has ended")
        view[:] = self._data[self._at : self._at + len(view)]
        self._at += len(view)

    def send(self, data: Any, seconds: float) -> None:
        assert len(memoryview(data).cast("B"))

    def close(self) -> None:
        pass


def _session(data: bytes) -> None:
    """All that a rank 0 asks from its coming to its going: it ends with a line."""
    link: Any = _Link(data)
    check_line(Session(link, RequestForm(_SHAPE, _WIDTH), ReplyForm(_WIDTH), _Experts()).serve())


def _reply(data: bytes) -> None:
    """What a worker replies: the first byte says of how many rows."""
    if not data:
        return
    form = ReplyForm(_WIDTH)
    frame = form.frame(data[0] % 5)
    frame[:] = np.frombuffer(data[1:].ljust(len(frame), b"\0")[: len(frame)], np.uint8)
    try:
        fault = form.fault(frame)
        counts_of(form.numbers(frame))
    except LostError as error:
        check_line(str(error))
        return
    if fault:
        assert fault.isprintable()
    else:
        assert np.isfinite(form.rows(frame)).all()


def _said(data: bytes) -> None:
    """What both say of themselves as they meet, and the first bytes of a stranger."""
    said = data.ljust(SAID_BYTES, b"\0")[:SAID_BYTES]
    try:
        assert "\n" not in Facts("1.2.3", "0" * 64, "avx2").disagreement(Facts.parse(said))
    except LostError as error:
        check_line(str(error))
    try:
        refusing(lambda: parse_answer(said))
    except LostError as error:
        check_line(str(error))
    visitor, at = Visitor(_KEY), 0
    try:
        while at < len(data) and visitor.wanted:
            piece = data[at : at + min(visitor.wanted, 1 + data[at] % 64)]
            at += len(piece)
            visitor.take(piece)
    except StrangerError as error:
        check_line(str(error))
    assert not visitor.is_proved


def _session_seeds() -> list[bytes]:
    form = RequestForm(_SHAPE, _WIDTH)
    frame: ByteArray = np.zeros(form.frame_bytes, np.uint8)
    order = form.pack_order(Kind.OWN, frame, _MINE, 2)
    owning, found = frame.tobytes() + order, []
    for tokens in (1, 3):
        ids = np.array([[0, 2]] * tokens)
        guess = Routing(np.array([[1, 0]] * tokens), np.ones((tokens, 2), np.float32))
        request = Request(0, ids, np.ones((tokens, _WIDTH), np.float32), tokens, 2 * tokens, 1, guess)
        rest = form.pack(request, frame)
        found.append(owning + frame.tobytes() + (b"" if rest is None else rest.tobytes()))
    form.pack_order(Kind.LEAVE, frame)
    return [*found, owning + frame.tobytes()]


def _reply_seeds() -> list[bytes]:
    form = ReplyForm(_WIDTH)
    frame, found = form.frame(2), []
    for fault in ("", "it failed"):
        form.say(frame, tuple(no_numbers().tolist()), fault)
        found.append(b"\2" + frame.tobytes())
    return found


def _said_seeds() -> list[bytes]:
    greeting = Caller(_KEY, Purpose.SERVE, b"").greeting[:12] + bytes(32)
    return [Facts("1.2.3", "0" * 64, "avx2").packed(), welcome(Offer(12, 2e9), bytes(16)), refusal("no"), greeting]


TARGETS: Final = {
    "session": Target(_session, _session_seeds),
    "reply": Target(_reply, _reply_seeds),
    "said": Target(_said, _said_seeds),
}
