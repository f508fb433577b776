"""The form of what rank 0 sends a worker: a small frame of one size, and what does not fit behind it.

Whoever reads one looks at every field first: the other rank has the key, and may still be wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from moeinf.distributed.link import MalformedError
from moeinf.distributed.replies import reply_bytes
from moeinf.errors import UsageError
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import ByteArray, Float32Array, IntArray, MoeShape, Routing

HEAD_BYTES: Final = 64
_HEAD: Final = struct.Struct("=10i")
_MOST_KEPT: Final = 8
_MOST_BYTES: Final = 1 << 30  # of a message

Ids = npt.NDArray[np.int32]


class Kind(IntEnum):
    RUN = 1  # compute the experts that are yours
    OWN = 2  # these experts are yours, of so many that each token is routed to
    LEAVE = 3  # rank 0 has ended


@dataclass(frozen=True, slots=True)
class Request:
    """What rank 0 asks of a worker: to compute its experts of a layer, and what the next layer may need.

    ids [tokens, top_k] and hidden [tokens, width] of the tokens that use an expert of the worker; width: what experts
    are given, the hidden size or less. num_rows: of the reply, one for each token and expert, those of the lowest
    expert first, each expert's in the order of the tokens.
    """

    layer: int
    ids: IntArray
    hidden: Float32Array
    pass_tokens: int
    num_rows: int
    guess_layer: int = 0
    guess: Routing | None = None


class Head(NamedTuple):
    """The numbers with which a frame begins. Orders have a kind, the bytes behind them, and perhaps top_k."""

    kind: int
    layer: int = 0
    tokens: int = 0
    pass_tokens: int = 0
    num_rows: int = 0
    rest_bytes: int = 0
    guess_layer: int = 0
    guess_tokens: int = 0
    top_k: int = 0
    guesses: int = 0


class Owned(NamedTuple):
    """What rank 0 has told a worker before it asks: which experts are its own [keys], and top_k of the routing."""

    mine: BoolArray
    top_k: int


class _Shapes(NamedTuple):
    """[tokens, top_k] of the routing, and [tokens, guesses] of the guess."""

    ids: tuple[int, int]
    guess: tuple[int, int]

    def num_bytes(self, width: int) -> int:
        return 4 * (self.ids[0] * (self.ids[1] + width) + 2 * self.guess[0] * self.guess[1])

    def parts(self, room: ByteArray, width: int) -> _Parts:
        """Ids, the guess's ids and weights, and hidden, as parts of the room."""
        numbers, ends = room[: self.num_bytes(width)].view(np.int32), [self.ids[0] * self.ids[1]]
        for _ in range(2):
            ends.append(ends[-1] + self.guess[0] * self.guess[1])
        return (
            numbers[: ends[0]].reshape(self.ids),
            numbers[ends[0] : ends[1]].reshape(self.guess),
            numbers[ends[1] : ends[2]].view(np.float32).reshape(self.guess),
            numbers[ends[2] :].view(np.float32).reshape(self.ids[0], width),
        )


_Parts = tuple[Ids, Ids, Float32Array, Float32Array]


