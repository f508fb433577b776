"""A second disk in every verb that knows stores: what is typed, what is seen, and one line for what cannot be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.bench.forecast import checkup
from moeinf.bench.forecast.checkup import Finding
from moeinf.config import RuntimeConfig
from moeinf.engine.speed.rates import Rates
from moeinf.errors import DiskSpaceError, StoreError
from moeinf.forecast import known
from moeinf.pull import spreading
from moeinf.pull.pull import ensure
from moeinf.store.library import Library
from moeinf.store.processes.locks import take
from moeinf.store.spread.copy_list import COPIES_FILE, Copy, CopyList
from moeinf.terminal.forms.told_rates import told_rates
from tests.support.cli.commands import Done
from tests.support.rates import rates_of_this_machine

Command = Callable[..., Done]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A store that only this test has, on another disk than all other folders."""
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    ensure("demo", home=tmp_path / "home")
    monkeypatch.setattr(spreading, "same_disk", lambda one, other: False)
    monkeypatch.setattr(checkup, "same_disk", lambda one, other: False)
    return Library(tmp_path / "home")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    folder = tmp_path / "second"
    folder.mkdir()
    return folder


def one_line(done: Done) -> str:
    assert done.code != 0 and done.out == "" and len(done.err.splitlines()) == 1
    return done.err


def test_experts_are_copied_shown_verified_and_deleted(store: Library, second: Path, command: Command) -> None:
    done = command("spread", "demo", "--also", str(second))
    assert (done.code, done.out, done.err) == (
        0,
        f"the experts of demo:latest are in {second} as well; both disks are read\n",
        "",
    )
    assert "ALSO IN" in command("list").out and str(second) in command("list").out
    assert json.loads(command("list", "--json").out)[0]["also"] == [{"folder": str(second), "divided": False}]
    assert f"{second}, all of them" in " ".join(command("show", "demo").out.split())
    assert json.loads(command("show", "demo", "--json").out)["also"] == [{"folder": str(second), "divided": False}]
    assert command("verify", "demo").out.endswith(f"verified its experts in {second}\n")
    assert "disk" not in command("run", "demo", "Once", "-n", "2", "-q").err
    freed = command("rm", "demo")
    assert freed.err == "" and freed.out == "deleted 'demo' (21 MB freed)\n"
    assert list(second.iterdir()) == [] and CopyList(store.home).all() == []


def test_experts_are_divided_and_brought_back(store: Library, second: Path, command: Command) -> None:
    done = command("spread", "demo", "--also", str(second), "--divide")
    assert done.code == 0 and done.out == (
        f"the experts of demo:latest are divided between the store and {second}; both disks are read\n"
    )
    assert "the store's disk reads " in done.err and len(done.err.splitlines()) == 1
    assert "(divided)" in command("list").out
    assert "% of each" in command("show", "demo").out
    assert command("verify", "demo").out == "verified 12 files, 192 experts\n"
    assert "--gather" in one_line(command("spread", "demo", "--also", str(second)))
    assert "--gather" in one_line(command("run", "demo", "Once", "--also", "none"))
    assert command("spread", "demo", "--gather").out.startswith("all experts of demo:latest are in the store alone (")
    assert command("verify", "demo").out == "verified 12 files, 192 experts\n"
    assert "ALSO IN" not in command("list").out and list(second.iterdir()) == []


def test_a_pull_copies_experts_too(
    tmp_path: Path, second: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(spreading, "same_disk", lambda one, other: False)
    assert command("pull", "demo", "--also", str(second), "-q").code == 0
    [copy] = CopyList(tmp_path / "home").all()
    assert len(list(copy.path.iterdir())) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("demo",), "--also DIR"),
        (("demo", "--gather", "--also", "x"), "--also DIR"),
        (("demo", "--gather", "--divide"), "--also DIR"),
        (("demo", "--also", "nowhere"), "no folder that is there; make it, or mount its disk"),
        (("other", "--also", "."), "model 'other' not found"),
    ],
)
def test_what_cannot_be_meant_is_one_line(words: tuple[str, ...], said: str, store: Library, command: Command) -> None:
    assert said in one_line(command("spread", *words))
    assert CopyList(store.home).all() == []


def test_a_full_disk_is_one_line(
    store: Library, second: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(second)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    assert f"not enough disk space in {second}" in one_line(command("spread", "demo", "--also", str(second)))
    assert CopyList(store.home).all() == [] and list(second.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        ("EROFS", "name a folder on another disk that you can write to", StoreError),
        ("ENOSPC", "free some space, and repeat the command", DiskSpaceError),
        ("EIO", "look at the disk", StoreError),
    ],
)
def test_a_disk_that_refuses_is_one_line(
    code: str, said: str, kind: type, store: Library, second: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    number = getattr(errno, code)
    real = os.pwrite

    def refuses(fd: int, data: bytes, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(second / "moeinf-experts" / "25")):
            raise OSError(number, os.strerror(number))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refuses)
    line = one_line(command("spread", "demo", "--also", str(second)))
    assert os.strerror(number) in line and said in line and issubclass(kind, Exception)
    monkeypatch.undo()
    assert CopyList(store.home).all() == [] and list(second.iterdir()) == []


