"""One suite, every reader: the native engine over io_uring and over threads, and their Python twin."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf._native import Arena, NativeReader, ReadFailure, crc32c
from moeinf.runtime.io.python_reader import PureReader
from moeinf.types import FloatArray, IntArray

BLOCK = 4096
EXPERT_BYTES = 12 * BLOCK
NUM_EXPERTS = 16
NUM_FILES = 2
NUM_KEYS = NUM_FILES * NUM_EXPERTS
SLOTS_BYTES = NUM_KEYS * EXPERT_BYTES
HOLE_BYTES = 64 << 20
DEMAND = np.inf


def ids(*keys: int) -> IntArray:
    return np.array(keys, dtype=np.int64)


def scores(*priorities: float) -> FloatArray:
    return np.array(priorities, dtype=np.float64)


def open_reader(
    kind: str, paths: Sequence[Path | str], sizes: list[int], arena: Arena, *, queue_depth: int = 16
) -> NativeReader | PureReader:
    names = [str(path) for path in paths]
    if kind == "pure":
        return PureReader(names, sizes, arena, segment_bytes=2 * BLOCK)
    return NativeReader(
        names, sizes, arena, backend=native(kind), queue_depth=queue_depth, prefetch_depth=4, segment_bytes=2 * BLOCK
    )


def native(kind: str) -> Literal["io_uring", "threads"]:
    return "io_uring" if kind == "io_uring" else "threads"


class Bench:
    """Shard files of random bytes, an arena with a slot per expert, and a reader from one to the other.

    A further file is one hole of HOLE_BYTES: reads of it take long, occupy no disk and end in the tail of the arena.
    """

    def __init__(self, kind: str, folder: Path, *, queue_depth: int = 16) -> None:
        folder.mkdir()
        self.paths = [folder / f"experts-{i}.bin" for i in range(NUM_FILES)]
        self.content = np.random.default_rng(3).integers(0, 256, (NUM_KEYS, EXPERT_BYTES), dtype=np.uint8)
        for path, part in zip(self.paths, np.split(self.content, NUM_FILES), strict=True):
            part.tofile(path)
        self.hole = folder / "hole.bin"
        self.hole.touch()
        os.truncate(self.hole, HOLE_BYTES)
        self.arena = Arena(SLOTS_BYTES + HOLE_BYTES)
        self.slots = self.arena.array()[:SLOTS_BYTES].reshape(NUM_KEYS, EXPERT_BYTES)
        sizes = [NUM_EXPERTS * EXPERT_BYTES] * NUM_FILES + [HOLE_BYTES]
        self.reader = open_reader(kind, [*self.paths, self.hole], sizes, self.arena, queue_depth=queue_depth)

    def submit(self, keys: IntArray, priorities: FloatArray) -> None:
        """Reads expert `key` into the slot of the same number, counted from the last."""
        files, experts = np.divmod(keys, NUM_EXPERTS)
        destinations = (NUM_KEYS - 1 - keys) * EXPERT_BYTES
        self.reader.submit(keys, files, experts * EXPERT_BYTES, destinations, EXPERT_BYTES, priorities)

    def demand(self, *keys: int) -> None:
        self.submit(ids(*keys), np.full(len(keys), DEMAND))

    def submit_hole(self, key: int, priority: float) -> None:
        self.reader.submit(ids(key), ids(NUM_FILES), ids(0), ids(SLOTS_BYTES), HOLE_BYTES, scores(priority))

    def occupy(self, priority: float) -> IntArray:
        """Queues reads of seconds in all, so that what happens next happens while they are under way; their keys."""
        keys = np.arange(1000, 1400)
        for key in keys.tolist():
            self.submit_hole(key, priority)
        return keys

    def landed_bytes(self, key: int) -> npt.NDArray[np.uint8]:
        landed: npt.NDArray[np.uint8] = self.slots[NUM_KEYS - 1 - key]
        return landed

    def check(self, keys: IntArray) -> None:
        for key in keys.tolist():
            assert np.array_equal(self.landed_bytes(key), self.content[key]), f"expert {key} differs"

    def wait_all(self, *keys: int) -> list[int]:
        """All keys, in the order in which they landed."""
        order: list[int] = []
        while left := [key for key in keys if key not in order]:
            order += self.reader.wait_any(ids(*left)).tolist()
        return order


@pytest.fixture
def make_bench(kind: str, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: int) -> Bench:
        made.append(Bench(kind, tmp_path / str(len(made)), **options))
        return made[-1]

    yield make
    for bench in made:
        bench.reader.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


def test_every_expert_lands_whole_in_its_slot(bench: Bench, kind: str) -> None:
    bench.demand(*range(NUM_KEYS))
    assert sorted(bench.wait_all(*range(NUM_KEYS))) == list(range(NUM_KEYS))
    bench.check(np.arange(NUM_KEYS))
    assert bench.reader.bytes_read() == NUM_KEYS * EXPERT_BYTES
    assert bench.reader.busy_seconds() > 0
    assert bench.reader.backend == kind


def test_a_reader_knows_what_it_was_asked_for_until_that_is_collected_or_cancelled(bench: Bench) -> None:
    everything = np.arange(NUM_KEYS)
    assert bench.reader.known(everything).tolist() == []
    bench.demand(3, 5)
    assert sorted(bench.reader.known(everything).tolist()) == [3, 5]
    with pytest.raises(ValueError, match="submitted already"):
        bench.demand(7, 5)
    assert sorted(bench.reader.known(everything).tolist()) == [3, 5]
    bench.wait_all(5)
    assert bench.reader.known(ids(5)).tolist() == []
    bench.wait_all(3)
    bench.occupy(0.9)
    bench.submit(ids(1), scores(0.1))
    assert bench.reader.known(ids(1, 2)).tolist() == [1]
    if bench.reader.cancel(ids(1)).tolist() == [1]:
        assert bench.reader.known(ids(1)).tolist() == []


def test_demand_comes_first_then_prefetches_by_priority(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(queue_depth=1)
    bench.submit(ids(1, 2, 3, 4, 5), scores(0.1, 0.9, DEMAND, DEMAND, 0.9))
    order = bench.wait_all(1, 2, 3, 4, 5)
    assert order == [3, 4, 2, 5, 1]


def test_a_demand_overtakes_the_prefetches_before_it(bench: Bench) -> None:
    prefetched = bench.occupy(0.5)
    bench.demand(0)
    bench.wait_all(0)
    bench.check(ids(0))
    assert len(bench.reader.cancel(prefetched)) > 0  # under first come, first served they would all have landed


def test_a_prefetch_that_is_half_read_yields_to_a_demand(make_bench: Callable[..., Bench]) -> None:
    """A round in which the prefetch landed before the demand was even submitted proves nothing, and is repeated."""
    bench = make_bench(queue_depth=1)
    for _ in range(20):
        bench.submit_hole(1, 0.5)
        bench.demand(0)
        if bench.wait_all(0, 1) == [0, 1]:
            return
    pytest.fail("the demand waited for the whole prefetch, 20 times")


def test_a_raised_prefetch_overtakes_the_others(bench: Bench) -> None:
    prefetched = bench.occupy(0.5)
    bench.submit(ids(7), scores(0.1))
    bench.reader.reprioritise(ids(7), scores(DEMAND))
    bench.wait_all(7)
    bench.check(ids(7))
    assert len(bench.reader.cancel(prefetched)) > 0


def test_nothing_is_read_twice_however_often_it_is_reprioritised(bench: Bench) -> None:
    keys = np.arange(NUM_KEYS)
    bench.submit(keys, keys / NUM_KEYS)
    for priority in (0.9, DEMAND, 0.1, DEMAND):
        bench.reader.reprioritise(keys, np.full(NUM_KEYS, priority))
    bench.wait_all(*keys.tolist())
    bench.reader.reprioritise(keys, np.full(NUM_KEYS, DEMAND))  # all unknown by now
    bench.check(keys)
    assert bench.reader.bytes_read() == NUM_KEYS * EXPERT_BYTES


def test_cancelled_reads_never_happen_and_may_be_submitted_again(bench: Bench) -> None:
    occupied = bench.occupy(0.9)
    keys = np.arange(NUM_KEYS)
    bench.slots.fill(0xA5)
    bench.submit(keys, np.full(NUM_KEYS, 0.1))
    cancelled = bench.reader.cancel(keys)
    assert cancelled.tolist() == keys.tolist()
    assert bench.reader.cancel(keys).tolist() == []
    assert (bench.slots == 0xA5).all()
    with pytest.raises(ValueError, match="not being read"):
        bench.reader.wait_any(ids(3))
    bench.reader.cancel(occupied)
    bench.demand(3)
    bench.wait_all(3)
    bench.check(ids(3))


def test_poll_tells_each_end_once_and_never_blocks(bench: Bench) -> None:
    bench.occupy(0.5)
    bench.demand(0, 1, 2)
    bench.wait_all(2, 1)
    done: list[int] = []
    while 0 not in done:
        done += bench.reader.poll().done.tolist()
    assert 1 not in done and 2 not in done
    assert 0 not in bench.reader.poll().done
    with pytest.raises(ValueError, match="not being read"):
        bench.reader.wait_any(ids(0))


def test_a_key_that_is_known_is_refused_with_all_of_its_call(bench: Bench) -> None:
    bench.demand(1)
    for keys in ((2, 1), (2, 2)):
        with pytest.raises(ValueError, match="is submitted already"):
            bench.demand(*keys)
    bench.wait_all(1)
    bench.demand(1, 2)
    bench.wait_all(1, 2)
    assert bench.reader.bytes_read() == 3 * EXPERT_BYTES


@pytest.mark.parametrize(
    ("file", "offset", "destination", "num_bytes"),
    [
        (0, 1, 0, BLOCK),
        (0, 0, 1, BLOCK),
        (0, 0, 0, BLOCK + 1),
        (0, 0, 0, 0),
        (0, 0, 0, -BLOCK),
        (0, -BLOCK, 0, BLOCK),
        (0, NUM_EXPERTS * EXPERT_BYTES, 0, BLOCK),
        (0, 0, SLOTS_BYTES + HOLE_BYTES, BLOCK),
        (0, 2**63 - BLOCK, 0, BLOCK),
        (0, 0, 2**63 - BLOCK, BLOCK),
        (-1, 0, 0, BLOCK),
        (NUM_FILES + 1, 0, 0, BLOCK),
    ],
)
def test_a_range_outside_or_off_its_borders_is_refused(
    bench: Bench, file: int, offset: int, destination: int, num_bytes: int
) -> None:
    with pytest.raises(ValueError, match="key 5"):
        bench.reader.submit(ids(5), ids(file), ids(offset), ids(destination), num_bytes, scores(DEMAND))
    with pytest.raises(ValueError, match="not being read"):
        bench.reader.wait_any(ids(5))


def test_a_priority_that_cannot_be_ordered_is_refused(bench: Bench) -> None:
    for priority in (np.nan, -np.inf):
        with pytest.raises(ValueError, match="priority"):
            bench.submit(ids(1), scores(priority))
        with pytest.raises(ValueError, match="priority"):
            bench.reader.reprioritise(ids(1), scores(priority))


def test_columns_of_different_length_and_empty_waits_are_refused(bench: Bench) -> None:
    with pytest.raises(ValueError):
        bench.reader.submit(ids(1, 2), ids(0), ids(0), ids(0), BLOCK, scores(DEMAND))
    with pytest.raises(ValueError):
        bench.reader.reprioritise(ids(1, 2), scores(DEMAND))
    with pytest.raises(ValueError, match="at least one key"):
        bench.reader.wait_any(ids())


def test_empty_calls_do_nothing(bench: Bench) -> None:
    bench.demand()
    bench.reader.reprioritise(ids(), scores())
    assert bench.reader.cancel(ids()).tolist() == []
    done, failed = bench.reader.poll()
    assert done.dtype == failed.dtype == np.int64
    assert len(done) == len(failed) == 0


def test_a_truncated_file_is_an_error_that_names_it_and_harms_no_other_read(bench: Bench) -> None:
    shard = bench.paths[1]
    os.truncate(shard, 5 * EXPERT_BYTES + BLOCK)
    broken, sound = NUM_EXPERTS + 5, NUM_EXPERTS + 4
    bench.demand(broken, sound, 0)
    with pytest.raises(ReadFailure) as raised:
        bench.wait_all(broken)
    failure = raised.value
    offset = 5 * EXPERT_BYTES
    assert str(failure) == (
        f"{shard} ends at {offset + BLOCK}, expected {EXPERT_BYTES} bytes at {offset}: the file is truncated"
    )
    assert (failure.key, failure.path, failure.offset, failure.errno) == (broken, str(shard), offset, 0)
    assert failure.num_bytes_read < EXPERT_BYTES
    assert isinstance(failure, OSError)
    bench.wait_all(sound, 0)
    bench.check(ids(sound, 0))


def test_a_failed_read_may_be_submitted_again(bench: Bench) -> None:
    shard = bench.paths[0]
    whole = shard.read_bytes()
    os.truncate(shard, 0)
    bench.demand(2)
    with pytest.raises(ReadFailure):
        bench.wait_all(2)
    shard.write_bytes(whole)
    bench.demand(2)
    bench.wait_all(2)
    bench.check(ids(2))


def test_poll_tells_failed_reads_apart_and_forgets_them(bench: Bench) -> None:
    os.truncate(bench.paths[0], EXPERT_BYTES)
    bench.submit(ids(0, 1), scores(0.5, 0.4))
    ended: dict[str, list[int]] = {"done": [], "failed": []}
    while len(ended["done"]) + len(ended["failed"]) < 2:
        for name, keys in bench.reader.poll()._asdict().items():
            ended[name] += keys.tolist()
    assert ended == {"done": [0], "failed": [1]}
    bench.demand(0, 1)


def test_files_that_are_removed_or_replaced_after_opening_are_read_as_they_were(bench: Bench) -> None:
    bench.paths[0].unlink()
    bench.paths[1].rename(bench.paths[0])
    bench.paths[1].write_bytes(b"other")
    bench.demand(0, NUM_EXPERTS)
    bench.wait_all(0, NUM_EXPERTS)
    bench.check(ids(0, NUM_EXPERTS))


@pytest.mark.parametrize("always", [False, True])
def test_a_block_that_is_not_what_was_written_fails_until_it_is(make_bench: Callable[..., Bench], always: bool) -> None:
    bench = make_bench()
    offsets = np.arange(NUM_EXPERTS) * EXPERT_BYTES
    sums = np.array([crc32c(block) for block in bench.content], np.uint32)
    for file, of_file in enumerate(np.split(sums, NUM_FILES)):
        files = np.full(NUM_EXPERTS, file)
        bench.reader.expect(files, offsets, EXPERT_BYTES, of_file, always=always)
    flip(bench.paths[1], 3 * EXPERT_BYTES + 5 * BLOCK)
    damaged = NUM_EXPERTS + 3
    bench.demand(2, damaged, NUM_KEYS - 1)
    with pytest.raises(ReadFailure, match=f"{EXPERT_BYTES} bytes at {3 * EXPERT_BYTES} in .* do not match") as raised:
        bench.reader.wait_any(ids(damaged))
    assert (raised.value.key, raised.value.errno, raised.value.path) == (damaged, errno.EBADMSG, str(bench.paths[1]))
    bench.wait_all(2, NUM_KEYS - 1)
    bench.check(ids(2, NUM_KEYS - 1))
    bench.submit(ids(damaged), scores(1.0))
    ended = bench.reader.poll()
    while not len(ended.failed):
        assert not len(ended.done)
        ended = bench.reader.poll()
    flip(bench.paths[1], 3 * EXPERT_BYTES + 5 * BLOCK)
    bench.demand(damaged)
    bench.wait_all(damaged)
    bench.check(ids(damaged))
    flip(bench.paths[1], 3 * EXPERT_BYTES)  # now that it was sound once
    bench.demand(damaged)
    if always:
        with pytest.raises(ReadFailure):
            bench.wait_all(damaged)
    else:
        assert bench.wait_all(damaged) == [damaged]


def test_sums_of_places_outside_of_the_files_are_refused(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    whole = NUM_EXPERTS * EXPERT_BYTES
    for file, offset, num_bytes in ((9, 0, BLOCK), (-1, 0, BLOCK), (0, -1, BLOCK), (0, BLOCK, whole)):
        with pytest.raises(ValueError, match="file"):
            bench.reader.expect(ids(file), ids(offset), num_bytes, np.zeros(1, np.uint32))


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_missing_file_is_named_at_opening(kind: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        open_reader(kind, [tmp_path / "absent.bin"], [BLOCK], Arena(BLOCK))
    assert raised.value.filename == str(tmp_path / "absent.bin")


def test_a_file_of_another_size_is_named_at_opening_with_both_sizes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(bytes(BLOCK))
    with pytest.raises(ReadFailure, match=f"{path} has {BLOCK} bytes, expected {2 * BLOCK}") as raised:
        open_reader(kind, [path], [2 * BLOCK], Arena(BLOCK))
    assert (raised.value.key, raised.value.path) == (-1, str(path))


def test_what_is_not_a_regular_file_is_refused_at_opening(kind: str, tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ReadFailure, match=f"{path} is not a regular file"):
            open_reader(kind, [path], [path.stat().st_size], Arena(BLOCK))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_descriptors_that_run_out_are_an_error_and_none_is_lost(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "block.bin"
    path.write_bytes(bytes(BLOCK))
    gc.collect()  # what other tests left behind is not counted
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
    try:
        with pytest.raises(OSError) as raised:
            open_reader(kind, [path] * 100, [BLOCK] * 100, Arena(BLOCK))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised.value.errno == errno.EMFILE
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in /proc")
def test_close_gives_the_files_back(bench: Bench) -> None:
    assert {str(path) for path in bench.paths} <= open_files()
    bench.demand(0)
    bench.reader.close()
    assert not {str(path) for path in bench.paths} & open_files()


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)}  # the listing's own is closed by now


def test_close_with_reads_under_way_drops_the_queue_and_may_be_repeated(bench: Bench) -> None:
    occupied = bench.occupy(0.5)
    bench.demand(*range(NUM_KEYS))
    bench.reader.close()
    bench.reader.close()
    assert bench.reader.bytes_read() < len(occupied) * HOLE_BYTES
    busy_s = bench.reader.busy_seconds()  # runs on for as long as a read is in flight
    assert bench.reader.busy_seconds() == busy_s
    for call in (
        lambda: bench.demand(0),
        lambda: bench.reader.reprioritise(ids(0), scores(1.0)),
        lambda: bench.reader.cancel(ids(0)),
        lambda: bench.reader.wait_any(ids(0)),
        lambda: bench.reader.poll(),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_close_in_one_thread_ends_a_wait_in_another(bench: Bench) -> None:
    last = bench.occupy(0.5)[-1:]
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            bench.reader.wait_any(last)
        except ValueError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    bench.reader.close()
    waiter.join()
    assert "closed" in str(outcome[0])


def test_a_signal_handler_ends_a_wait(bench: Bench) -> None:
    """Ctrl-C has to work while the disk is slow."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    last = bench.occupy(0.5)[-1:]
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Interrupted):
            bench.reader.wait_any(last)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert last[0] in bench.reader.cancel(last)  # the read itself is untouched


