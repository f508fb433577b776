"""Two workers behind cables that are cut, stand still, and change what passes: the tokens are those of one machine.

One worker's clock is days ahead or behind, where a namespace of its own may be had. Each answer is compared with that
of a model without workers; whatever was lost comes back, and leaves nothing open.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from moeinf.config import RuntimeConfig
from moeinf.distributed import peer
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.pull.pull import ensure
from moeinf.store.library import StoredModel
from tests.support.campaign.step import Done, Turn
from tests.support.ranks.cable import Cable
from tests.support.ranks.workers import RunningWorker, Workers

_PROMPTS: Final = ("Once upon a time", "The sea was calm, and", "def main():\n", "1 2 3 4 5 6 7 8")
_CONFIG: Final = {"threads": 1, "expert_cache": "30%", "prefix_memory": 0}
_TOKENS: Final = 12
_HASTE: Final = {"SILENT_S": 1.0, "PING_S": 0.1, "FIRST_RETRY_S": 0.1, "LAST_RETRY_S": 0.5, "REPLY_S": 5.0}
_WORKER_SILENT_S: Final = 2.0
_LONGEST_S: Final = 90.0  # of an answer, on a machine that others use
_BACK_S: Final = 120.0
_CALM: Final = 12  # answers, after which all is to come back
_MOST_APART_S: Final = 86400 * 40


class Far:
    """A worker, its cable, and how it is started again."""

    def __init__(self, workers: Workers, stored: StoredModel, rng: random.Random) -> None:
        self._workers, self._stored = workers, stored
        self._worker = self._started(0)
        self.cable = Cable(self._worker.address, rng)

    def _started(self, port: int) -> RunningWorker:
        return self._workers.start(self._stored, port=port, silent_s=_WORKER_SILENT_S, expert_cache="50%")

    def signal(self, number: int) -> None:
        self._worker.signal(number)

    def replace(self) -> None:
        """It is killed, and another one takes its port."""
        self.signal(signal.SIGKILL)
        while Path(f"/proc/{self._worker.pid}").exists():  # and with it its port
            time.sleep(0.01)
        self._worker = self._started(int(self._worker.address.rpartition(":")[2]))


def flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def shortened(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data))
    return data[:begin] + data[begin + rng.randint(1, len(data)) :]


def _pause(rng: random.Random) -> None:
    time.sleep(rng.choice((0.02, 0.2, 0.7, 3.0)))


def _held(far: Far, rng: random.Random) -> None:
    far.cable.hold()
    _pause(rng)
    far.cable.mend()


def _cut(far: Far, rng: random.Random) -> None:
    far.cable.cut()
    _pause(rng)
    far.cable.mend()


def _stopped(far: Far, rng: random.Random) -> None:
    far.signal(signal.SIGSTOP)
    _pause(rng)
    far.signal(signal.SIGCONT)


MISHAPS: Final[Mapping[str, Callable[[Far, random.Random], None]]] = {
    "cable held still": _held,
    "cable cut": _cut,
    "connections reset": lambda far, rng: far.cable.drop(),
    "one side ended": lambda far, rng: far.cable.end_one_side(),
    "a bit flipped": lambda far, rng: far.cable.change(partial(flipped, rng=rng)),
    "bytes lost": lambda far, rng: far.cable.change(partial(shortened, rng=rng)),
    "sent twice": lambda far, rng: far.cable.change(lambda data: data + data),
    "earlier bytes sent again": lambda far, rng: far.cable.change(lambda data: far.cable.sent_before() or data),
    "worker stopped": _stopped,
    "worker killed, and started again": lambda far, rng: far.replace(),
}


def cables(turn: Turn) -> Done:
    """Answers for so many seconds, with a mishap in most of them."""
    stored = ensure("demo", home=turn.folder / "home")
    with Model(stored, RuntimeConfig.of(**_CONFIG)) as alone:
        wanted = {prompt: _tokens(alone, prompt) for prompt in _PROMPTS}
    with ExitStack() as stack:
        stack.enter_context(_hasty())
        prefix = clock_apart(turn.rng.choice((turn.rng.randrange(_MOST_APART_S), -int(time.monotonic() / 2))))
        hosts = [stack.enter_context(Workers(_folder(turn, name), words)) for name, words in (("a", ()), ("b", prefix))]
        far = [Far(host, stored, random.Random(turn.rng.random())) for host in hosts]
        for each in far:
            stack.callback(each.cable.close)
        told = {"workers": ",".join(each.cable.address for each in far), "worker_key_file": str(hosts[0].key_file)}
        with Model(stored, RuntimeConfig.of(**_CONFIG, **told)) as model:
            done = _answered(model, far, wanted, turn)
    if prefix:
        done.counts["cable: steps with clocks apart"] += 1
    return done


def _answered(model: Model, far: list[Far], wanted: Mapping[str, list[int]], turn: Turn) -> Done:
    rng, done, names = turn.rng, Done(Counter(), []), list(MISHAPS)
    begun, longest, number = time.monotonic(), 0.0, turn.number
    _come_back(model, done)
    while number == turn.number or (not done.faults and time.monotonic() - begun < turn.seconds):
        for _ in range(_CALM):
            mishap, prompt = names[number % len(names)], rng.choice(list(wanted))
            given = mishap, rng.choice(far), random.Random(rng.random()), done
            meanwhile = threading.Thread(target=_later, args=given)
            asked = time.monotonic()
            meanwhile.start()
            found = _tokens(model, prompt)
            longest = max(longest, time.monotonic() - asked)
            meanwhile.join()
            number += 1
            done.counts[f"cable: {mishap}"] += 1
            done.counts["cable: answers, each the one of one machine"] += 1
            if found != wanted[prompt]:
                done.faults.append(f"{mishap}: {prompt!r} was answered by {found}, and not by {wanted[prompt]}")
        _come_back(model, done)
    if longest > _LONGEST_S:
        done.faults.append(f"an answer took {longest:.0f} s")
    done.measured["longest answer, s"] = round(longest, 1)
    return done


def _later(mishap: str, far: Far, rng: random.Random, done: Done) -> None:
    time.sleep(rng.uniform(0, 0.25))
    try:
        MISHAPS[mishap](far, rng)
    except Exception as error:  # nobody waits for this thread with a result
        done.faults.append(f"{mishap}: {error!r}")


def _come_back(model: Model, done: Done) -> None:
    """All workers own experts again within a while; what rank 0 has open is as much as before."""
    end = time.monotonic() + _BACK_S
    while not all(_owned(model)):
        if time.monotonic() > end:
            done.faults.append(f"a worker did not come back within {_BACK_S:.0f} s: experts by rank {_owned(model)}")
            return
        time.sleep(0.1)
        _tokens(model, _PROMPTS[0])
    count = len(os.listdir("/proc/self/fd"))
    most = done.measured.setdefault("files open when all were there at first", count) + 8  # those of a cable may linger
    if count > most:
        done.faults.append(f"{count} files are open, more than {most}")


def _owned(model: Model) -> list[int]:
    assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
    return [int((model.runner.star.owner == rank).sum()) for rank in (1, 2)]


def _tokens(model: Model, prompt: str) -> list[int]:
    model.generator.sequences.last.clear()
    return model.generate(prompt, model.params(temperature=0.0, num_predict=_TOKENS, stop=())).token_ids


def clock_apart(seconds: int) -> tuple[str, ...]:
    """Words in front of a command whose clock is so many seconds off; none where that cannot be had."""
    words = ("unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds))
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except OSError:
        return ()
    return words if done.returncode == 0 else ()


@contextmanager
def _hasty() -> Iterator[None]:
    """Lost workers are noticed, and called again, sooner than by default."""
    before: dict[str, Any] = {name: getattr(peer, name) for name in _HASTE}
    for name, value in _HASTE.items():
        setattr(peer, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(peer, name, value)


def _folder(turn: Turn, name: str) -> Path:
    folder = turn.folder / name
    folder.mkdir()
    return folder
