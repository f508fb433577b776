"""Mutates all that rank 0 and a worker send each other: each case is served, or ends in one line, and harms nobody.

    python -m tests.fuzz.hostile_peers [--seconds 600 | --cases 100000] [--seed 1] [--case 17]

A case is a stranger at one side of a meeting, somebody with the key who says what cannot be meant, a frame, a reply, a
whole session of messages, or a manifest that is sent; most cases have one mutation, some more. Whoever is let in has
proved the key by bytes that nobody has changed; what is read of a message lies within the model; a session ends with a
line. Some strangers come to a listener over TCP, which still serves a rank 0 every thousand cases. Exits 1 at a fault.
"""

from __future__ import annotations

import random
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from moeinf.config.pull_options import PullOptions
from moeinf.distributed.frames import Kind, Owned, Request, RequestForm
from moeinf.distributed.link import Link, LostError, MalformedError
from moeinf.distributed.listener import Listener
from moeinf.distributed.meeting import Facts, Offer, call, parse_answer, refusal, welcome
from moeinf.distributed.proof import ANSWER_BYTES, GREETING_BYTES, SAID_BYTES, Caller, Purpose, StrangerError, Visitor
from moeinf.distributed.replies import ReplyForm, counts_of, no_numbers
from moeinf.distributed.serving import Session
from moeinf.distributed.transfer import receive_model
from moeinf.errors import MoeinfError, WorkerError
from moeinf.pull.pull import pull
from moeinf.runtime.cache.table import BoolArray
from moeinf.store.library import Library
from moeinf.store.manifest import MANIFEST_FILE
from moeinf.types import ByteArray, Float32Array, MoeShape, Routing
from tests.support.fuzzing import mutate_bytes, run_cases

KEY, FACTS, OFFER, SESSION = b"a key that both have", Facts("1.2.3", "0" * 64, "avx2"), Offer(12, 2e9), bytes(16)
SHAPE, WIDTH = MoeShape(3, 6, 2, counts=(6, 4, 6)), 4
MINE = (np.arange(SHAPE.num_keys) % 2 == 0) & (np.arange(SHAPE.num_keys) != 10)  # layer 1 has no expert 4
NUMBERS = tuple(no_numbers().tolist())
LINE = 2000  # characters that one may have


class Experts:
    """moeinf.distributed.serving.ServedExperts that looks at what it is asked."""

    def only(self, mine: BoolArray, top_k: int) -> None:
        assert mine.shape == (SHAPE.num_keys,) and not mine[10:12].any() and 1 <= top_k <= SHAPE.num_experts
        self.mine, self.top_k = mine, top_k

    def run(self, request: Request, rows: Float32Array) -> None:
        check_request(request, Owned(self.mine, self.top_k))
        rows[:] = 1

    def counted(self) -> tuple[float, ...]:
        return NUMBERS

    def end(self) -> None:
        pass


def check_request(request: Request, owned: Owned) -> None:
    """What experts may count on."""
    ids, guess = request.ids, request.guess
    assert 0 <= request.layer < SHAPE.num_layers and request.pass_tokens >= 0
    assert ids.shape == (len(request.hidden), owned.top_k) and request.hidden.shape[1:] == (WIDTH,)
    assert np.isfinite(request.hidden).all()
    assert ((ids >= 0) & (ids < SHAPE.experts_of(request.layer))).all()
    assert request.num_rows == np.count_nonzero(owned.mine.reshape(3, -1)[request.layer][ids])
    if guess is not None:
        assert 0 <= request.guess_layer < SHAPE.num_layers
        assert ((guess.ids >= 0) & (guess.ids < SHAPE.experts_of(request.guess_layer))).all()
        assert guess.ids.shape == guess.weights.shape and np.isfinite(guess.weights).all()


def mutated(data: bytes, rng: random.Random) -> bytes:
    while rng.random() < 0.9:
        data = mutate_bytes(data, rng) if data else data
        if rng.random() < 0.7:
            break
    return data


def at(data: bytes, num_bytes: int) -> bytes:
    return data[:num_bytes].ljust(num_bytes, b"\0")