def test_two_readers_of_the_same_files_do_not_mix(make_bench: Callable[..., Bench]) -> None:
    first = make_bench()
    second = make_bench()
    first.demand(*range(NUM_KEYS))
    second.submit(np.arange(NUM_KEYS), np.ones(NUM_KEYS))
    second.wait_all(*range(NUM_KEYS))
    first.wait_all(*range(NUM_KEYS))
    for bench in (first, second):
        bench.check(np.arange(NUM_KEYS))
        assert bench.reader.bytes_read() == NUM_KEYS * EXPERT_BYTES


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in /proc")
@pytest.mark.parametrize("kind", ["threads", "io_uring"], indirect=True)
def test_a_native_reader_that_is_dropped_in_flight_closes_itself(kind: str, tmp_path: Path) -> None:
    """A pure reader's thread keeps it alive."""
    bench = Bench(kind, tmp_path / "files")
    bench.occupy(0.5)
    bench.demand(0)
    paths = {str(path) for path in bench.paths}
    assert paths <= open_files()
    del bench
    gc.collect()
    assert not paths & open_files()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("submit", "submit", "reprioritise", "cancel", "wait", "poll")),
        st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, max_size=6, unique=True),
        st.sampled_from((DEMAND, DEMAND, 0.1, 0.5, 0.9)),
    ),
    max_size=60,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS)