def test_what_a_killed_spread_has_left_is_pruned(store: Library, second: Path, command: Command) -> None:
    command("spread", "demo", "--also", str(second))
    [copy] = CopyList(store.home).all()
    left = copy.path / ".experts-00000.bin.12345.tmp"
    left.write_bytes(bytes(1 << 20))
    with left.open("rb"):
        command("prune")
        assert left.exists()  # a process that lives may be writing it
    assert "1.0 MB" in command("prune").out and not left.exists()
    assert command("verify", "demo").err == ""


def test_one_disk_is_said(store: Library, second: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("MOEINF_HOME", str(store.home))
    done = command("spread", "demo", "--also", str(second))
    assert done.code == 0 and "are on one disk" in done.err and "--gather" in done.err


def test_another_spread_is_waited_for_by_the_user(store: Library, second: Path, command: Command) -> None:
    command("spread", "demo", "--also", str(second))
    [copy] = CopyList(store.home).all()
    lock = take(copy.path.with_suffix(".lock"))
    try:
        line = one_line(command("spread", "demo", "--also", str(second)))
        assert "are being copied" in line and str(os.getpid()) in line
    finally:
        lock.release(remove=True)


def test_damage_is_found_and_mended(store: Library, second: Path, command: Command) -> None:
    command("spread", "demo", "--also", str(second))
    [copy] = CopyList(store.home).all()
    path = copy.path / "experts-00003.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = command("verify", "demo")
    assert done.code == 1 and f"{path}: expert 16 does not match its checksum" in done.out
    assert f"`moeinf spread demo:latest --also {second}`" in done.err
    assert "are not all there" in command("verify", "demo").err  # until it is mended
    assert command("spread", "demo", "--also", str(second)).code == 0
    assert command("verify", "demo").err == ""


def test_damage_of_the_store_is_not_copied(store: Library, second: Path, command: Command) -> None:
    path = store.find("demo").shard_paths[1]
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    line = one_line(command("spread", "demo", "--also", str(second)))
    assert str(path) in line and "checksum" in line and "moeinf verify" in line


def test_a_disk_that_is_away_is_kept_in_mind(store: Library, second: Path, command: Command) -> None:
    command("spread", "demo", "--also", str(second))
    shutil.move(second, second.with_name("away"))
    assert "is not there; mount its disk" in command("verify", "demo").err
    assert "is not there; mount its disk" in command("show", "demo").out.replace("\n", " ")
    done = command("rm", "demo")
    assert done.code == 0 and f"are left in {second}" in done.err and "moeinf prune" in done.err
    assert f"are left in {second}" in command("prune").err
    shutil.move(second.with_name("away"), second)
    assert command("prune").out.startswith("9.4 MB freed") and list(second.iterdir()) == []


def test_a_copy_on_a_disk_that_is_away_can_be_forgotten(store: Library, second: Path, command: Command) -> None:
    command("spread", "demo", "--also", str(second))
    shutil.move(second, second.with_name("away"))
    done = command("spread", "demo", "--gather")
    assert done.code == 0 and "files may be left" in done.err
    assert CopyList(store.home).all() == []


def test_a_damaged_list_is_said(store: Library, command: Command) -> None:
    (store.home / COPIES_FILE).write_text("{")
    for words in (("run", "demo", "Once"), ("verify", "demo"), ("show", "demo"), ("spread", "demo", "--gather")):
        assert COPIES_FILE in one_line(command(*words))
    assert "demo:latest" in command("list").out


def test_doctor_looks_at_second_disks(store: Library, second: Path, command: Command) -> None:
    def found() -> list[Finding]:
        return [each for each in checkup._store(store.home) if each.name == "second disk"]

    assert found() == []
    command("spread", "demo", "--also", str(second))
    assert found() == [Finding("second disk", f"{second} has the experts of demo:latest")]
    copies = CopyList(store.home)
    copies.put(Copy(str(second), "0" * 12, "demo:latest"))
    assert [each.remedy for each in found()] == ["", "`moeinf prune` deletes them"]
    shutil.move(second, second.with_name("away"))
    assert "mount its disk" in found()[0].remedy
    (store.home / COPIES_FILE).write_text("{}")
    assert "delete it" in found()[0].remedy


def test_forecasts_know_both_disks(
    store: Library, second: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, asked = rates_of_this_machine(), list[str]()

    def speed(*more: str) -> float:
        rate: float = json.loads(command("fit", "demo", "--expert-cache", "20%", "--json", *more).out)[
            "decode_tokens_per_s"
        ]
        return rate

    def of_folder(folder: Path, config: RuntimeConfig) -> dict[int, float]:
        asked.append(str(folder))
        return {size: 3 * rate for size, rate in mine.disk.items()}

    def measured(*_: object) -> Rates:
        return mine

    monkeypatch.setattr(known, "measure", measured)
    monkeypatch.setattr(known, "disk_rates", of_folder)
    disk = max(mine.disk.values())
    alone = speed()
    assert asked == []
    command("spread", "demo", "--also", str(second))
    both = speed()
    assert both == speed() > alone == speed("--also", "none")
    assert asked == [str(second)]  # it is measured once
    rates = told_rates(RuntimeConfig(), [])
    assert max(rates.disk.values()) == disk and max(rates.also[str(second)].values()) == 3 * disk
    command("rm", "demo")
    assert speed("--also", str(second)) > speed()
    assert "no folder that is there" in one_line(command("fit", "demo", "--also", "/nowhere"))
