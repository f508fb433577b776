"""Steps through the network: each takes along what several requests wait for.

A request waits with the token behind its answer, or with a piece of its prompt. A step takes the tokens of all answers
through the layers together, and behind them one piece of one prompt by itself: so answers go on while a long prompt is
read, and every request gets the logits that it gets alone (docs/contributing/numerics.md).

Of prompts, those of chats are read before those of background requests, clients take turns, and a short one does not
wait for a long one. A piece that was begun while nobody else waited is as large as memory allows, and is given up for
one who comes meanwhile: shorter pieces would cost every lonely prompt time, and most where experts are read from a
disk, as a short piece needs nearly as many of them (docs/contributing/steps.md).

Nothing here runs by itself. An answer that is made alone makes its own steps. Of several, whoever reads them asks each
for its next token; one that gives None waits, and once all do, `run` makes the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from moeinf.errors import DeviceError, MoeinfError
from moeinf.models.layers.decoder import FEW_ROWS, MOST_ROWS, rounded_alike
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.types import Float32Array

PIECE_S: Final = 0.5  # that a piece of a prompt may take while others wait
LEAST_PIECE: Final = 128  # tokens of a piece, unless the prompt has fewer left: 64 take nearly as long as these
MOST_CLIENTS: Final = 1024  # whose last turn is known


class Interrupted(Exception):
    """A request was stopped in the middle of a forward pass; its cache still ends where the pass began."""


class GaveWay(Exception):
    """A piece of a prompt was given up for others, its cache still ends where it began; a shorter one is to follow."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, so that clients take turns, and whether nobody waits for the answer at a screen."""

    client: str = ""
    background: bool = False


SOMEBODY: Final = Asker()


class StepModel(Protocol):
    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        """Logits [parts, vocab] behind the tokens of each, and of one that is tried [its tokens, vocab]: see
        Decoder.step."""
        ...


class PassWatcher(Protocol):
    """Is told whose rows go through the layers."""

    def pass_begins(self, rows: Sequence[tuple[object, int]]) -> None:
        """Of each seat, in order, how many."""
        ...

    def pass_ends(self, *, whole: bool) -> None:
        """whole: False for a pass that was given up."""
        ...


class StepFacts(NamedTuple):
    seconds: float
    parts: int  # sequences that it took along


NO_STEP: Final = StepFacts(0.0, 1)