def test_bytes_are_right_under_any_schedule(bench: Bench, steps: list[tuple[str, list[int], float]]) -> None:
    before = bench.reader.bytes_read()
    live: set[int] = set()
    num_landed = 0

    def land(keys: IntArray) -> None:
        nonlocal num_landed
        bench.check(keys)
        assert live.issuperset(keys.tolist())
        for key in keys.tolist():
            bench.landed_bytes(key).fill(0xA5)
        live.difference_update(keys.tolist())
        num_landed += len(keys)

    for call, keys, priority in steps:
        if call == "submit":
            new = [key for key in keys if key not in live]
            bench.submit(ids(*new), np.full(len(new), priority))
            live.update(new)
        elif call == "reprioritise":
            bench.reader.reprioritise(ids(*keys), np.full(len(keys), priority))
        elif call == "cancel":
            cancelled = set(bench.reader.cancel(ids(*keys)).tolist())
            assert cancelled <= live.intersection(keys)
            live -= cancelled
        elif call == "wait" and live.intersection(keys):
            wanted = live.intersection(keys)
            landed = bench.reader.wait_any(ids(*wanted))
            assert len(landed) > 0 and wanted.issuperset(landed.tolist())
            land(landed)
        elif call == "poll":
            done, failed = bench.reader.poll()
            assert len(failed) == 0
            land(done)
    while live:
        land(bench.reader.wait_any(ids(*live)))
    assert bench.reader.bytes_read() - before == num_landed * EXPERT_BYTES


