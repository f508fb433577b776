"""Power cuts: a file system in a file, which forgets all that was not written for good, at any moment of a command."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.campaign.scenes import SCENES, Scene, Stage, State, stage
from tests.support.campaign.step import Done, Turn
from tests.support.campaign.strikes import CHANGE, KILL_AFTER, SOURCE, check_between, heals, num_calls
from tests.support.faults.native import built

_SHUT_DOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_JOURNAL_KEPT, _ALL_LOST = 1, 2  # whether what the journal holds is written first
_BYTES: Final = 256 << 20


class Disk:
    """An ext4 of its own, mounted on a folder. Raises subprocess.CalledProcessError without root or loop devices."""

    def __init__(self, folder: Path, options: str) -> None:
        self._image, self.mount, self._options = folder / "disk.img", folder / "disk", options
        self.mount.mkdir()
        with self._image.open("wb") as file:
            file.truncate(_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))
        self._mount()

    def sync(self) -> None:
        """All that lies there is written for good."""
        folder = os.open(self.mount, os.O_RDONLY)
        ctypes.CDLL(None).syncfs(folder)
        os.close(folder)

    def cut(self, how: int) -> None:
        """The power fails, and comes back."""
        folder = os.open(self.mount, os.O_RDONLY)
        fcntl.ioctl(folder, _SHUT_DOWN, struct.pack("I", how))
        os.close(folder)
        self.close()
        self._mount()

    def close(self) -> None:
        for _ in range(50):  # a process that was killed may still be about to close its files
            if subprocess.run(["umount", str(self.mount)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        _run("umount", str(self.mount))

    def _mount(self) -> None:
        _run("mount", "-o", f"loop,{self._options}", str(self._image), str(self.mount))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def own_disk(folder: Path, options: str) -> Iterator[Disk]:
    """Raises as Disk."""
    disk = Disk(folder, options)
    try:
        yield disk
    finally:
        disk.close()


def power_cuts(turn: Turn) -> Done:
    """A scene that changes something, and the power fails behind one of its changes, or right behind its end.

    As with kills: what was there is there, no half thing is taken for whole, and the same command heals. What a command
    that has ended well had to say holds.
    """
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        return Done(Counter({"power cuts: steps left out, which need root and a loop device": 1}), [])
    rng, name = turn.rng, turn.of([name for name, scene in SCENES.items() if scene.changes])
    options = rng.choice(("defaults", "noauto_da_alloc"))
    scene, counts, faults = SCENES[name], Counter[str](), list[str]()
    with (
        own_disk(turn.folder, options) as disk,
        stage(turn.folder, built(SOURCE, turn.folder), disk.mount / "place") as played,
    ):
        wanted, before = played.whole(scene), played.before(scene)
        last, begun = num_calls(played, scene, CHANGE), time.monotonic()
        while not counts or time.monotonic() - begun < turn.seconds:
            at, how = rng.randint(1, last + 1), rng.choice((_JOURNAL_KEPT, _ALL_LOST))
            try:
                _cut(played, scene, disk, at, how, before, wanted)
            except AssertionError as error:
                faults.append(f"{name}, power cut behind {at} of {last} ({how}, {options}): {error}")
            counts[f"power cuts: {name}"] += 1
    return Done(counts, faults)


def _cut(played: Stage, scene: Scene, disk: Disk, at: int, how: int, before: State, wanted: State) -> None:
    home = played.set_up(scene) / "home"
    disk.sync()
    outcome = played.run(scene, (CHANGE, at, KILL_AFTER, 0))
    disk.cut(how)
    assert outcome.code in (0, -signal.SIGKILL), f"code {outcome.code}: {outcome.err}"
    between = check_between(played, scene, home, before, wanted)
    if outcome.code == 0:
        assert between == wanted["models"], "what had ended well did not last"
    heals(played, scene, wanted)
