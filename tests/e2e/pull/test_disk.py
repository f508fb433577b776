"""Full, failing and read-only disks, and two pulls at once."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from moeinf.errors import DiskSpaceError, MoeinfError
from moeinf.pull.origins import Origin
from moeinf.pull.pull import pull
from moeinf.store.library import Library
from moeinf.store.manifest import ModelSource
from moeinf.store.processes.partials import partial_folder, pull_lock
from moeinf.store.verify import verify
from tests.support.checkpoints import content, write_checkpoint

SCRIPT = """
import sys
from pathlib import Path
from moeinf.errors import MoeinfError
from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from moeinf.store.library import Library
from moeinf.store.manifest import ModelSource
from moeinf.pull.events import SilentProgress
class Notes(SilentProgress):
    def note(self, text): print("note", text, flush=True)
    def start(self, verb, file, num_bytes, done_bytes): print(verb, file, flush=True)
try:
    options = PullOptions(force="--force" in sys.argv)
    print("done", pull(sys.argv[1], options, home=Path(sys.argv[2]), progress=Notes()).id)
except MoeinfError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return content(pull(str(checkpoint), home=tmp_path_factory.mktemp("reference")).path)


def in_tmpfs(size: str, home: Path, commands: str) -> str:
    """Runs shell commands with a tmpfs of that size at `home`, in a namespace of its own."""
    home.mkdir(parents=True)
    wrapped = f"mount -t tmpfs -o size={size} none {home} && {{ {commands}; }}"
    probe = subprocess.run(["unshare", "-Urm", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("user namespaces are not permitted here (unshare -Urm)")
    result = subprocess.run(["unshare", "-Urm", "sh", "-c", wrapped], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


def test_a_disk_that_fills_up_ends_in_one_line_and_the_pull_goes_on_when_there_is_room(
    checkpoint: Path, tmp_path: Path
) -> None:
    script, home = tmp_path / "script.py", tmp_path / "home"
    script.write_text(SCRIPT)
    command = f"{sys.executable} {script} {checkpoint} {home}"
    out = in_tmpfs("1m", home, f"{command} --force; echo; ls {home}/models; mount -o remount,size=9m {home}; {command}")
    first, second = out.split("\n\n", 1)
    assert "DiskSpaceError" in first and "goes on where it stopped" in first and str(home) in first
    assert "done " in second and "starting again" not in second
    started = [line for line in first.splitlines() if line.startswith("converting")]
    resumed = [line for line in second.splitlines() if line.startswith("converting")]
    assert 0 < len(resumed) <= 4 and resumed[0] == started[-1]


def test_a_read_only_store_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    script, home = tmp_path / "script.py", tmp_path / "home"
    script.write_text(SCRIPT)
    out = in_tmpfs("1m", home, f"mount -o remount,ro {home}; {sys.executable} {script} {checkpoint} {home}")
    assert out.startswith("StoreError ") and "Read-only file system" in out and "MOEINF_HOME" in out


def test_a_file_size_limit_is_one_line_that_names_the_file(checkpoint: Path, tmp_path: Path) -> None:
    script, home = tmp_path / "script.py", tmp_path / "home"
    script.write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, str(script), str(checkpoint), str(home)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert result.stdout.startswith("StoreError ") and "File too large" in result.stdout, result.stderr
    assert Library(home).list() == []


OPERATIONS = ("open", "pwrite", "ftruncate", "fsync", "replace", "rename", "mkdir", "unlink")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_operation_is_one_line_and_the_next_pull_is_whole(
    operation: str,
    code: int,
    checkpoint: Path,
    tmp_path: Path,
    reference: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The n-th call fails, for a few n; nothing but MoeinfErrors come out, and nothing half-made is listed."""
    real, home = getattr(os, operation), tmp_path / "home"
    for failing in (1, 2, 5, 12):
        calls = iter(range(1, 1 << 30))

        def fails(*args: object, failing: int = failing, calls: object = calls, **kwargs: object) -> object:
            if next(calls) == failing:  # type: ignore[call-overload]
                raise OSError(code, os.strerror(code), str(args[0]))
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, fails)
            try:
                pull(str(checkpoint), home=home)
            except MoeinfError as error:
                assert os.strerror(code) in str(error) and "\n" not in str(error)
                assert isinstance(error, DiskSpaceError) == (code == errno.ENOSPC)
        for model in Library(home).list():
            assert verify(model) == []
    assert content(pull(str(checkpoint), home=home).path) == reference


def test_a_second_pull_of_the_same_source_waits_and_finds_it_done(
    checkpoint: Path, tmp_path: Path, reference: dict[str, str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(checkpoint), str(tmp_path / "home")]
    pulls = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in pulls]
    assert len({output.splitlines()[-1] for output in outputs}) == 1 and "done " in outputs[0]
    assert sum("converting" in output for output in outputs) == 1
    model = Library(tmp_path / "home").list()[0]
    assert content(model.path) == reference and Library(tmp_path / "home").partials() == []


def test_a_pull_that_waits_says_for_whom(checkpoint: Path, tmp_path: Path) -> None:
    script, home = tmp_path / "script.py", tmp_path / "home"
    script.write_text(SCRIPT)
    folder = partial_folder(home, Origin(ModelSource("folder", str(checkpoint)), "").locator)
    with pull_lock(folder, "mine", print):
        command = [sys.executable, str(script), str(checkpoint), str(home)]
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
        assert f"is running (pid {os.getpid()}); waiting" in line
        assert Library(home).list() == []
    assert "done " in waiting.communicate(timeout=60)[0]


def test_a_lock_left_by_a_killed_pull_holds_nobody_up(checkpoint: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = partial_folder(home, Origin(ModelSource("folder", str(checkpoint)), "").locator)
    folder.parent.mkdir(parents=True)
    folder.with_suffix(".lock").write_text("1")
    assert pull(str(checkpoint), home=home).manifest.moe.num_layers == 2
    assert not folder.with_suffix(".lock").exists()