@pytest.mark.parametrize("kind", ["threads", "io_uring"], indirect=True)
@pytest.mark.parametrize("folder", ["tmp_path", "/dev/shm"])
def test_direct_and_buffered_reads_bring_the_same_bytes(kind: str, folder: str, tmp_path: Path) -> None:
    if not Path(folder).is_dir() and folder != "tmp_path":
        pytest.skip(f"no {folder} here")
    path = (tmp_path if folder == "tmp_path" else Path(folder)) / f"moeinf-test-{os.getpid()}.bin"
    content = np.random.default_rng(5).integers(0, 256, 8 * BLOCK, dtype=np.uint8)
    content.tofile(path)
    try:
        for direct in (True, False):
            arena = Arena(8 * BLOCK)
            reader = NativeReader([str(path)], [8 * BLOCK], arena, backend=native(kind), direct=direct)
            reader.submit(ids(1), ids(0), ids(0), ids(0), 8 * BLOCK, scores(DEMAND))
            reader.wait_any(ids(1))
            assert np.array_equal(arena.array(), content)
            assert reader.notice == "" or (direct and str(path) in reader.notice)
            reader.close()
    finally:
        path.unlink()


@pytest.mark.parametrize("kind", ["threads", "io_uring"], indirect=True)
def test_a_refused_o_direct_is_said_once_and_read_buffered(kind: str) -> None:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"  # sysfs has no direct reads; its files claim 4096 bytes
    if not os.path.exists(path):
        pytest.skip("no sysfs here")
    reader = NativeReader([path] * 3, [BLOCK] * 3, Arena(BLOCK), backend=native(kind))
    assert reader.notice == f"O_DIRECT refused for {path} and 2 more (Invalid argument): reading through the page cache"
    reader.submit(ids(1), ids(0), ids(0), ids(0), BLOCK, scores(DEMAND))
    with pytest.raises(ReadFailure, match=r"failed: the file system gave \d+ of them") as raised:
        reader.wait_any(ids(1))
    assert 0 < raised.value.num_bytes_read < BLOCK
    reader.close()