@dataclass(slots=True, eq=False)
class _Waiting:
    """Tokens on their way through the network."""

    part: NewTokens
    check: Callable[[], None]  # raises Interrupted where the request is to stop
    seat: Seat
    logits: Float32Array | None = None
    error: BaseException | None = None
    step: StepFacts | None = None  # that took them through

    @property
    def rows(self) -> int:
        """Of logits."""
        return len(self.part.ids) if self.part.tried else 1

    @property
    def done(self) -> bool:
        return self.logits is not None or self.error is not None

    @property
    def goes_beside(self) -> bool:
        """Whether it may go together with others."""
        return self.size <= FEW_ROWS

    @property
    def size(self) -> int:
        """Tokens of the pass that it is a part of."""
        return self.part.of_tokens or len(self.part.ids)

    @property
    def left(self) -> int:
        """Tokens of the prompt that are still to be read."""
        return max(self.part.of_tokens - self.part.cache.length, len(self.part.ids))

    def unwanted(self) -> bool:
        try:
            self.check()
        except Interrupted:
            return True
        return False


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one request among those that wait for steps, until it leaves.

    makes_steps: whether it does not wait for somebody else to make them.
    """

    steps: Steps
    makes_steps: bool = False
    asker: Asker = SOMEBODY
    waiting: _Waiting | None = None
    last_step: StepFacts = NO_STEP  # that took its tokens through

    def through(
        self,
        ids: Sequence[int],
        cache: Any,
        check: Callable[[], None],
        *,
        of_tokens: int = 0,
        tried: bool = False,
        unless: Callable[[], bool] | None = None,
    ) -> Generator[None, None, Float32Array]:
        """Returns logits [1, vocab] behind the last of the tokens, which a step takes through; yields until it has.

        tried: as of NewTokens; the logits are those behind each of the tokens. unless: asked while no step has; where
        it says True, none is to do so, and GaveWay is raised.
        Raises what the step raised, Interrupted where `check` did so, GaveWay for a piece of a prompt that was given up
        for others; the cache is then as it was before.
        """
        waiting = self.waiting = _Waiting(NewTokens(ids, cache, of_tokens, tried), check, self)
        try:
            while not waiting.done:
                if self.makes_steps:
                    self.steps.run()
                else:
                    yield None
                    if not waiting.done and unless is not None and unless():
                        raise GaveWay
        finally:
            self.waiting = None
        if waiting.error is not None:
            raise waiting.error
        assert waiting.logits is not None and waiting.step is not None
        self.last_step = waiting.step
        return waiting.logits

    @property
    def alone(self) -> bool:
        """Whether nobody else waits."""
        return self.steps.seats == [self]

    @property
    def most_rows(self) -> int:
        """How many tokens may go through at once: as many as all have room for in one step."""
        return max(1, min(FEW_ROWS, MOST_ROWS // len(self.steps.seats)))

    def piece(self, most: int) -> int:
        """How many tokens of a prompt to read next, of `most` that there is memory for."""
        return self.steps.piece(self, most)

    def leave(self) -> None:
        """Is not counted among those that wait, until it comes back."""
        self.steps.seats.remove(self)

    def come_back(self) -> None:
        self.steps.seats.append(self)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *error: object) -> None:
        if self in self.steps.seats:
            self.leave()


@dataclass(slots=True)
class Steps:
    """Of one network; used from one thread.

    cuts: whether prompts may be read in smaller pieces while others wait, as that changes no number.
    together: tokens of several prompts that are read at once, where nobody waits for one of them; 0: one at a time.
    pressed: asked between layers too, whether somebody waits who has no seat here: one who comes, or another network.
    clock: seconds.
    """

    model: StepModel
    cuts: bool = True
    together: int = 0
    seats: list[Seat] = field(default_factory=list)  # in the order in which they came
    pressed: Callable[[], bool] = lambda: False
    watcher: PassWatcher | None = None
    clock: Callable[[], float] = time.perf_counter
    rate: float = 0.0  # tokens of prompts that were read in a second
    _longest: int = 1 << 30  # tokens of a piece while nobody else waits; fewer for a time where one was given up
    _shortest_first: bool = False  # at the last piece, of several prompts
    _turns: dict[str, None] = field(default_factory=dict)  # clients whose prompts were read, the last one behind

    def seat(self, *, makes_steps: bool = False, asker: Asker = SOMEBODY) -> Seat:
        taken = Seat(self, makes_steps, asker)
        self.seats.append(taken)
        return taken

    def piece(self, seat: Seat, most: int) -> int:
        if not self.cuts or not self.rate or (seat.alone and not self.pressed()):
            return min(most, self._longest)
        return min(most, self._short)

    @property
    def _short(self) -> int:
        """Tokens of a piece while others wait."""
        return max(LEAST_PIECE, int(self.rate * PIECE_S))

    def run(self) -> None:
        """Makes a step, of what waits now. Errors of a request are raised where it goes on; others here."""
        waiting = [each for seat in self.seats if (each := seat.waiting) is not None and not each.done]
        beside = [each for each in waiting if each.goes_beside]
        alone = [each for each in waiting if not each.goes_beside]
        while beside:
            going = _fitting(beside)
            self._together(going)
            del beside[: len(going)]
        if alone:
            first = self._next(alone)
            if len(going := self._beside_prompt(first, alone)) > 1:
                self._together(going)
            else:
                self._read(first)

    def _beside_prompt(self, first: _Waiting, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """A prompt and those that are rounded as it is, as many as go together: experts are then read once for all."""
        most = min(self.together, MOST_ROWS if first.size <= MOST_ROWS else self.together)
        going, rows = [first], len(first.part.ids)
        for each in waiting:
            fits = each is not first and rows + len(each.part.ids) <= most
            if fits and rounded_alike(each.size, first.size):
                going.append(each)
                rows += len(each.part.ids)
        return going

    def _next(self, waiting: Sequence[_Waiting]) -> _Waiting:
        """Whose prompt is read next: of the chats the one that has least left, and every other time the one that came
        first of the client whose turn was longest ago."""
        waiting = [each for each in waiting if not each.seat.asker.background] or waiting
        if len(waiting) > 1:
            self._shortest_first = not self._shortest_first
        clients = list(self._turns)

        def turn(each: _Waiting) -> int:
            return clients.index(each.seat.asker.client) if each.seat.asker.client in self._turns else -1

        chosen = min(waiting, key=(lambda each: each.left) if self._shortest_first else turn)
        self._turns.pop(chosen.seat.asker.client, None)
        self._turns[chosen.seat.asker.client] = None
        if len(self._turns) > MOST_CLIENTS:
            del self._turns[clients[0]]
        return chosen

    def _read(self, waiting: _Waiting) -> None:
        """Takes a piece of a prompt through. A long one that has just begun is given up where others come, or have come
        since it was cut."""
        began, num_tokens = self.clock(), len(waiting.part.ids)
        short = self._short
        may_give_way = self.cuts and bool(self.rate) and num_tokens > short

        def check() -> None:
            waiting.check()
            if may_give_way and (len(self.seats) > 1 or self.pressed()):
                left_s = num_tokens / self.rate - (self.clock() - began)
                if left_s > PIECE_S:
                    raise GaveWay

        self._together([waiting], check)
        if isinstance(waiting.error, GaveWay):
            self._shortest_first = False  # so that the next one is who it gave way for
            self._longest = max(short, num_tokens // 2)  # or who comes again and again would let no piece end
        if waiting.logits is not None:
            self._longest = max(self._longest, 2 * num_tokens)
            self.rate = num_tokens / max(self.clock() - began, 1e-9)

    def _together(self, going: Sequence[_Waiting], check: Callable[[], None] | None = None) -> None:
        """Takes several through, or one after the other where something goes wrong: what is wrong with one is none of
        the others' business. A step that nobody waits for any more is given up.

        check: called between layers in place of the one's own.
        """

        def check_all() -> None:
            if all(each.unwanted() for each in going):
                raise Interrupted

        between_layers = check or (check_all if len(going) > 1 else going[0].check)
        began, watcher, whole = self.clock(), self.watcher, False
        if watcher is not None:
            watcher.pass_begins([(each.seat, len(each.part.ids)) for each in going])
        try:
            logits = self.model.step([each.part for each in going], between_layers)
            whole = True
        except MoeinfError as error:
            if len(going) == 1 or isinstance(error, DeviceError):
                _fail(going, error)
                return
        except BaseException as error:
            _fail(going, error)
            if not isinstance(error, Interrupted | GaveWay):
                raise
            return
        else:
            facts, at = StepFacts(self.clock() - began, len(going)), 0
            for each in going:
                each.logits, each.step = logits[at : at + each.rows], facts
                at += each.rows
            return
        finally:
            if watcher is not None:
                watcher.pass_ends(whole=whole)
        for each in going:
            self._together([each])


def _fail(going: Sequence[_Waiting], error: BaseException) -> None:
    for each in going:
        each.error = error


def _fitting(waiting: Sequence[_Waiting]) -> list[_Waiting]:
    """The first ones, as many as go together."""
    found, rows = list[_Waiting](), 0
    for each in waiting:
        rows += len(each.part.ids)
        if found and rows > MOST_ROWS:
            break
        found.append(each)
    return found
