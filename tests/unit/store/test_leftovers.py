"""Work that is killed leaves nothing, and what versions before have left is found."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moeinf.errors import StoreError
from moeinf.store.library import Library, StoredModel
from moeinf.store.processes import leftovers
from moeinf.store.processes.leftovers import find_leftovers, scratch_file, scratch_folder
from moeinf.store.processes.partials import pull_lock
from tests.support.checkpoints import content

# Whatever a version has written under a name for the time being.
LEFT = [
    ".doctor-abcd1234/file",
    ".scratch-abcd1234",
    ".rates-avx2-2.json.77.tmp",
    ".historyabcd1234",
    ".lock.held.77-140.tmp",
    "names/demo/.latest.77.tmp",
    "models/.trash-0123456789ab-77/experts-00000.bin",
    "models/25b98bd97900/.hits.json.77.tmp",
    "models/25b98bd97900/.eamc.npz.77.tmp",
    "prefixes/25b98bd97900/.77-0.tmp",
]
WORK = """
import os, sys, time
from pathlib import Path
from moeinf.store.processes.leftovers import scratch_file, scratch_folder
with scratch_folder() as folder, scratch_file(Path(sys.argv[1])) as (fd, path):
    os.write(fd, bytes(1 << 20))
    (folder / "file").write_bytes(bytes(1 << 16))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, and a folder of the system's temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@contextmanager
def working(home: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    environment = os.environ | {"TMPDIR": str(home.parent / "tmp")}
    words = [sys.executable, "-c", WORK, str(home)]
    child = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child, Path(child.stdout.readline().strip())
    finally:
        child.kill()
        child.communicate()


def test_a_file_for_a_while_has_no_name_and_is_read_as_any_other(home: Path) -> None:
    with scratch_file(home) as (fd, path):
        os.write(fd, b"abc")
        assert list(home.iterdir()) == [] and path.read_bytes() == b"abc" and path.stat().st_size == 3
    assert not path.exists()


def test_where_nothing_opens_without_a_name_it_has_one_until_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_opens", lambda path: False)
    with scratch_file(home) as (fd, path):
        os.write(fd, b"abc")
        assert path.parent == home and path.read_bytes() == b"abc" and find_leftovers(home) == []
    assert list(home.iterdir()) == []


def test_what_a_process_works_with_stays_and_goes_with_it(home: Path) -> None:
    with working(home) as (child, folder):
        assert list(home.iterdir()) == [] and find_leftovers(home) == [] and folder.is_dir()
        child.kill()
        child.wait()
        assert [each.path for each in find_leftovers(home)] == [folder]
        pruned = Library(home).prune()
    assert pruned.left_bytes == pruned.freed_bytes >= 1 << 16
    assert not folder.exists() and [path.name for path in home.iterdir()] == [".lock"]


def test_what_any_version_has_left_is_deleted_and_nothing_else(home: Path, demo: StoredModel) -> None:
    library = Library(home)
    demo_home = demo.path.parents[1]
    subprocess.run(["cp", "-r", f"{demo_home}/models", f"{demo_home}/names", home], check=True)
    kept = ["history", "aliases.json", "rates-avx2-2.json", "sources/org--repo/model.safetensors", ".hidden"]
    for name in (*LEFT, *kept):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(bytes(8192))
    shared = home.parent / "tmp"  # of all programs
    for name in ("moeinf-abcd_123/tokenizer.json", "moeinf-scratch-abcd1234/models/file"):
        (shared / name).parent.mkdir(parents=True)
        (shared / name).write_bytes(bytes(8192))
    others = [
        shared / name
        for name in ("moeinf.txt", "moeinf-home/names/demo/latest", "moeinf-abcd1234/models/tokenizer.json",
                     "moeinf-abcd1235/notes", "moeinf-abcd1236/tokenizer.json/x")
    ]  # fmt: skip
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of somebody")
    before = content(home / "models" / demo.id)
    with (home / LEFT[0]).open("rb"), (home / LEFT[-1]).open("rb"):
        assert library.prune().left_bytes == len(LEFT) * 8192
        assert (home / LEFT[0]).exists() and (home / LEFT[-1]).exists()
    assert library.prune().left_bytes >= 2 * 8192 and library.prune().freed_bytes == 0
    assert not any((home / name).exists() for name in LEFT)
    assert {path.name for path in shared.iterdir()} == {path.relative_to(shared).parts[0] for path in others}
    assert all((home / name).exists() for name in kept) and all(map(Path.exists, others))
    assert {name for name in before if not name.endswith(".tmp")} == set(content(home / "models" / demo.id))
    assert [each.name for each in library.list()] == [each.name for each in Library(demo_home).list()]


def test_a_container_without_temporary_files_is_pruned_and_told_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    (home / ".scratch-1").write_bytes(bytes(8192))
    assert Library(home).prune().left_bytes == 8192
    with pytest.raises(StoreError, match="set TMPDIR"), scratch_folder():
        pass


def test_locks_of_pulls_that_are_over_go_and_those_of_others_stay(home: Path) -> None:
    (home / "partial").mkdir()
    (home / "partial" / "ended.lock").write_text("77")
    with pull_lock(home / "partial" / "running", "mine", print):
        Library(home).prune()
        assert [path.name for path in (home / "partial").iterdir()] == ["running.lock"]


def test_what_may_not_be_deleted_is_said_and_bars_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".scratch-1", ".scratch-2"):
        (home / name).write_bytes(bytes(8192))
    real: Callable[[Path, bool], None] = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == ".scratch-1":
            raise PermissionError(13, "Permission denied", str(path))
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    pruned = Library(home).prune()
    assert pruned.left_bytes == 8192 and len(pruned.faults) == 1 and ".scratch-1: Permission denied" in pruned.faults[0]
