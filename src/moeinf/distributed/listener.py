"""A worker's address: strangers come to it, and whoever proves that it has the key is let in.

A thread of its own waits for all of them at once. Of a stranger it keeps a few hundred bytes, for a few seconds; where
more come than there is room for, the oldest of the address that has most of them has to go.
"""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moeinf.distributed.binding import bound
from moeinf.distributed.link import TICK_S, Link, MalformedError
from moeinf.distributed.meeting import MEET_S, SESSION_BYTES, Facts, Offer, PeerAddress, refusal, welcome
from moeinf.distributed.proof import Purpose, StrangerError, Visitor
from moeinf.errors import LIMIT_REMEDIES

MOST_VISITORS: Final = 64  # that have not proved themselves
SILENT_S: Final = 30.0  # without a byte on the pulse of rank 0, which sends one every second: its machine is gone
_AT_ONCE: Final = 16  # visitors that are let in before the others are looked at again
_PAUSE_S: Final = 0.1  # where the system gives no more descriptors
_QUIET_S: Final = 10.0  # from one line about strangers to the next
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(eq=False, slots=True)
class _Guest:
    socket: socket.socket
    address: str
    visitor: Visitor
    leaves_s: float  # when it is put out


@dataclass(eq=False, slots=True)
class _Served:
    """The rank 0 that is served."""

    link: Link
    session: bytes
    heard_s: float
    pulses: list[socket.socket] = field(default_factory=list)


