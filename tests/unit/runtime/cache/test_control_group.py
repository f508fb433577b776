"""A cache in a real control group, beside memory that is taken step by step: nothing is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_BYTES = 320 << 20
# A full cache of 160 MiB; beside it 200 MiB are taken, 10 at a time, each followed by a look at the machine.
BESIDE = """
import sys
from pathlib import Path
import numpy as np
from moeinf._native import Arena
from moeinf.hardware import memory_now
from moeinf.types import Profiler
from moeinf.runtime.policy.eviction import make_policy
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slot_sizes import equal_slots
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.io.python_reader import PureReader
from moeinf.types import MoeShape

MIB = 1 << 20
shape, arena = MoeShape(1, 40, 2), Arena(160 * MIB)
path = Path(sys.argv[1])
with path.open("wb") as file:
    file.truncate(160 * MIB)
reader = PureReader([str(path)], [160 * MIB], arena)
policy = make_policy("lru", shape, ActivationCollection(shape), 40)
cache = ExpertCache(shape, SlotRegion(arena.array(), 0, 40, equal_slots(4 * MIB, shape)), policy)
loader = Loader(cache, reader, arena.array())
tier = ExpertTier(cache, loader, ReadErrors([path], shape.num_experts), Profiler())
watch = MemoryWatch(tier, shape.top_k, 40 * MIB, print, memory_now)
tier.load_all(lambda done, total: None)
taken = []
for _ in range(20):
    taken.append(np.ones(10 * MIB, np.uint8))
    watch.look()
print(f"{tier.num_slots} slots beside it")
taken.clear()
watch.look()
print(f"{tier.num_slots} slots afterwards")
reader.close()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """The folder of a control group with a limit; skips where none can be made."""
    root = Path("/sys/fs/cgroup")
    root = root / "memory" if (root / "memory/memory.limit_in_bytes").exists() else root
    folder = root / f"moeinf-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        limits = [folder / name for name in ("memory.limit_in_bytes", "memory.max") if (folder / name).exists()]
        if not limits:
            pytest.skip(f"{root} hands no memory on to its groups")
        limits[0].write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        folder.rmdir()


def test_a_cache_makes_room_for_others_in_its_group_instead_of_being_killed(group: Path, tmp_path: Path) -> None:
    enter = group / "cgroup.procs"
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, str(tmp_path / "experts.bin")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: enter.write_text(str(os.getpid())) and None,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    beside, afterwards = (int(line.split()[0]) for line in done.stdout.splitlines() if "slots" in line)
    assert beside < 30 and afterwards == 40 and "ran short of memory" in done.stdout
