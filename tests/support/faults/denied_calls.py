"""Each system call refused in turn to run, pull, doctor and serve: the same tokens, or one line that is no bug report.

As a module it refuses every call that there is with several errnos, which takes an hour or two: `make denied-calls`.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.faults.forks import Case, Forks, Outcome, told_in_a_line
from tests.support.faults.seccomp import numbers

WORDS: Final = {
    "run": ("run", "demo", "--expert-cache", "33%", "--seed", "7", "-n", "6", "-q", "The king said"),
    "pull": ("pull", "demo", "-q"),
    "doctor": ("doctor",),
    "serve": ("serve", "--host", "127.0.0.1:0", "--expert-cache", "33%"),
}
# The product does without these.
SPARED: Final = (
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "eventfd2", "madvise", "fadvise64", "mbind"),
    *("sched_getaffinity", "sched_setaffinity", "getrusage", "sysinfo", "fstatfs", "kill", "uname"),
)
# A server that may not make these hears or says nothing, or has no event loop.
_TALK: Final = ("accept4", "recvfrom", "sendto", "epoll_create1", "epoll_ctl", "epoll_wait", "socketpair")
# Without one of these the library of C, or Python, ends the process or waits for ever, whatever it runs; and without
# `write` nobody can be told anything.
_BEYOND_US: Final = (
    *("brk", "exit", "exit_group", "futex", "getrandom", "munmap", "restart_syscall", "rseq", "rt_sigreturn", "write"),
)
# What these mean is no refusal: another process has the lock; there is nothing to read yet.
_MEANINGS: Final = (("flock", "EAGAIN"), ("fcntl", "EAGAIN"), ("read", "EAGAIN"))
_ERRNOS: Final = (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.ENOMEM, errno.EAGAIN)


class Denials:
    """The commands under filters of system calls, held against what they do without one."""

    def __init__(self, forks: Forks, home: Path) -> None:
        """home: a store that holds the embedded model."""
        self._forks, self._home = forks, home
        self._answer = self._run(home).out
        assert self._answer, "the command does not run here"

    def _run(self, home: Path) -> Outcome:
        return self._forks.run(Case(WORDS["run"], str(home)))

    def wrong(self, command: str, calls: Sequence[str], number: int, *, must_work: bool = False) -> str:
        """What is wrong with how a command went under a filter that refuses these calls with this errno, or "".

        must_work: only the same answer will do.
        """
        with tempfile.TemporaryDirectory() as empty:
            home = Path(empty, "home") if command == "pull" else self._home
            denied = [numbers()[call] for call in calls if call in numbers()]
            outcome = self._forks.run(Case(WORDS[command], str(home), denied, number))
            worked = self._worked(command, outcome)
            wrong = "" if worked else "it did not work" if must_work else self._said(command, outcome)
            if command == "pull":
                wrong = wrong or self._store_wrong(home, pulled=worked)
        name = errno.errorcode[number]
        return wrong and f"{command} without {', '.join(calls)} ({name}): {wrong}: {outcome}"

    def _worked(self, command: str, outcome: Outcome) -> bool:
        if command == "doctor" and outcome.code == 1:  # what is to be mended
            return "Machine" in outcome.out and not outcome.err
        if outcome.code != 0 or outcome.hung:
            return False
        if command == "run":
            return outcome.out.startswith(self._answer)  # OpenBLAS may write a line of its own behind it
        if command == "serve":
            return outcome.status == 200 and json.loads(outcome.answer)["response"] == self._answer.rstrip("\n")
        return True

    def _said(self, command: str, outcome: Outcome) -> str:
        if command == "serve" and outcome.status >= 400 and not outcome.hung and outcome.code == 0:
            vague = [word for word in ("unexpected", "report it") if word in outcome.answer + outcome.err]
            return "Traceback in the log" if "Traceback" in outcome.err else " ".join(vague)
        if command == "serve" and outcome.code == -signal.SIGTERM:  # it had said its line, and was about to end
            outcome = replace(outcome, code=1)
        return told_in_a_line(outcome)

    def _store_wrong(self, home: Path, *, pulled: bool) -> str:
        """A store is as it was, or has the whole model: which then answers as it should."""
        names = home / "names" / "demo" / "latest"
        if not names.exists():
            return "the model that was pulled has no name" if pulled else ""
        verified = self._forks.run(Case(("verify", "demo"), str(home)))
        if verified.code != 0 or self._run(home).out != self._answer:
            return f"the store is damaged ({verified})"
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", default=",".join(WORDS))
    parser.add_argument("--calls", default="", help="names, else all that there are")
    parser.add_argument("--errnos", default=",".join(errno.errorcode[number] for number in _ERRNOS))
    options = parser.parse_args()
    calls = options.calls.split(",") if options.calls else [name for name in numbers() if name not in _BEYOND_US]
    faults = cases = 0
    folder = Path(tempfile.mkdtemp())
    forks = Forks()
    try:
        forks.run(Case(WORDS["pull"], str(folder)))
        forks.run(Case(WORDS["doctor"], str(folder)))  # measures once
        denials = Denials(forks, folder)
        for command in options.commands.split(","):
            for call in calls:
                for name in options.errnos.split(",") if command != "serve" or call not in _TALK else ():
                    if (call, name) in _MEANINGS:
                        continue
                    wrong = denials.wrong(command, [call], getattr(errno, name))
                    cases += 1
                    if wrong:
                        faults += 1
                        print(wrong, flush=True)
            print(f"{command}: {cases} cases so far, {faults} faults", file=sys.stderr, flush=True)
    finally:
        forks.close()
        shutil.rmtree(folder, ignore_errors=True)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