class Listener:
    """Lets one rank 0 in after the other. Close it, or use `with`."""

    def __init__(self, host: str, port: int, key: bytes, say: Callable[[str], None] = lambda line: None) -> None:
        """Port 0: any that is free. say: is told who was refused, from another thread; a flood is few lines.

        Raises WorkerError where the address cannot be had, UsageError where it is every address of this machine.
        """
        self._key, self._say = key, say
        self._socket = bound(host, port)
        self.address = PeerAddress(*self._socket.getsockname()[:2])
        self._told_s, self._untold = float("-inf"), 0  # of strangers
        self._guests: dict[socket.socket, _Guest] = {}
        self._changed = threading.Condition()  # over the next four
        self._offered: tuple[Facts, Offer] | None = None
        self._served: _Served | None = None
        self._arrived: Link | None = None
        self._fault: BaseException | None = None
        self._closed = threading.Event()
        self._woken, self._wakes = socket.socketpair()
        for each in (self._socket, self._woken, self._wakes):
            each.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, self._let_in)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(target=self._attend, name="listener", daemon=True)
        self._thread.start()

    def accept(self, facts: Facts, offer: Offer, should_stop: Callable[[], bool]) -> Link | None:
        """Waits for a rank 0 which knows the key, and whose facts agree; None where should_stop() says so.

        The one before is served no longer.
        """
        with self._changed:
            self._offered, self._arrived = (facts, offer), None
        self._wake()
        with self._changed:
            try:
                while not should_stop():
                    if self._fault is not None:
                        raise self._fault
                    if self._arrived is not None:
                        return self._arrived
                    self._changed.wait(TICK_S)
                return None
            finally:
                self._offered = None

    def close(self) -> None:
        self._closed.set()
        self._wake()
        self._thread.join()
        for each in (self._socket, self._woken, self._wakes, *self._guests):
            each.close()
        self._end_served()
        self._selector.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what follows is of the thread

    def _attend(self) -> None:
        try:
            while not self._closed.is_set():
                waits = bool(self._guests) or self._served is not None
                for each, _ in self._selector.select(TICK_S if waits else None):
                    each.data()
                self._look_at_clock()
        except BaseException as error:  # whoever waits for a rank 0 raises it
            with self._changed:
                self._fault = error
                if self._served is not None:
                    self._served.link.break_off(str(error))
                self._changed.notify_all()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it will wake up
            self._wakes.send(b"!")

    def _wake_up(self) -> None:
        with suppress(OSError):
            self._woken.recv(64)
        if self._offered is not None:
            self._end_served()
        for guest in [each for each in self._guests.values() if each.visitor.is_proved][::-1]:
            self._admit(guest)  # the last one first: others have waited for long, and may have given up

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for guest in [each for each in self._guests.values() if now > each.leaves_s]:
            self._dismiss(guest)
        served = self._served
        if served is not None and now - served.heard_s > SILENT_S:
            self._end_served("it does not answer")

    # ---- strangers

    def _let_in(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connected, whence = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # of that visitor, or of this machine
                return self._no_room(error) if error.errno in _NO_ROOM else None
            connected.setblocking(False)
            if len(self._guests) >= MOST_VISITORS:
                self._dismiss(self._least_wanted())
            guest = _Guest(connected, str(whence[0]), Visitor(self._key), time.monotonic() + MEET_S)
            try:
                self._selector.register(connected, selectors.EVENT_READ, partial(self._hear, guest))
            except OSError as error:
                connected.close()
                return self._no_room(error)
            self._guests[connected] = guest

    def _no_room(self, error: OSError) -> None:
        if self._guests:
            self._dismiss(self._least_wanted())
        else:
            self._closed.wait(_PAUSE_S)
        remedy = LIMIT_REMEDIES.get(error.errno or 0, "end some other program")
        self._tell(f"a visitor cannot be let in: {error.strerror}; {remedy}")

    def _least_wanted(self) -> _Guest:
        """The oldest of the address that has most; of those that are proved only where there are no others."""
        guests = [each for each in self._guests.values() if not each.visitor.is_proved] or list(self._guests.values())
        counts = Counter(each.address for each in guests)
        return max(guests, key=lambda each: counts[each.address])

    def _hear(self, guest: _Guest) -> None:
        if guest.socket not in self._guests:  # put out since the selector has named it
            return
        try:
            data = guest.socket.recv(guest.visitor.wanted or 1)
            if not data or guest.visitor.is_proved:  # it has gone, or speaks out of turn
                return self._dismiss(guest)
            if reply := guest.visitor.take(data):
                guest.socket.send(reply)
        except BlockingIOError:
            return
        except OSError:
            return self._dismiss(guest)
        except StrangerError as error:
            with suppress(OSError):
                guest.socket.send(error.reply)
            self._tell(f"refused {guest.address}: {error}")
            return self._dismiss(guest)
        if guest.visitor.is_proved:
            self._admit(guest)

    def _dismiss(self, guest: _Guest) -> None:
        self._let_go(guest).close()

    def _let_go(self, guest: _Guest) -> socket.socket:
        self._selector.unregister(guest.socket)
        del self._guests[guest.socket]
        return guest.socket

    def _tell(self, line: str) -> None:
        """Of strangers, who may be many."""
        now = time.monotonic()
        if now - self._told_s < _QUIET_S:
            self._untold += 1
            return
        others = f" (and {self._untold} others before)" if self._untold else ""
        self._told_s, self._untold = now, 0
        self._report(line + others)

    def _report(self, line: str) -> None:
        with suppress(OSError):  # nobody reads it
            self._say(line)

    # ---- those that are proved

    def _admit(self, guest: _Guest) -> None:
        """Serves one that is proved, refuses it, or lets it wait until a rank 0 can be served."""
        if guest.visitor.purpose == Purpose.PULSE:
            return self._take_pulse(guest)
        if guest.visitor.purpose != Purpose.SERVE:
            return self._refuse(guest, "it does not know what rank 0 comes for; install the same moeinf on both")
        with self._changed:
            if self._served is not None:
                return self._refuse(guest, "it serves another process")
            if self._offered is None:
                return
            facts, offer = self._offered
            try:
                why = facts.disagreement(Facts.parse(guest.visitor.said))
            except MalformedError as error:
                why = str(error)
            if why:
                self._report(f"refused rank 0: {why}")
                return self._refuse(guest, why)
            session = secrets.token_bytes(SESSION_BYTES)
            if not self._answer(guest, welcome(offer, session)):
                return
            link = Link(self._let_go(guest), guest.visitor.keys)
            self._served = _Served(link, session, time.monotonic())
            self._arrived, self._offered = link, None
            self._changed.notify_all()

    def _refuse(self, guest: _Guest, why: str) -> None:
        if self._answer(guest, refusal(why)):
            self._dismiss(guest)

    def _answer(self, guest: _Guest, said: bytes) -> bool:
        """Whether it was still there."""
        try:
            guest.socket.send(guest.visitor.answer(said))  # fits what the system keeps for it
        except OSError:
            self._dismiss(guest)
            return False
        return True

    def _take_pulse(self, guest: _Guest) -> None:
        served = self._served
        if served is None or guest.visitor.said[:SESSION_BYTES] != served.session or served.pulses:
            return self._refuse(guest, "it does not serve that process")
        if not self._answer(guest, welcome(Offer(0, 0.0), served.session)):
            return
        pulse = self._let_go(guest)
        try:
            self._selector.register(pulse, selectors.EVENT_READ, partial(self._echo, served, pulse))
        except OSError as error:  # a rank 0 without a pulse is not served for long
            pulse.close()
            return self._no_room(error)
        served.pulses.append(pulse)

    def _echo(self, served: _Served, pulse: socket.socket) -> None:
        if pulse not in served.pulses:
            return
        try:
            data = pulse.recv(64)
            if data:
                pulse.send(data)
                served.heard_s = time.monotonic()
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._end_served()

    def _end_served(self, why: str = "") -> None:
        served, self._served = self._served, None
        if served is not None:
            served.link.break_off(why)
            while served.pulses:
                pulse = served.pulses.pop()
                self._selector.unregister(pulse)
                pulse.close()
