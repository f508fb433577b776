"""Whatever the system answers: what is advised costs no sound model, and every error has a remedy of its own."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeinf.errors import REMEDIES, ModelNotFoundError, MoeinfError, UsageError, is_of_content
from moeinf.store.files import named
from moeinf.store.library import Library, StoredModel
from tests.support.checkpoints import content
from tests.support.cli.commands import Done

DESTRUCTIVE = re.compile(r"moeinf rm|pull.{0,12} again|deletes the name|fetch the file again")
OF_CONTENT = (errno.EBADMSG, errno.ENOENT, errno.ENOTDIR)
REFUSED = sorted(
    set(errno.errorcode) - {*OF_CONTENT, errno.EAGAIN, errno.EEXIST, errno.EINTR, errno.ENOSPC, errno.EDQUOT}
)
SOME = (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE)
Refuse = Callable[[str, int, str], None]


@pytest.fixture
def store(demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, with the embedded model under two names."""
    home = tmp_path / "home"
    shutil.copytree(demo.path.parents[1], home)
    shutil.rmtree(home / "names")
    with Library(home).lock():
        for name in ("demo", "other"):
            Library(home).bind(name, demo.id)
    monkeypatch.setenv("MOEINF_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the system's has what other tests' processes have left
    return home


@pytest.fixture
def refuse(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refuse]:
    """refuse(call, number, part): from now on os.CALL fails for paths of the store that end in or lie under `part`."""
    rule: tuple[str, int, str] = ("", 0, "")

    def wrapped(call: str) -> Callable[..., object]:
        real = getattr(os, call)

        def failing(path: object = ".", *rest: object, **options: object) -> object:
            text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if call == rule[0] and isinstance(text, str) and text.startswith(f"{store}/") and rule[2] in f"{text}/":
                raise OSError(rule[1], os.strerror(rule[1]), text)
            return real(path, *rest, **options)

        return failing

    for call in ("open", "stat", "listdir", "scandir"):
        monkeypatch.setattr(os, call, wrapped(call))

    def set_rule(call: str, number: int, part: str) -> None:
        nonlocal rule
        rule = call, number, part

    yield set_rule
    rule = "", 0, ""


def test_every_error_of_a_file_has_a_remedy_which_deletes_nothing() -> None:
    for number, remedy in REMEDIES.items():
        assert len(remedy) > 15 and not DESTRUCTIVE.search(remedy), errno.errorcode[number]
        assert remedy[:10] in str(named(OSError(number, "x"), "/x", UsageError)) or number in (
            errno.ENOSPC,
            errno.EDQUOT,
        )
    wanted = """EPERM ENOENT EINTR EIO ENXIO EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR ENFILE EMFILE
    ETXTBSY EFBIG ENOSPC EROFS EMLINK EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP EOVERFLOW EILSEQ EOPNOTSUPP
    ENOBUFS ETIMEDOUT ENOTCONN ESTALE EUCLEAN EDQUOT EREMOTEIO ENOMEDIUM ENOKEY EKEYEXPIRED EHOSTDOWN"""
    assert {getattr(errno, name) for name in wanted.split()} <= REMEDIES.keys()
    assert {number for number in errno.errorcode if is_of_content(OSError(number, ""))} == set(OF_CONTENT)


def test_a_container_without_dev_null_is_told_what_it_lacks() -> None:
    for number in (errno.ENOENT, errno.EACCES):
        said = str(named(OSError(number, os.strerror(number), os.devnull)))
        assert said.startswith("/dev/null: ") and "mknod" in said and "MOEINF_HOME" not in said


@pytest.mark.parametrize("call", ["open", "stat", "listdir"])
def test_no_name_is_to_be_deleted_because_it_cannot_be_read(store: Path, refuse: Refuse, call: str) -> None:
    """Each errno in turn, at the name's file, its folder and the model's."""
    library, [model] = Library(store), list((store / "models").iterdir())
    before = content(model)
    for number in REFUSED:
        for part in ("/names/demo/", "/models/"):
            refuse(call, number, part)
            said = library.faults()
            for act in (lambda: library.find("demo"), library.prune):
                try:
                    act()
                except MoeinfError as error:
                    assert not isinstance(error, ModelNotFoundError)  # for which `run` would pull it
                    said.append(str(error))
            assert not any(map(DESTRUCTIVE.search, said)), (errno.errorcode[number], said)
    refuse("", 0, "")
    assert content(model) == before and {each.name for each in library.list()} == {"demo:latest", "other:latest"}


def test_names_in_a_folder_that_cannot_be_listed_keep_their_models(store: Path, refuse: Refuse) -> None:
    """What no name holds is known only to those who know all names."""
    library = Library(store)
    for number in SOME:
        refuse("listdir", number, "/names/demo/")
        assert [each.name for each in library.list()] == ["other:latest"] and len(library.faults()) == 1
        library.copy("other", "third")
        assert library.remove("third") == 0 and library.prune().freed_bytes == 0
    library.remove("other")
    refuse("", 0, "")
    assert [each.name for each in library.list()] == ["demo:latest"]


@pytest.mark.parametrize("file", ["experts-00000.bin", "dense.safetensors", "tokenizer.json", "checksums.bin"])
def test_verify_takes_no_file_that_it_cannot_read_for_damaged(
    store: Path, refuse: Refuse, file: str, command: Callable[..., Done]
) -> None:
    record = next(store.glob("models/*/receipt.json"))
    for call, number in [("open", errno.EIO), ("open", errno.EMFILE), ("stat", errno.EACCES)]:
        refuse(call, number, f"/{file}/")
        done = command("verify", "demo")
        assert done.code == 1 and not DESTRUCTIVE.search(done.out + done.err), done
        assert (file in done.err and REMEDIES[number][:12] in done.err) or number == errno.EACCES, done.err
        assert record.exists()
    refuse("", 0, "")
    assert command("verify", "demo").code == 0


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "config.json", "manifest.json", "checksums.bin", "dense.safetensors"]
)
def test_a_run_that_cannot_read_a_file_advises_nothing_that_costs_it(
    store: Path, refuse: Refuse, file: str, command: Callable[..., Done]
) -> None:
    for number in SOME:
        refuse("open", number, f"/{file}/")
        for words in (["show", "demo"], ["run", "demo", ""]):
            done = command(*words)
            assert not DESTRUCTIVE.search(done.out + done.err), done
            assert words[0] == "show" or file == "tokenizer.json" or (done.code == 1 and done.err.count("\n") == 1)


def test_a_disk_that_is_not_mounted_costs_no_name(store: Path, command: Callable[..., Done]) -> None:
    """The folder of the models is there and empty, as a mount point is."""
    os.rename(store / "models", store / "elsewhere")
    (store / "models").mkdir()
    done = command("list")
    assert "mount the disk" in done.err and "moeinf rm" not in done.err
    (store / "models").rmdir()
    os.rename(store / "elsewhere", store / "models")
    assert "demo:latest" in command("list").out


def test_bad_content_has_the_remedies_that_mend_it(store: Path, command: Callable[..., Done]) -> None:
    name = store / "names" / "other" / "latest"
    name.write_text("no id\n")
    assert "`moeinf rm other:latest` deletes the name" in command("list").err
    name.unlink()
    name.mkdir()
    assert "`moeinf rm other:latest` deletes the name" in command("list").err
    shutil.rmtree(name.parent)
    shard = next(store.glob("models/*/experts-00000.bin"))
    shard.write_bytes(shard.read_bytes()[:-1])
    done = command("verify", "demo")
    assert done.code == 1 and "pull it again" in done.err
