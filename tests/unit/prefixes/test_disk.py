"""Blocks on disk: whole or not used, private, within a budget, whatever other processes do."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moeinf.prefixes.block import Block, digest_of, token_array
from moeinf.prefixes.disk import STALE_S, DiskTier
from moeinf.prefixes.writer import Writer

ROOT, IDENTITY = b"r" * 16, {"model": "abc", "layout": [[2, 8]]}
BUDGET = 1 << 20


def block(tokens: list[int], parent: bytes = ROOT, start: int = 0, num_bytes: int = 1000) -> Block:
    values = token_array(tokens)
    rows = np.random.default_rng(tokens).integers(0, 256, num_bytes, np.uint8)
    return Block(parent, digest_of(parent, values), start, values, rows)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tier(tmp_path: Path, said: list[str]) -> DiskTier:
    return DiskTier(tmp_path / "prefixes" / "abc", BUDGET, IDENTITY, said.append)


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_a_block_comes_back_byte_for_byte(tier: DiskTier, tmp_path: Path, said: list[str]) -> None:
    first = block([1, 2, 3])
    first.state = np.arange(40, dtype=np.uint8)
    assert tier.write(first)
    again = DiskTier(tmp_path / "prefixes" / "abc", BUDGET, IDENTITY, said.append)
    (found,) = again.children(ROOT)
    assert (found.digest, found.num_tokens, found.has_state) == (first.digest, 3, True)
    rows, state = again.read(found, "rows", 1000), again.read(found, "state", 40)
    assert rows is not None and state is not None
    assert np.array_equal(rows, first.rows) and np.array_equal(state, first.state)
    assert again.holds(first) and not again.holds(block([1, 2])) and said == []


@given(
    st.lists(st.integers(np.iinfo(np.int32).min, np.iinfo(np.int32).max), min_size=1, max_size=256),
    st.booleans(),
    st.binary(max_size=64),
)
@settings(max_examples=50)
@example([-1, -(1 << 31), (1 << 31) - 1, 0], True, b"")  # a picture's tokens are below 0
def test_whatever_is_written_is_read_back(numbers: list[int], stateful: bool, rows: bytes) -> None:
    said = list[str]()
    with TemporaryDirectory() as folder:
        tokens, state = token_array(numbers), np.arange(7, dtype=np.uint8) if stateful else None
        each = Block(ROOT, digest_of(ROOT, tokens), 0, tokens, np.frombuffer(rows, np.uint8).copy(), state)
        assert DiskTier(Path(folder) / "abc", BUDGET, IDENTITY, said.append).write(each)
        again = DiskTier(Path(folder) / "abc", BUDGET, IDENTITY, said.append)
        (found,) = again.children(ROOT)
        read = again.read(found, "rows", len(rows))
        assert found.common(tokens) == len(numbers) and found.is_next(tokens)
        assert read is not None and read.tobytes() == rows and found.has_state == stateful
        assert not stateful or again.read(found, "state", 7) is not None
        assert said == []


def test_a_file_tells_which_tokens_it_holds(tier: DiskTier) -> None:
    tier.write(block([1, 2, 3]))
    (found,) = tier.children(ROOT)
    assert found.is_next(token_array([1, 2, 3, 4])) and not found.is_next(token_array([1, 2, 4]))
    assert found.common(token_array([1, 2, 4])) == 2 and found.common(token_array([7])) == 0
    assert not tier.children(found.digest)


def test_a_state_is_added_to_a_block_that_is_there(tier: DiskTier) -> None:
    each = block([1])
    assert tier.write(each) and tier.holds(each)
    each.state = np.zeros(8, np.uint8)
    assert not tier.holds(each)
    assert tier.write(each) and tier.holds(each)


def test_nobody_else_reads_what_prompts_can_be_told_from(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(block([1]))
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


@pytest.mark.parametrize("damage", [cut, lengthen, empty, flip(0), flip(17), flip(20), flip(60), flip(-1), flip(-999)])
def test_a_damaged_file_is_told_of_and_removed(
    tier: DiskTier, tmp_path: Path, said: list[str], damage: Callable[[Path], None]
) -> None:
    tier.write(block([1, 2]))
    (path,) = files(tmp_path)
    damage(path)
    (found,) = tier.children(ROOT)
    assert tier.read(found, "rows", 1000) is None
    assert len(said) == 1 and str(path) in said[0] and "removed" in said[0]
    assert not files(tmp_path) and not tier.children(ROOT)
    assert tier.write(block([1, 2])) and tier.children(ROOT), "it may be written anew"


def test_a_file_of_another_model_or_version_is_removed(tier: DiskTier, tmp_path: Path, said: list[str]) -> None:
    DiskTier(tmp_path / "prefixes" / "abc", BUDGET, {**IDENTITY, "model": "other"}, said.append).write(block([1]))
    (found,) = tier.children(ROOT)
    assert tier.read(found, "rows", 1000) is None and "not of this model" in said[0] and not files(tmp_path)


def test_a_file_under_the_name_of_another_is_not_used(tier: DiskTier, tmp_path: Path, said: list[str]) -> None:
    one, other = block([1]), block([2])
    tier.write(one)
    tier.write(other)
    paths = {path.name.split("-")[1]: path for path in files(tmp_path)}
    os.replace(paths[one.digest.hex()], paths[other.digest.hex()])
    (found,) = tier.children(ROOT)
    assert tier.read(found, "rows", 1000) is None and len(said) == 1


def test_a_file_that_has_gone_meanwhile_is_none_and_no_fault(tier: DiskTier, tmp_path: Path, said: list[str]) -> None:
    tier.write(block([1]))
    (found,) = tier.children(ROOT)
    files(tmp_path)[0].unlink()
    assert tier.read(found, "rows", 1000) is None and found.common(token_array([1])) == 0 and said == []


def test_the_oldest_files_of_all_models_make_room(tmp_path: Path, said: list[str]) -> None:
    budget = 8000  # of which a file of 1.3 KB is taken to need 5.1
    ours, other = (DiskTier(tmp_path / "prefixes" / name, budget, IDENTITY, said.append) for name in ("ours", "other"))
    old, new = block([1]), block([2])
    other.write(old)
    time.sleep(0.01)
    ours.write(new)
    for token in range(3, 12):
        time.sleep(0.01)
        found = ours.children(ROOT)
        ours.touch((entry, 0) for entry in found if entry.digest == new.digest)
        assert ours.write(block([token]))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= budget
    assert not other.children(ROOT) and ours.holds(new) and not ours.holds(block([3]))


def test_of_a_way_the_end_is_older_than_the_beginning(tier: DiskTier, tmp_path: Path) -> None:
    first = block([1])
    tier.write(first)
    tier.write(block([2], first.digest, start=100_000))
    times = {path.name[:32]: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert times[ROOT.hex()] > times[first.digest.hex()]


def test_what_never_fits_is_not_written(tmp_path: Path, said: list[str]) -> None:
    small = DiskTier(tmp_path / "prefixes" / "abc", 5000, IDENTITY, said.append)
    assert not small.write(block([1])) and not files(tmp_path)


def test_a_disk_that_refuses_is_told_of(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "prefixes").write_text("a file")
    refused = DiskTier(tmp_path / "prefixes" / "abc", BUDGET, IDENTITY, said.append)
    assert not refused.write(block([1])) and len(said) == 1 and "not kept on disk" in said[0]
    assert not refused.children(ROOT)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM])
def test_a_sound_file_that_cannot_be_read_stays(
    number: int, tier: DiskTier, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *rest: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    tier.write(block([1]))
    [entry] = tier.children(ROOT)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert tier.read(entry, "rows", 1000) is None
    assert len(said) == 1 and os.strerror(number) in said[0] and "removed" not in said[0]
    assert len(files(tmp_path)) == 1


def test_what_a_killed_process_left_is_swept(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(block([1]))
    folder = tmp_path / "prefixes" / "abc"
    stale, fresh = folder / ".1-1.tmp", folder / ".1-2.tmp"
    for path in (stale, fresh):
        path.write_bytes(b"half")
    os.utime(stale, (time.time() - 2 * STALE_S,) * 2)
    tier.write(block([2]))
    assert not stale.exists() and fresh.exists()


def test_several_that_write_and_empty_one_folder_do_not_hurt_each_other(tmp_path: Path, said: list[str]) -> None:
    blocks = [block([token]) for token in range(12)]
    budget, wrong = 8000, list[str]()

    def work(seed: int) -> None:
        tier = DiskTier(tmp_path / "prefixes" / "abc", budget, IDENTITY, said.append)
        for number in np.random.default_rng(seed).integers(0, len(blocks), 40).tolist():
            tier.write(blocks[number])
            for found in tier.children(ROOT):
                rows = tier.read(found, "rows", 1000)
                if rows is not None and not any(np.array_equal(rows, each.rows) for each in blocks):
                    wrong.append(found.path.name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and said == []
    assert not list((tmp_path / "prefixes" / "abc").glob("*.tmp"))


def test_the_writer_writes_behind_the_back_of_others(tier: DiskTier) -> None:
    writer, blocks = Writer(tier), [block([token]) for token in range(5)]
    writer.submit(blocks)
    writer.submit(blocks)
    assert writer.drain(30)
    assert all(tier.holds(each) and not each.pending for each in blocks)


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of SystemExit
def test_an_error_of_the_disk_leaves_no_block_pending_and_a_writer_that_goes_on(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail(path: Path, header: object, payload: object) -> None:
        begun.set()
        go_on.wait(30)
        raise error

    writer, blocks = Writer(tier), [block([token]) for token in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr("moeinf.prefixes.disk.write_prefix", fail)
        writer.submit(blocks)
        assert begun.wait(30) and all(each.pending for each in blocks)
        go_on.set()
        assert writer.drain(30) and writer.refused
    assert not any(each.pending for each in blocks)
    writer.submit(blocks)
    assert writer.drain(30) and not writer.refused
    assert all(tier.holds(each) for each in blocks)


def test_a_writer_that_is_forgotten_leaves_no_thread(tier: DiskTier) -> None:
    writer = Writer(tier)
    writer.submit([block([1])])
    assert writer.drain(30)
    for thread in threading.enumerate():
        if thread.name == "moeinf-prefixes":
            thread.join(30)
            assert not thread.is_alive()
