"""Where the store lies: what cannot be a folder is told with the remedy, whatever the system knows of its user."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from moeinf.config.environment import store_home
from moeinf.errors import StoreError, UsageError
from moeinf.pull.pull import ensure, pull
from moeinf.text.quantities import shortage_text


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the system has no entry for, as in many containers."""

    def unknown(*_: object) -> object:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("MOEINF_HOME", raising=False)


def test_without_a_home_folder_the_store_needs_a_name(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"~/\.moeinf, where models are stored, .* set MOEINF_HOME to a folder"):
        store_home()
    monkeypatch.setenv("MOEINF_HOME", "/srv/models")
    assert store_home() == Path("/srv/models")
    monkeypatch.setenv("MOEINF_HOME", "~nobody-of-that-name/models")
    with pytest.raises(UsageError, match="set MOEINF_HOME to a folder"):
        store_home()


def test_a_user_without_an_entry_may_have_a_home(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp/home")
    assert store_home() == Path("/tmp/home/.moeinf")


def test_a_link_to_nowhere_is_no_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "models")
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "link"))
    with pytest.raises(UsageError, match=r"link to .*/disk/models, which is not there; make that folder, or mount"):
        store_home()
    (tmp_path / "disk" / "models").mkdir(parents=True)
    assert store_home() == tmp_path / "link"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "loop"))
    with pytest.raises(UsageError):
        store_home()


@pytest.mark.parametrize("how", [pull, ensure])
def test_a_store_that_cannot_be_made_says_where_another_may_be(how: object, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (Path("/proc/nowhere/store"), tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match=f"{home}, where models are stored, cannot be made.*set MOEINF_HOME"):
            how("demo", home=home)  # type: ignore[operator]
        assert not home.exists()


def test_two_sizes_that_differ_look_different() -> None:
    assert shortage_text(7_000_000_000, 3_000_000) == "7.0 GB needed, 3.0 MB free"
    assert shortage_text(1_049_000, 1_048_576) == "1049000 B needed, 1048576 B free"
    assert shortage_text(5, 4) == "5 B needed, 4 B free"