def test_options_out_of_range_are_refused() -> None:
    options: tuple[dict[str, Any], ...] = (
        {"queue_depth": 0},
        {"queue_depth": 100_000},
        {"prefetch_depth": 0},
        {"segment_bytes": 1000},
        {"backend": "fast"},
    )
    for option in options:
        with pytest.raises(ValueError, match=next(iter(option))):
            NativeReader([], [], Arena(BLOCK), **option)
    with pytest.raises(ValueError, match="sizes"):
        NativeReader(["a"], [], Arena(BLOCK))


def test_columns_of_another_type_are_refused_by_the_native_reader() -> None:
    reader = NativeReader([], [], Arena(BLOCK))
    with pytest.raises(TypeError):
        reader.cancel(np.zeros(1, dtype=np.int32))
    with pytest.raises(TypeError):
        reader.cancel(np.zeros((2, 2), dtype=np.int64)[:, 0])  # not contiguous
    reader.close()


def test_an_arena_is_aligned_zeroed_and_lives_as_long_as_its_arrays() -> None:
    arena = Arena(3 * BLOCK)
    assert arena.address % (2 << 20) == 0
    array = arena.array()
    assert array.dtype == np.uint8
    assert array.shape == (arena.num_bytes,) == (3 * BLOCK,)
    assert array.ctypes.data == arena.address
    assert not array.any()
    part = array[BLOCK:]
    del arena, array
    gc.collect()
    part[:] = 7
    assert part.sum() == 7 * 2 * BLOCK


