"""Commands that are killed at an operation on files, or one of whose calls fails, is short, or takes long."""

from __future__ import annotations

import errno
import math
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.campaign.scenes import SCENES, Scene, Stage, State, stage
from tests.support.campaign.step import Done, Turn
from tests.support.faults import forks
from tests.support.faults.forks import Outcome, told_in_a_line
from tests.support.faults.native import built

# As in struck_calls.cc.
KINDS: Final = {"open": 1, "read": 2, "write": 3, "sync": 4, "rename": 5, "other": 6, "map": 7, "connect": 8}
CHANGE: Final = 9
FAIL, SHORT, HANG, KILL_BEFORE, KILL_AFTER = range(1, 6)
_ERRNOS: Final = {
    "open": (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOSPC, errno.EINTR, errno.ENOMEM, errno.EROFS, errno.ESTALE),
    "read": (errno.EIO, errno.EINTR, errno.ENOMEM, errno.ESTALE),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EINTR, errno.EROFS),
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "rename": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EXDEV),
    "other": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM),
    "map": (errno.ENOMEM, errno.EAGAIN),
    "connect": (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH),
}
_HANG_MS: Final = 200
_WORDS: Final = {FAIL: "failing", SHORT: "short", HANG: "slow"}
_PERIODS: Final = (1, 2, 3, 5, 8, 13, 21, 34)  # of calls that are struck again and again
_ALL_HANG_MS: Final = 3000  # together
_MOST: Final = {FAIL: 300, SHORT: 600, HANG: 4}  # calls of one kind and scene of a sweep
_CRASHED_AT: Final = re.compile(r'\(most recent call first\):\n  File "([^"]*)"')
SOURCE: Final = Path(forks.__file__).with_name("struck_calls.cc")
Strike = tuple[int, int, int, int, int]  # kind, the first call, action, errno or milliseconds, period (0: one call)


def kills(turn: Turn) -> Done:
    """A scene that changes something, killed at one change after the other, before it or behind it.

    What the store held is there, no half thing is taken for whole, the same command then ends as if nothing had
    happened, and what is left can be pruned. Sometimes the second command is killed as well.
    """
    rng, name = turn.rng, turn.of([name for name, scene in SCENES.items() if scene.changes])
    scene, counts, faults = SCENES[name], Counter[str](), list[str]()
    with stage(turn.folder, built(SOURCE, turn.folder), quick=True) as played:
        wanted, before = played.whole(scene), played.before(scene)
        last = num_calls(played, scene, CHANGE)
        begun = time.monotonic()
        while not counts or time.monotonic() - begun < turn.seconds:
            places = [
                (rng.randint(1, last), rng.choice((KILL_BEFORE, KILL_AFTER))) for _ in range(rng.choice((1, 1, 2)))
            ]
            try:
                counts[f"kills: {name}"] += killed(played, scene, places, before, wanted)
            except AssertionError as error:
                faults.append(f"{name}, killed at {places} of {last}: {error}")
    return Done(counts, faults)


def num_calls(played: Stage, scene: Scene, kind: int) -> int:
    """How many calls of a kind the scene makes."""
    played.set_up(scene)
    return played.run(scene, (kind, 0, FAIL, errno.EIO, 0)).calls


def killed(played: Stage, scene: Scene, places: list[tuple[int, int]], before: State, wanted: State) -> int:
    """Returns how many kills there were."""
    home, killed = played.set_up(scene) / "home", 0
    for at, action in places:
        outcome = played.run(scene, (CHANGE, at, action, 0, 0))
        killed += outcome.code == -signal.SIGKILL
        assert not outcome.hung, "it hung"
        if outcome.code not in (0, -signal.SIGKILL):  # the second of two, behind a first that had all but ended
            assert not scene.repeated and killed, f"code {outcome.code}: {outcome.err}"
        check_between(played, scene, home, before, wanted)
    heals(played, scene, wanted)
    return killed


def check_between(played: Stage, scene: Scene, home: Path, before: State, wanted: State) -> State:
    """What each name holds, which is what it did, or what it is to; and none is lost that is to stay."""
    between = played.check(home)
    for name, held in between.items():
        assert held in (before.get(name), wanted["models"].get(name)), f"{name} holds something between the two"
    if scene.keeps:
        lost = before.keys() - between.keys()
        assert not lost, f"{lost} are lost"
    return between


def heals(played: Stage, scene: Scene, wanted: State) -> None:
    again = played.run(scene)
    if again.code != 0 and not scene.repeated:  # what was to be removed has gone
        wrong = told_in_a_line(again)
        assert not wrong, f"the same command again: {wrong}: {again.err}"
        again = Outcome(0, "", "")
    found = played.state(scene, again)
    assert found == wanted, f"the same command again ends otherwise: {_difference(found, wanted)}"


def _difference(found: State, wanted: State) -> str:
    parts = {part: (str(found[part])[:300], str(value)[:300]) for part, value in wanted.items() if found[part] != value}
    if "files" in parts:
        more, fewer = (
            sorted(set(a) - set(b)) for a, b in ((found["files"], wanted["files"]), (wanted["files"], found["files"]))
        )
        parts["files"] = (f"more: {more[:5]}", f"missing: {fewer[:5]}")
    return str(parts)


def calls(turn: Turn) -> Done:
    """One kind of call of a scene, from the first to the last, until the time is over: each in turn fails, or the like.

    Where it fails, the command does without it, or says so in a line; where it is short or takes long, nothing is
    different. What the store held is there afterwards, and the same command then ends as if nothing had happened.
    """
    rng, name = turn.rng, turn.of(list(SCENES))
    action = rng.choice((FAIL, FAIL, FAIL, SHORT, HANG))
    kind = rng.choice(("read", "write") if action == SHORT else [kind for kind in KINDS if kind != "connect"])
    if name in ("pull from the Hub", "serve") and action != SHORT and rng.random() < 0.3:
        kind = "connect"
    return _one_after_the_other(turn, name, [kind], action, turn.seconds)