class Cases:
    def __init__(self, folder: Path) -> None:
        np.seterr(all="raise")
        self._folder, self._form = folder, RequestForm(SHAPE, WIDTH)
        stored = pull("demo", PullOptions(), home=folder / "home")
        self._manifest = (stored.path / MANIFEST_FILE).read_bytes()
        self._listener = Listener("127.0.0.1", 0, KEY, check_line)
        self._where = self._listener.address.host, self._listener.address.port
        often: tuple[Callable[[random.Random], str], ...] = (self._visitor, self._caller, self._said, self._reply)
        self._kinds = (*often * 3, *(self._frame,) * 6, *(self._session,) * 5)

    def run(self, seed: int, number: int) -> str:
        """How a case ended, in a word or two; raises what neither side may raise, and AssertionError."""
        rng = random.Random(seed * 10**9 + number)
        if number % 1000 == 999:
            return self._rank_0(rng)
        if number % 1000 == 500:
            return self._sent_model(rng)
        if number % 100 == 50:
            return self._stranger(rng)
        return rng.choice(self._kinds)(rng)

    # ---- meetings

    def _visitor(self, rng: random.Random) -> str:
        """At a worker."""
        caller, visitor = Caller(KEY, Purpose.SERVE, FACTS.packed()), Visitor(KEY)
        try:
            greeting = mutated(caller.greeting, rng)
            answer = take(visitor, greeting, rng)
            proof = caller.proof(answer) if len(answer) == GREETING_BYTES else b""
            sent = mutated(proof, rng)
            take(visitor, sent, rng)
        except StrangerError as error:
            check_line(str(error))
            return "visitor refused"
        if not visitor.is_proved:
            return "visitor refused"  # when its time is over
        assert greeting[:GREETING_BYTES] == caller.greeting and sent[: len(proof)] == proof, "let in without a proof"
        return "visitor sound"

    def _caller(self, rng: random.Random) -> str:
        """At rank 0."""
        caller, visitor = Caller(KEY, Purpose.SERVE, FACTS.packed()), Visitor(KEY)
        greeting = visitor.take(caller.greeting)
        try:
            changed = at(mutated(greeting, rng), GREETING_BYTES)
            proof = caller.proof(changed)
            if changed != greeting:
                answer = rng.randbytes(ANSWER_BYTES)
            else:
                visitor.take(proof)
                answer = visitor.answer(welcome(OFFER, SESSION))
            given = at(mutated(answer, rng), ANSWER_BYTES)
            said = caller.said(given)
        except StrangerError as error:
            check_line(str(error))
            return "caller refused"
        assert changed == greeting and given == answer, "believed without a proof"
        assert parse_answer(said) == (OFFER, SESSION)
        return "caller sound"

    def _said(self, rng: random.Random) -> str:
        """By somebody who has the key."""
        try:
            if rng.random() < 0.5:
                facts = Facts.parse(at(mutated(FACTS.packed(), rng), SAID_BYTES))
                check_line(facts.disagreement(FACTS) or "they agree")
                check_line(f"{facts.version}{facts.model}{facts.isa}.")
            else:
                sound = rng.choice([welcome(OFFER, SESSION), refusal("it serves another process")])
                offer, session = parse_answer(at(mutated(sound, rng), SAID_BYTES))
                assert offer.num_slots >= 0 and 0 <= offer.bytes_per_s < np.inf and len(session) == len(SESSION)
        except (MalformedError, WorkerError) as error:
            check_line(str(error))
            return "said refused"
        return "said sound"

    def _stranger(self, rng: random.Random) -> str:
        """At a listener, over TCP."""
        with socket.create_connection(self._where, 10) as stranger, suppress(ConnectionError):
            stranger.sendall(mutated(Caller(KEY, Purpose.SERVE, FACTS.packed()).greeting, rng))
            stranger.sendall(rng.randbytes(rng.randrange(2000)))
        return "stranger came"

    def _rank_0(self, rng: random.Random) -> str:
        thread = threading.Thread(target=self._listener.accept, args=(FACTS, OFFER, lambda: False))
        thread.start()
        offer, *links = call(*self._where, KEY, FACTS)
        thread.join()
        for link in links:
            link.close()
        assert offer == OFFER
        return "rank 0 served"

    # ---- messages

    def _frame(self, rng: random.Random) -> str:
        form, frame, rest = self._form, *self._packed(rng)
        owned = Owned(MINE, SHAPE.top_k)
        if rng.random() < 0.8:
            frame = np.frombuffer(at(mutated(frame.tobytes(), rng), form.frame_bytes), np.uint8).copy()
        try:
            head = form.head(frame)
            if head.kind == Kind.LEAVE:
                return "frame sound"
            behind = np.frombuffer(at(mutated(rest, rng), head.rest_bytes), np.uint8).copy()
            if head.kind == Kind.OWN:
                owned = form.owned(head, behind)
                Experts().only(*owned)
            else:
                check_request(form.unpack(head, frame, behind if head.rest_bytes else None, owned), owned)
        except MalformedError as error:
            check_line(str(error))
            return "frame refused"
        return "frame sound"

    def _packed(self, rng: random.Random) -> tuple[ByteArray, bytes]:
        """A message of rank 0."""
        form = self._form
        frame: ByteArray = np.zeros(form.frame_bytes, np.uint8)
        kind = rng.randrange(10)
        if kind < 2:
            return frame, form.pack_order(Kind.OWN, frame, MINE, SHAPE.top_k)
        if kind == 2:
            return frame, form.pack_order(Kind.LEAVE, frame)
        tokens, layer = rng.choice([1, 1, 1, 3, 0]), rng.randrange(3)
        ids = np.array([[rng.randrange(4) for _ in range(2)] for _ in range(tokens)], np.int64).reshape(tokens, 2)
        guess = Routing(np.array([[0, 3]]), np.ones((1, 2), np.float32)) if rng.random() < 0.5 else None
        num_rows = int(np.count_nonzero(MINE.reshape(3, -1)[layer][ids]))
        hidden = np.ones((tokens, WIDTH), np.float32)
        rest = form.pack(Request(layer, ids, hidden, tokens, num_rows, 1, guess), frame)
        return frame, b"" if rest is None else rest.tobytes()

    def _session(self, rng: random.Random) -> str:
        """Messages one after the other, of which some are wrong."""
        here, there = socket.socketpair()
        frame: ByteArray = np.zeros(self._form.frame_bytes, np.uint8)
        bits = self._form.pack_order(Kind.OWN, frame, MINE, SHAPE.top_k)
        sent = b"" if rng.random() < 0.1 else frame.tobytes() + bits
        for _ in range(rng.randrange(4)):
            one, rest = self._packed(rng)
            sent += one.tobytes() + rest
        with here:
            here.sendall(mutated(sent, rng))
            here.shutdown(socket.SHUT_WR)
            how = Session(Link(there), self._form, ReplyForm(WIDTH), Experts()).serve()
        check_line(how)
        return "session refused" if "any more" in how else "session ended"

    def _reply(self, rng: random.Random) -> str:
        form, num_rows = ReplyForm(WIDTH), rng.randrange(4)
        frame = form.frame(num_rows)
        form.rows(frame)[:] = 1
        form.say(frame, NUMBERS, rng.choice(["", "the disk is gone"]))
        frame = np.frombuffer(at(mutated(frame.tobytes(), rng), len(frame)), np.uint8).copy()
        try:
            if fault := form.fault(frame):
                check_line(fault)
                return "reply refused"
            counts_of(form.numbers(frame))
            assert np.isfinite(form.rows(frame)).all()
        except MalformedError as error:
            check_line(str(error))
            return "reply refused"
        return "reply sound"

    def _sent_model(self, rng: random.Random) -> str:
        """A manifest, and zeros for its files, which do not fit their checksums."""
        here, there = socket.socketpair()
        there.settimeout(1)
        data = mutated(self._manifest, rng)
        with here, there:
            threading.Thread(target=send_all, args=(here, len(data).to_bytes(8, "big") + data)).start()
            try:
                receive_model(Link(there), Library(self._folder / "there"), "demo", lambda done, total: None)
            except (MoeinfError, LostError) as error:
                check_line(str(error))
        return "model refused"


def take(visitor: Visitor, data: bytes, rng: random.Random) -> bytes:
    """Gives it what it wants, in pieces; the rest stays where it came from."""
    reply = b""
    while data and visitor.wanted:
        num_bytes = rng.choice([1, 7, visitor.wanted, visitor.wanted])
        piece, data = data[: min(num_bytes, visitor.wanted)], data[min(num_bytes, visitor.wanted) :]
        if reply := visitor.take(piece):
            break
    return reply


def send_all(to: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        to.sendall(data)
        to.shutdown(socket.SHUT_WR)


def check_line(line: str) -> None:
    assert line.isprintable() and 0 < len(line) < LINE, f"no line: {line!r}"


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, Cases))