def test_an_arena_takes_memory_only_where_it_is_written() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is told by /proc")
    before = resident_bytes()
    arena = Arena(1 << 30)
    arena.array()[:: 512 << 20] = 1  # two huge pages
    assert resident_bytes() - before < 64 << 20


def test_an_arena_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        Arena(1 << 60)
    with pytest.raises(ValueError):
        Arena(0)


class Scattered:
    """Two files of ragged lengths, and keys of three ranges each, which begin and end anywhere in them."""

    SIZES = (37 * BLOCK + 123, 20 * BLOCK + 1)
    REGION = 8 * BLOCK

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir()
        random = np.random.default_rng(11)
        self.content = [random.integers(0, 256, size, dtype=np.uint8) for size in self.SIZES]
        self.paths = [folder / f"split-{i}.gguf" for i in range(2)]
        for path, bytes_ in zip(self.paths, self.content, strict=True):
            bytes_.tofile(path)
        self.keys = np.arange(6)
        self.files = np.array([[0, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]])
        starts = [[0, 5000, 33], [4096, 77, 9000], [1, 4095, 8191], [36 * BLOCK, 12, 2 * BLOCK]]
        self.offsets = np.array([*starts, [13, 2222, 0], [37 * BLOCK - 5, 31 * BLOCK, 20 * BLOCK]])
        self.sizes = np.array(
            [[4096, 20000, 1], [8192, 5, 12000], [1, 1, 1], [BLOCK + 123, 4084, 4096], [9999, 0, 0], [128, 6000, 1]]
        )
        self.destinations = np.arange(18).reshape(6, 3) * self.REGION
        self.arena = Arena(18 * self.REGION)
        self.reader = open_reader(kind, self.paths, list(self.SIZES), self.arena)

    def submit(self, *keys: int, priority: float = DEMAND) -> None:
        of = list(keys)
        columns = (self.files[of], self.offsets[of], self.destinations[of], self.sizes[of])
        self.reader.submit_pieces(ids(*keys), *columns, np.full(len(of), priority))

    def wait(self, *keys: int) -> None:
        left = set(keys)
        while left:
            left -= set(self.reader.wait_any(ids(*left)).tolist())

    def expect(self, *, always: bool = False) -> None:
        for file, offset, size in zip(self.files.flat, self.offsets.flat, self.sizes.flat, strict=True):
            if size:
                found = crc32c(self.content[file][offset : offset + size])
                self.reader.expect(ids(file), ids(offset), int(size), np.array([found], np.uint32), always=always)

    def check(self, *keys: int) -> None:
        memory = self.arena.array()
        for key in keys:
            for file, offset, size, to in zip(
                self.files[key], self.offsets[key], self.sizes[key], self.destinations[key], strict=True
            ):
                start = to + offset % BLOCK
                assert np.array_equal(memory[start : start + size], self.content[file][offset : offset + size])