class RequestForm:
    """Packs requests and orders of one model, and reads them. A token's fits the frame."""

    def __init__(self, shape: MoeShape, width: int) -> None:
        """shape: the model's; each token may be routed to fewer experts. width: of what experts are given."""
        self._shape, self._width = shape, width
        one = 1, shape.top_k
        self.frame_bytes: Final = HEAD_BYTES + _round_up(_Shapes(one, one).num_bytes(width))
        self._rest: ByteArray = np.empty(0, np.uint8)
        self._room_bytes = self.frame_bytes - HEAD_BYTES
        self._kept: dict[tuple[_Shapes, int], tuple[ByteArray, _Parts]] = {}

    def pack(self, request: Request, frame: ByteArray) -> ByteArray | None:
        """Fills the frame; returns what is to be sent behind it, which is good until the next call.

        Raises UsageError where that, or the reply, would be larger than a message may be.
        """
        shapes = _Shapes(_shape(request.ids), (0, 0) if request.guess is None else _shape(request.guess.ids))
        num_bytes, rest = shapes.num_bytes(self._width), None
        if max(num_bytes, reply_bytes(request.num_rows, self._width)) > _MOST_BYTES:
            raise UsageError(f"{shapes.ids[0]} tokens at once are too many for --workers; lower --prefill-chunk")
        if num_bytes > self._room_bytes:
            rest = self._rest_of(num_bytes)
        head = Head(
            Kind.RUN,
            request.layer,
            shapes.ids[0],
            request.pass_tokens,
            request.num_rows,
            0 if rest is None else num_bytes,
            request.guess_layer,
            shapes.guess[0],
            shapes.ids[1],
            shapes.guess[1],
        )
        _HEAD.pack_into(frame.data, 0, *head)
        ids, guess_ids, guess_weights, hidden = self._parts(shapes, frame, rest)
        ids[:] = request.ids
        hidden[:] = request.hidden
        if request.guess is not None:
            guess_ids[:], guess_weights[:] = request.guess.ids, request.guess.weights
        return rest

    def pack_order(self, kind: Kind, frame: ByteArray, mine: BoolArray | None = None, top_k: int = 0) -> bytes:
        """Fills the frame; returns what is to be sent behind it. mine [keys], and top_k of the routing: of OWN."""
        bits = b"" if mine is None else np.packbits(mine).tobytes()
        _HEAD.pack_into(frame.data, 0, *Head(kind, rest_bytes=len(bits), top_k=top_k))
        return bits

    def head(self, frame: ByteArray) -> Head:
        """What a frame begins with, fit for this model. Raises MalformedError."""
        head = Head(*_HEAD.unpack_from(frame.data))
        if head.kind == Kind.RUN:
            self._check_request(head)
        elif head.kind == Kind.OWN:
            _check("top_k", head.top_k, 1, self._shape.num_experts)
            _check("bytes of bits", head.rest_bytes, self._bits_bytes, self._bits_bytes)
        elif head.kind != Kind.LEAVE:
            raise MalformedError(f"it sent a message of kind {head.kind}, which there is not")
        return head

    def owned(self, head: Head, bits: ByteArray) -> Owned:
        """bits: the bytes behind OWN. Raises MalformedError."""
        unpacked = np.unpackbits(bits).astype(np.bool_)
        mine: BoolArray = unpacked[: self._shape.num_keys]
        rows, there = mine.reshape(self._shape.num_layers, -1), np.arange(self._shape.num_experts)
        counts = [self._shape.experts_of(layer) for layer in range(self._shape.num_layers)]
        if unpacked[len(mine) :].any() or (rows & (there >= np.array(counts)[:, None])).any():
            raise MalformedError("it sent experts that the model does not have")
        return Owned(mine, head.top_k)

    def unpack(self, head: Head, frame: ByteArray, rest: ByteArray | None, owned: Owned) -> Request:
        """hidden is a part of the frame, or of the rest. Raises MalformedError."""
        _check("experts of a token", head.top_k, owned.top_k, owned.top_k)
        shapes = _Shapes((head.tokens, head.top_k), (head.guess_tokens, head.guesses))
        ids, guess_ids, guess_weights, hidden = self._parts(shapes, frame, rest)
        self._check_ids(ids, head.layer)
        if not np.isfinite(hidden).all():
            raise MalformedError("it sent a hidden state that is not finite")
        guess = None
        if guess_ids.size:
            self._check_ids(guess_ids, head.guess_layer)
            if not np.isfinite(guess_weights).all():
                raise MalformedError("it sent weights of a guess that are not finite")
            guess = Routing(guess_ids.astype(np.int64), guess_weights.copy())
        wide = ids.astype(np.int64)
        num_rows = int(np.count_nonzero(owned.mine[wide + head.layer * self._shape.num_experts]))
        _check("rows", head.num_rows, num_rows, num_rows)
        return Request(head.layer, wide, hidden, head.pass_tokens, num_rows, head.guess_layer, guess)

    @property
    def _bits_bytes(self) -> int:
        return -(-self._shape.num_keys // 8)

    def _check_request(self, head: Head) -> None:
        layers, experts = self._shape.num_layers, self._shape.num_experts
        most_tokens = _MOST_BYTES // (4 * self._width)
        _check("layer", head.layer, 0, layers - 1)
        _check("tokens", head.tokens, 0, most_tokens)
        _check("top_k", head.top_k, 1, experts)
        _check("tokens of a pass", head.pass_tokens, 0, 1 << 30)
        _check("rows", head.num_rows, 0, min(head.tokens * head.top_k, _MOST_BYTES // (4 * self._width)))
        _check("layer of a guess", head.guess_layer, 0, layers - 1)
        _check("tokens of a guess", head.guess_tokens, 0, most_tokens)
        _check("experts of a guess", head.guesses, 0, experts)
        shapes = _Shapes((head.tokens, head.top_k), (head.guess_tokens, head.guesses))
        num_bytes = shapes.num_bytes(self._width)
        rest_bytes = num_bytes if num_bytes > self._room_bytes else 0
        _check("bytes behind", head.rest_bytes, rest_bytes, min(rest_bytes, _MOST_BYTES))

    def _check_ids(self, ids: Ids, layer: int) -> None:
        if ids.size and not (ids.min() >= 0 and ids.max() < self._shape.experts_of(layer)):
            raise MalformedError(f"it asks for experts that layer {layer} does not have")

    def _parts(self, shapes: _Shapes, frame: ByteArray, rest: ByteArray | None) -> _Parts:
        """The places of a request's parts. Those in a frame are kept, as the next token has the same."""
        if rest is not None:
            return shapes.parts(rest, self._width)
        kept = self._kept.get((shapes, id(frame)))
        if kept is None or kept[0] is not frame:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[shapes, id(frame)] = frame, shapes.parts(frame[HEAD_BYTES:], self._width)
        return kept[1]

    def _rest_of(self, num_bytes: int) -> ByteArray:
        if len(self._rest) < num_bytes:
            self._rest = np.empty(_round_up(num_bytes), np.uint8)
        return self._rest[:num_bytes]


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise MalformedError(f"it sent a message whose number of {what} is {value}")


def _shape(array: IntArray) -> tuple[int, int]:
    rows, columns = array.shape
    return rows, columns


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64
