"""Names, listing and removal of stored models."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import name_from, parse_name
from moeinf.store.processes.partials import PartialPull
from tests.support.checkpoints import content


@pytest.fixture
def library(demo: StoredModel, tmp_path: Path) -> Library:
    """A store of its own that holds the demo under two names."""
    shutil.copytree(demo.path, tmp_path / "models" / demo.id)
    library = Library(tmp_path)
    with library.lock():
        library.bind("demo", demo.id)
        library.bind("demo:small", demo.id)
    return library


def test_a_model_is_found_by_name_with_and_without_the_default_tag(library: Library, demo: StoredModel) -> None:
    assert library.find("demo") == library.find("demo:latest")
    assert library.find("demo").manifest == demo.manifest
    assert {model.name for model in library.list()} == {"demo:latest", "demo:small"}


def test_an_unknown_name_is_answered_with_close_ones_and_the_remedy(library: Library) -> None:
    with pytest.raises(ModelNotFoundError, match=r"model 'demmo' not found; did you mean demo.*moeinf pull"):
        library.find("demmo")


def test_an_empty_store_lists_nothing_and_is_not_created(tmp_path: Path) -> None:
    library = Library(tmp_path / "nowhere")
    assert library.list() == [] and library.partials() == []
    with pytest.raises(ModelNotFoundError, match="moeinf pull"):
        library.find("demo")
    assert not (tmp_path / "nowhere").exists()


def test_removing_one_of_two_names_keeps_the_model(library: Library, demo: StoredModel) -> None:
    assert library.remove("demo") == 0
    assert content(library.find("demo:small").path) == content(demo.path)
    size = library.find("demo:small").size_bytes
    assert library.remove("demo:small") == size
    assert library.list() == [] and list((library.home / "models").iterdir()) == []
    assert list((library.home / "names").iterdir()) == []


def test_of_two_that_remove_a_name_the_second_is_told_that_it_is_gone(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quicker() -> list[PartialPull]:
        Library(library.home).remove("demo")
        return []

    monkeypatch.setattr(library, "partials", quicker)  # asked between the look at the name and its removal
    with pytest.raises(ModelNotFoundError, match="pull"):
        library.remove("demo")
    assert [model.name for model in library.list()] == ["demo:small"]


def test_a_name_that_moves_takes_the_model_that_nobody_holds_with_it(library: Library, demo: StoredModel) -> None:
    other = "0123456789ab"
    with library.lock():
        library.bind("kept", demo.id)
        shutil.copytree(demo.path, library.home / "models" / other)
        library.bind("demo", other)
        library.bind("demo:small", other)
        assert (library.home / "models" / demo.id).is_dir()
        library.bind("kept", other)
    assert [path.name for path in (library.home / "models").iterdir()] == [other]


def test_a_folder_without_manifest_is_not_a_model(library: Library, demo: StoredModel) -> None:
    (library.home / "models" / demo.id / "manifest.json").unlink()
    assert library.list() == []
    with pytest.raises(ModelNotFoundError):
        library.find("demo")


def test_a_damaged_manifest_is_an_error_only_when_it_is_opened(library: Library, demo: StoredModel) -> None:
    (library.home / "models" / demo.id / "manifest.json").write_text("{}")
    model = library.find("demo")
    assert len(library.list()) == 2 and model.size_bytes > 0
    with pytest.raises(StoreError, match="damaged"):
        _ = model.manifest


def test_a_reference_file_with_other_content_is_an_error_that_names_it(library: Library) -> None:
    (library.home / "names" / "demo" / "latest").write_text("../../../etc\n")
    with pytest.raises(StoreError, match="names/demo/latest"):
        library.find("demo")


BROKEN_NAMES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no id": lambda path: path.write_text("../../../etc\n"),
    "no text": lambda path: path.write_bytes(b"\xff\x00" * 500),
    "too long": lambda path: path.write_bytes(b"0" * 5000),
    "FIFO": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "of a model that is gone": lambda path: path.write_text("0123456789ab"),
}


@pytest.mark.parametrize("damage", BROKEN_NAMES)
def test_a_damaged_name_is_named_and_removed_and_bars_nobody(damage: str, library: Library, demo: StoredModel) -> None:
    (library.home / "names" / "other").mkdir()
    BROKEN_NAMES[damage](library.home / "names" / "other" / "latest")
    assert {model.name for model in library.list()} == {"demo:latest", "demo:small"}
    [fault] = library.faults()
    assert "other" in fault and "`moeinf rm other:latest`" in fault and fault.isprintable()
    assert library.find("demo").name == "demo:latest" and library.made_of("another") == []
    with library.lock():
        library.bind("third", demo.id)
    assert library.remove("third") == 0
    library.remove("other")
    assert library.faults() == [] and not (library.home / "names" / "other").exists()
    assert library.remove("demo") + library.remove("demo:small") > 0


def test_a_model_that_a_damaged_name_may_hold_is_kept_until_the_name_is_gone(
    library: Library, demo: StoredModel
) -> None:
    (library.home / "names" / "demo" / "latest").write_bytes(b"")
    library.remove("demo:small")
    assert (library.home / "models" / demo.id).is_dir()
    assert library.remove("demo") == demo.size_bytes
    assert list((library.home / "models").iterdir()) == []


def test_what_is_no_model_among_the_models_is_left_alone(library: Library) -> None:
    (library.home / "models" / "notes.txt").write_text("mine")
    (library.home / "models" / "0123456789ab").symlink_to("/")
    library.remove("demo")
    assert library.remove("demo:small") > 0
    assert {path.name for path in (library.home / "models").iterdir()} == {"notes.txt", "0123456789ab"}


def test_a_damaged_manifest_hides_no_other_model_of_a_source(library: Library, demo: StoredModel) -> None:
    (library.home / "models" / demo.id / "manifest.json").write_text("{}")
    with pytest.raises(ModelNotFoundError):
        library.find("org/repo")


EVIL = [
    "../x",
    "/etc/x",
    "a/../../b",
    "a\\..\\b",
    "C:x:y",
    "a\0b",
    "x" * 4096,
    "..",
    ".hidden",
    "-x",
    "",
    ":",
    "a:",
    ":b",
    "a:..",
    "a:b/c",
    "a b",
    "naïve",
    "\x1b[2J",
    "a..b",
    "a:b:c",
]


@pytest.mark.parametrize("name", EVIL)
def test_names_that_could_leave_the_store_are_refused_before_anything_is_touched(name: str, library: Library) -> None:
    before = sorted(library.home.rglob("*"))
    with pytest.raises(UsageError) as caught:
        parse_name(name)
    assert str(caught.value).isprintable()
    with pytest.raises(ModelNotFoundError):
        library.find(name)
    with pytest.raises(ModelNotFoundError):
        library.remove(name)
    assert sorted(library.home.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("/a/My Model (1)", "my-model-1-"),
        ("org/..", "model"),
        ("..x..y", "x.y"),
        ("/data/x/", "x"),
        ("é", "model"),
        ("a" * 200, "a" * 80),
    ],
)
def test_a_default_name_is_always_valid(text: str, name: str) -> None:
    assert name_from(text) == name
    assert parse_name(name_from(text)) == (name, "latest")


def test_listing_imports_neither_torch_nor_the_hub_s_library(library: Library) -> None:
    code = (
        "import sys, pathlib; from moeinf.store.library import Library; from moeinf.store import verify; "
        "found = Library(pathlib.Path(sys.argv[1])).list(); assert len(found) == 2 and found[0].manifest.info; "
        "print([m for m in ('torch', 'huggingface_hub', 'rich') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(library.home)], capture_output=True, text=True, check=True, env=os.environ
    )
    assert result.stdout.strip() == "[]"