@pytest.fixture
def scattered(kind: str, tmp_path: Path) -> Iterator[Scattered]:
    made = Scattered(kind, tmp_path / "scattered")
    yield made
    made.reader.close()


def test_a_key_of_several_ranges_lands_when_all_have(scattered: Scattered) -> None:
    scattered.expect()
    for _ in range(2):
        scattered.arena.array()[:] = 0
        scattered.submit(0, 1, 2, priority=0.5)
        scattered.submit(3, 4, 5)
        scattered.wait(*range(6))
        scattered.check(*range(6))
    blocks = 0
    for file, offset, size in zip(scattered.files.flat, scattered.offsets.flat, scattered.sizes.flat, strict=True):
        if size:
            end = min(-(-(offset + size) // BLOCK) * BLOCK, scattered.SIZES[file])
            blocks += end - offset // BLOCK * BLOCK
    assert scattered.reader.bytes_read() == 2 * blocks


@pytest.mark.parametrize("always", [False, True])
def test_a_damaged_range_fails_its_key_and_is_named(scattered: Scattered, always: bool) -> None:
    scattered.expect(always=always)
    flip(scattered.paths[1], 100)  # beside the range [77, 82), in its block
    scattered.submit(1)
    scattered.wait(1)
    flip(scattered.paths[1], 80)
    scattered.submit(0, 1)
    if always:
        with pytest.raises(ReadFailure, match=r"5 bytes at 77 in .*split-1\.gguf do not match") as raised:
            scattered.wait(1)
        assert (raised.value.key, raised.value.errno, raised.value.offset) == (1, errno.EBADMSG, 77)
    else:
        scattered.wait(1)
    scattered.wait(0)
    scattered.check(0)


def test_a_range_is_damaged_until_it_is_sound(scattered: Scattered) -> None:
    scattered.expect()
    flip(scattered.paths[0], 20999)  # in key 0's second range, with a sound one on either side
    for _ in range(2):
        scattered.submit(0)
        with pytest.raises(ReadFailure, match="20000 bytes at 5000"):
            scattered.wait(0)
    flip(scattered.paths[0], 20999)
    scattered.submit(0)
    scattered.wait(0)
    scattered.check(0)


@pytest.mark.parametrize("always", [False, True])
def test_ranges_that_make_up_a_block_are_compared_with_its_sum(scattered: Scattered, always: bool) -> None:
    reader, region, cuts = scattered.reader, scattered.REGION, np.array([0, 5000, 5001, 14000, 20000])
    block = scattered.content[0][100:20100]
    reader.expect(ids(0), ids(100), 20000, np.array([crc32c(block)], np.uint32), always=always)

    def read(*numbers: int) -> None:
        first, last = cuts[list(numbers)], cuts[[number + 1 for number in numbers]]
        places = (0 * first, 100 + first, ids(*numbers) * region, last - first)
        files, starts, destinations, sizes = (column[:, None] for column in places)
        reader.submit_pieces(ids(*numbers), files, starts, destinations, sizes, np.full(len(numbers), DEMAND))
        scattered.wait(*numbers)

    flip(scattered.paths[0], 100 + 13999)  # the last byte of the third
    read(0, 3)
    read(2)  # nobody can tell so far
    read(0)  # once more
    for _ in range(2):
        with pytest.raises(ReadFailure, match=r"20000 bytes at 100 in .* do not match") as raised:
            read(1)
        assert (raised.value.key, raised.value.errno, raised.value.offset) == (1, errno.EBADMSG, 100)
        read(2, 3, 0)  # all that is known of the block is forgotten: they are to be read again
    flip(scattered.paths[0], 100 + 13999)
    read(2)
    read(1)
    flip(scattered.paths[0], 100)
    if always:
        with pytest.raises(ReadFailure, match="20000 bytes at 100"):
            read(0)
    else:
        read(0)  # it was sound once


def test_ranges_of_a_damaged_block_that_nobody_has_collected_fail_with_it(scattered: Scattered) -> None:
    reader, region = scattered.reader, scattered.REGION
    reader.expect(ids(0), ids(0), 3 * BLOCK, np.array([crc32c(scattered.content[0][: 3 * BLOCK])], np.uint32))

    def submit(*numbers: int) -> None:
        which = ids(*numbers)[:, None]
        sizes, ahead = np.full_like(which, BLOCK), np.full(len(numbers), DEMAND)
        reader.submit_pieces(which[:, 0], 0 * which, BLOCK * which, region * which, sizes, ahead)

    flip(scattered.paths[0], 5)
    submit(0, 1)
    while reader.bytes_read() < 2 * BLOCK:  # both have landed, or are about to
        time.sleep(0.001)
    submit(2)
    for key in (2, 0, 1):  # whichever comes last completes the block; what lay still may be what is wrong
        with pytest.raises(ReadFailure, match=r"12288 bytes at 0 in .* do not match") as raised:
            scattered.wait(key)
        assert raised.value.key == key
    flip(scattered.paths[0], 5)
    submit(0, 1, 2)
    scattered.wait(0, 1, 2)


def test_a_truncated_file_fails_the_keys_of_what_it_lacks(scattered: Scattered) -> None:
    os.truncate(scattered.paths[1], 5 * BLOCK)
    scattered.submit(1, 5)
    with pytest.raises(ReadFailure, match=r"split-1\.gguf ends at 20480, expected 1 bytes at 81920"):
        scattered.wait(5)
    scattered.wait(1)
    scattered.check(1)


def test_ranges_are_cancelled_and_raised_as_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    occupied = bench.occupy(0.5)
    two = np.array([[0, 1]])
    offsets, to = np.array([[7, BLOCK + 9]]), np.array([[0, 4 * BLOCK]])
    for key in (1, 2):
        bench.reader.submit_pieces(ids(key), two, offsets, to, np.array([[BLOCK, 3]]), scores(0.1))
    assert bench.reader.cancel(ids(1)).tolist() == [1]
    bench.reader.reprioritise(ids(2), scores(DEMAND))
    assert bench.wait_all(2) == [2]
    assert len(bench.reader.cancel(occupied)) > 0


@pytest.mark.parametrize(
    ("file", "offset", "destination", "num_bytes"),
    [
        (0, -1, 0, 1),
        (0, 0, 1, 1),
        (0, 0, 0, 0),
        (0, 0, 0, -1),
        (0, 37 * BLOCK, 0, 124),
        (0, 2**63 - 1, 0, 1),
        (0, 0, 18 * 8 * BLOCK, 1),
        (0, BLOCK - 1, 18 * 8 * BLOCK - BLOCK, 2),
        (2, 0, 0, 1),
        (-1, 0, 0, 1),
    ],
)
def test_a_range_outside_is_refused_with_its_key(
    scattered: Scattered, file: int, offset: int, destination: int, num_bytes: int
) -> None:
    at, start, to, size = (np.array([[value]]) for value in (file, offset, destination, num_bytes))
    with pytest.raises(ValueError, match="key 5"):
        scattered.reader.submit_pieces(ids(5), at, start, to, size, scores(DEMAND))
    with pytest.raises(ValueError, match="pieces"):
        scattered.reader.submit_pieces(ids(5, 6), at, start, to, size, scores(DEMAND))
    with pytest.raises(ValueError, match="not being read"):
        scattered.reader.wait_any(ids(5))