def swept_calls(turn: Turn) -> Done:
    """All calls of one kind of a scene, as in calls, however long that takes, or every k-th, so that they are no more
    than _MOST. A sweep is so many steps, each of which takes the next kind and scene; slow calls of all kinds are one.
    """
    sweep = [(FAIL, [kind]) for kind in KINDS] + [(SHORT, ["read"]), (SHORT, ["write"]), (HANG, list(KINDS))]
    action, kinds = sweep[turn.number % (len(sweep) * len(SCENES)) // len(SCENES)]
    return _one_after_the_other(turn, turn.of(list(SCENES)), kinds, action, math.inf, _MOST[action])


def every_kth(turn: Turn, last: int, most: int) -> range:
    """Of the calls from 1 to last no more than `most`, evenly, the first of them drawn."""
    every = max(1, math.ceil(last / most))
    return range(turn.rng.randint(1, every), last + 1, every)


def _one_after_the_other(
    turn: Turn, name: str, kinds: Sequence[str], action: int, seconds: float, most: int = sys.maxsize
) -> Done:
    rng, scene, counts, faults = turn.rng, SCENES[name], Counter[str](), list[str]()
    what = _WORDS[action]
    with stage(turn.folder, built(SOURCE, turn.folder), quick=True) as played:
        wanted, before, begun = played.whole(scene), played.before(scene), time.monotonic()
        for kind in kinds:
            last = num_calls(played, scene, KINDS[kind])
            taken = every_kth(turn, last, most)
            counts[f"unswept: {what} {kind} calls"] = last - len(taken)
            for at in rng.sample(taken, len(taken)):
                value = _HANG_MS if action == HANG else rng.choice(_ERRNOS[kind])
                try:
                    outcome = struck(played, scene, (KINDS[kind], at, action, value, 0), before, wanted)
                    counts["beyond us: Python crashes"] += outcome.code == -signal.SIGSEGV
                    counts[f"{what} {kind} calls: {name}"] += outcome.calls >= at
                except AssertionError as error:
                    how = errno.errorcode[value] if action == FAIL else what
                    faults.append(f"{name}, call {at} of {last} of the kind {kind} ({how}): {error}")
                if time.monotonic() - begun > seconds:
                    break
    return Done(+counts, faults)


def repeated_calls(turn: Turn) -> Done:
    """A scene of whose calls of one kind every k-th fails, is short or takes long, for all kinds and several k.

    As of one such call alone.
    """
    rng, name = turn.rng, turn.of(list(SCENES))
    scene, counts, faults = SCENES[name], Counter[str](), list[str]()
    with stage(turn.folder, built(SOURCE, turn.folder), quick=True) as played:
        wanted, before = played.whole(scene), played.before(scene)
        for kind, number in KINDS.items():
            last = num_calls(played, scene, number)
            for action in (FAIL, HANG, *((SHORT,) if kind in ("read", "write") else ())):
                for period in [each for each in _PERIODS if each <= last]:
                    # What is interrupted each time is repeated for ever, as POSIX has it.
                    errors = [each for each in _ERRNOS[kind] if each != errno.EINTR or period > 1]
                    slow_ms = min(_HANG_MS, max(1, _ALL_HANG_MS * period // last))
                    value, at = slow_ms if action == HANG else rng.choice(errors), rng.randint(1, period)
                    try:
                        outcome = struck(played, scene, (number, at, action, value, period), before, wanted)
                        counts["beyond us: Python crashes"] += outcome.code == -signal.SIGSEGV
                        counts[f"every: {name}"] += outcome.calls >= at
                    except AssertionError as error:
                        how = errno.errorcode[value] if action == FAIL else _WORDS[action]
                        faults.append(f"{name}, every {period}. {kind} of {last} from {at} on ({how}): {error}")
    return Done(+counts, faults)


def struck(played: Stage, scene: Scene, strike: Strike, before: State, wanted: State) -> Outcome:
    home = played.set_up(scene) / "home"
    outcome = played.run(scene, strike)
    assert not outcome.hung, "it hung"
    worked = outcome.code == 0 and (scene.words[0] != "serve" or outcome.status == 200)
    if not worked:
        if strike[2] != FAIL:
            raise AssertionError(f"it did not work: {outcome}")
        wrong = "" if _python_crashed(outcome) else _refused(scene, outcome)
        assert not wrong, f"{wrong}: {outcome}"
        check_between(played, scene, home, before, wanted)
    else:
        found = played.state(scene, outcome)
        if found != wanted and strike[2] != FAIL:
            raise AssertionError(f"it ended otherwise: {_difference(found, wanted)}")
    heals(played, scene, wanted)
    return outcome


def _python_crashed(outcome: Outcome) -> bool:
    """Within its import of a module: Python 3.11 loses the error of a frame that is refused memory, and goes on."""
    found = _CRASHED_AT.search(outcome.err)
    return outcome.code == -signal.SIGSEGV and found is not None and found[1] == "<frozen importlib._bootstrap>"


def _refused(scene: Scene, outcome: Outcome) -> str:
    """What is wrong with how a command has said that it cannot do its work, or ""."""
    if scene.words[0] == "serve" and outcome.status >= 400 and outcome.code == 0:
        vague = [word for word in ("unexpected", "report it") if word in outcome.answer + outcome.err]
        return "Traceback in the log" if "Traceback" in outcome.err else " ".join(vague)
    return told_in_a_line(outcome)
