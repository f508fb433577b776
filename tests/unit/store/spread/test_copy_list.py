"""What a store writes down of experts on other disks: kept, refused where it is damaged, and deleted with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import StoreError
from moeinf.store.spread.copy_list import COPIES_FILE, Copy, CopyList

ID, OTHER_ID = "0123456789ab", "ba9876543210"


def copy_in(folder: Path, identifier: str = ID) -> Copy:
    """One that is there, with a file of 8 KiB."""
    copy = Copy(str(folder), identifier, "m:latest")
    copy.path.mkdir(parents=True)
    (copy.path / "experts-00000.bin").write_bytes(bytes(range(256)) * 32)
    return copy


def test_copies_are_kept_by_folder_and_model(tmp_path: Path) -> None:
    copies = CopyList(tmp_path / "home")
    assert copies.all() == []
    one, other = Copy("/mnt/a", ID, "m:latest"), Copy("/mnt/b", ID, "m:latest")
    for each in (one, other, Copy("/mnt/a", OTHER_ID, "n:latest")):
        copies.put(each)
    divided = Copy("/mnt/b", ID, "m:latest", (4096, 8192))
    copies.put(divided)
    assert copies.of(ID) == [one, divided] and len(copies.all()) == 3
    copies.undivide(ID)
    assert copies.of(ID) == [one, other]
    copies.forget(one)
    assert copies.of(ID) == [other]


GOOD: dict[str, Any] = {"folder": "/mnt/a", "id": ID, "name": "m:latest", "first_bytes": [4096]}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"copies": {}}),
        *(
            json.dumps({"copies": [GOOD | change]})
            for change in (
                {"folder": "mnt/a"},
                {"folder": 1},
                {"id": "../../etc"},
                {"name": None},
                {"first_bytes": 4096},
                {"first_bytes": [100]},
                {"first_bytes": [0]},
                {"first_bytes": [True]},
                {"more": 1},
            )
        ),
        json.dumps({"copies": [{"folder": "/mnt/a"}]}),
    ],
)
def test_a_damaged_list_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / COPIES_FILE).write_text(content)
    with pytest.raises(StoreError, match=COPIES_FILE) as error:
        CopyList(tmp_path).all()
    assert "\n" not in str(error.value)


def test_copies_of_models_that_are_gone_are_deleted(tmp_path: Path) -> None:
    copies, (kept, gone) = CopyList(tmp_path / "home"), (copy_in(tmp_path, each) for each in (ID, OTHER_ID))
    for each in (kept, gone):
        copies.put(each)
    assert copies.discard_but({ID}) == (8192, [])
    assert copies.all() == [kept] and kept.path.is_dir() and not gone.path.exists()
    assert copies.discard_but(()) == (8192, [])
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_what_lies_on_a_disk_that_is_away_is_kept_in_mind(tmp_path: Path) -> None:
    copies, disk = CopyList(tmp_path / "home"), tmp_path / "disk"
    copies.put(copy_in(disk))
    shutil.move(disk, tmp_path / "away")
    freed, left = copies.discard_but(())
    assert freed == 0 and len(left) == 1 and str(disk) in left[0] and "prune" in left[0]
    assert copies.all() != []
    shutil.move(tmp_path / "away", disk)
    assert copies.discard_but(()) == (8192, []) and copies.all() == []


@pytest.mark.parametrize("way", [lambda folder: folder, lambda folder: folder / ".." / folder.name])
def test_a_folder_is_known_by_whatever_path(way: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    copy = Copy(str(tmp_path), ID, "m:latest")
    assert copy.is_in(way(tmp_path)) and copy.is_in(tmp_path / "link")
    assert not copy.is_in(tmp_path.parent) and not copy.is_in(tmp_path / "nowhere")
    assert Copy("/nowhere", ID, "m").is_in(Path("/nowhere"))
