"""The form of what ranks send each other: a small frame of one size, and what does not fit behind it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.io.protocol import ReadFacts
from moeinf.types import ByteArray, Float32Array, FloatArray, IntArray, Routing

HEAD_BYTES: Final = 64
REPLY_HEAD_BYTES: Final = 128
_HEAD: Final = struct.Struct("=10i")
_VERDICT: Final = struct.Struct("=2i")
_STATS: Final = tuple(field.name for field in fields(CacheStats))
_OF_STATS: Final = attrgetter(*_STATS)
_COUNTS: Final = struct.Struct(f"={len(_STATS) + 2}d")
_COUNTS_AT: Final = _VERDICT.size
STALL: Final = _STATS.index("stall_s")  # its place among the numbers of a reply
_MOST_KEPT: Final = 8
_KIND, _LAYER, _TOKENS, _PASS_TOKENS, _NUM_ROWS, _REST_BYTES, _GUESS_LAYER, _GUESS_TOKENS, _TOP_K, _GUESSES = range(10)


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
    """Packs requests of one model, and reads them. A token's fits the frame."""

    def __init__(self, top_k: int, width: int) -> None:
        self._width = width
        one = 1, top_k
        self.frame_bytes: Final = HEAD_BYTES + _round_up(_Shapes(one, one).num_bytes(width))
        self._rest: ByteArray = np.empty(0, np.uint8)
        self._room_bytes = self.frame_bytes - HEAD_BYTES
        self._kept: dict[tuple[_Shapes, int], tuple[ByteArray, _Parts]] = {}

    def pack(self, request: Request, frame: ByteArray) -> ByteArray | None:
        """Fills the frame; returns what is to be sent behind it, which is good until the next call."""
        shapes = _Shapes(_shape(request.ids), (0, 0) if request.guess is None else _shape(request.guess.ids))
        num_bytes, rest = shapes.num_bytes(self._width), None
        if num_bytes > self._room_bytes:
            rest = self._rest_of(num_bytes)
        head = (
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

    def rest_bytes(self, frame: ByteArray) -> int:
        rest_bytes: int = _HEAD.unpack_from(frame.data)[_REST_BYTES]
        return rest_bytes

    def unpack(self, frame: ByteArray, rest: ByteArray | None) -> Request:
        """hidden is a part of the frame, or of the rest."""
        head = _HEAD.unpack_from(frame.data)
        shapes = _Shapes((head[_TOKENS], head[_TOP_K]), (head[_GUESS_TOKENS], head[_GUESSES]))
        ids, guess_ids, guess_weights, hidden = self._parts(shapes, frame, rest)
        guess = Routing(guess_ids.astype(np.int64), guess_weights.copy()) if shapes.guess[0] else None
        return Request(
            head[_LAYER], ids.astype(np.int64), hidden, head[_PASS_TOKENS], head[_NUM_ROWS], head[_GUESS_LAYER], guess
        )

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


class Counts(NamedTuple):
    """What a rank has counted: its cache, and what its reader has read, in so many seconds."""

    cache: CacheStats
    read_bytes: int
    busy_s: float


def numbers_of(stats: CacheStats, reader: ReadFacts) -> tuple[float, ...]:
    """What a rank has counted so far, as a reply has it: a number for each thing, which can be added up."""
    return (*_OF_STATS(stats), reader.bytes_read(), reader.busy_seconds())


def counts_of(numbers: FloatArray) -> Counts:
    """What `numbers_of` such numbers are, or sums and differences of them."""
    *of_cache, read_bytes, busy_s = numbers.tolist()
    stats = {name: value if name == "stall_s" else int(value) for name, value in zip(_STATS, of_cache, strict=True)}
    return Counts(CacheStats(**stats), int(read_bytes), busy_s)


def no_numbers() -> FloatArray:
    """Those of a rank that has counted nothing."""
    return np.zeros(len(_STATS) + 2)


class ReplyForm:
    """A reply: whether it went well, what the rank has counted so far, and the rows, or why it did not."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._memory: ByteArray = np.empty(0, np.uint8)

    def frame(self, num_rows: int) -> ByteArray:
        """A frame for so many rows, good until the next call."""
        num_bytes = REPLY_HEAD_BYTES + 4 * num_rows * self._width
        if len(self._memory) < num_bytes:
            self._memory = np.zeros(_round_up(num_bytes), np.uint8)
        return self._memory[:num_bytes]

    def rows(self, frame: ByteArray) -> Float32Array:
        rows: Float32Array = frame[REPLY_HEAD_BYTES:].view(np.float32).reshape(-1, self._width)
        return rows

    def say(self, frame: ByteArray, numbers: tuple[float, ...], fault: str = "") -> None:
        """Writes how it went, and `numbers_of` what was counted; a fault overwrites the rows, as far as it fits."""
        text = fault.encode()[: len(frame) - REPLY_HEAD_BYTES]
        _VERDICT.pack_into(frame.data, 0, 1 if fault else 0, len(text))
        _COUNTS.pack_into(frame.data, _COUNTS_AT, *numbers)
        if text:
            frame[REPLY_HEAD_BYTES : REPLY_HEAD_BYTES + len(text)] = np.frombuffer(text, np.uint8)

    def fault(self, frame: ByteArray) -> str:
        """ "" where it went well."""
        failed, length = _VERDICT.unpack_from(frame.data)
        if not failed:
            return ""
        text = frame[REPLY_HEAD_BYTES : REPLY_HEAD_BYTES + length].tobytes()
        return text.decode("utf-8", "replace") or "it failed"

    def numbers(self, frame: ByteArray) -> FloatArray:
        """Those that `say` was given."""
        return np.array(_COUNTS.unpack_from(frame.data, _COUNTS_AT))


def _shape(array: IntArray) -> tuple[int, int]:
    rows, columns = array.shape
    return rows, columns


def kind_of(frame: ByteArray) -> int:
    kind: int = _HEAD.unpack_from(frame.data)[_KIND]
    return kind


def top_k_of(frame: ByteArray) -> int:
    """To how many experts a token is routed, as an order says."""
    top_k: int = _HEAD.unpack_from(frame.data)[_TOP_K]
    return top_k


def order(kind: Kind, frame: ByteArray, rest_bytes: int = 0, top_k: int = 0) -> None:
    """Makes the frame one of another kind than RUN, with so many bytes behind it; top_k: of what is to come."""
    head = frame[:HEAD_BYTES].view(np.int32)
    head[:] = 0
    head[_KIND], head[_REST_BYTES], head[_TOP_K] = kind, rest_bytes, top_k


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64
