"""Which GGUF models files are: of a folder as programs leave it that fetch them, and of pieces that were cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.errors import CheckpointError, UsageError
from moeinf.pull.gguf.gguf_files import choose
from moeinf.pull.source import FolderSource
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.gguf_models import whole_of
from moeinf.store.naming.names import outside_source

SPLIT = ["Big-Q3_K_S-00001-of-00002.gguf", "Big-Q3_K_S-00002-of-00002.gguf"]
PIECES = ["Big.Q4_K_M.gguf.part1of2", "Big.Q4_K_M.gguf.part2of2"]


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(b"GGUF")
    return folder


@pytest.mark.parametrize(
    ("names", "only"),
    [
        (["Big.gguf"], "Big.gguf"),
        (SPLIT, SPLIT[0]),
        ([*SPLIT, "mmproj-F16.gguf", "README.md"], SPLIT[0]),
        ([*SPLIT, "Other.gguf"], None),
        (["Big.gguf", "config.json"], None),
        ([], None),
    ],
)
def test_a_folder_with_one_model_is_that_model(names: list[str], only: str | None, tmp_path: Path) -> None:
    folder = made(tmp_path, *names)
    meant = ModelSource("folder", str(folder)) if only is None else ModelSource("file", str(folder / only))
    assert outside_source(str(folder)) == meant


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        (PIECES[0], "Big.Q4_K_M.gguf"),
        ("big.gguf-split-a", "big.gguf"),
        ("big.gguf.part-02", "big.gguf"),
        ("BIG.GGUF.PART1", "BIG.GGUF"),
        (SPLIT[0], ""),
        ("big.gguf.incomplete", ""),
        ("part1of2", ""),
    ],
)
def test_pieces_are_known_by_their_names(name: str, whole: str) -> None:
    assert whole_of(name) == whole


@pytest.mark.parametrize("asked", ["folder", PIECES[0]])
def test_who_has_pieces_is_told_how_they_are_joined(asked: str, tmp_path: Path) -> None:
    path = made(tmp_path, *PIECES) / ("" if asked == "folder" else asked)
    with pytest.raises(
        CheckpointError, match=r"join them in order, as in `cat \$\(ls -v Big\.Q4_K_M\.gguf\?\*\) > Big\.Q4_K_M\.gguf`"
    ):
        FolderSource(path)


@pytest.mark.parametrize("names", [PIECES, [f"q4/{name}" for name in PIECES], [*PIECES, "Big.Q2_K.gguf"]])
def test_a_repository_of_pieces_says_so_of_the_form_that_was_asked_for(names: list[str]) -> None:
    with pytest.raises(CheckpointError, match=r"org/repo has .*Big\.Q4_K_M\.gguf, but it was cut into pieces"):
        choose(names, "q4_k_m", "org/repo")
    if len(names) > 2:
        assert choose(names, "q2_k", "org/repo") == "Big.Q2_K.gguf"
        assert choose(names, "", "org/repo") == "Big.Q2_K.gguf"


def test_a_gguf_file_of_another_name_is_known_by_its_bytes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"give it a name that ends in \.gguf"):
        FolderSource(made(tmp_path, "model") / "model")


@pytest.mark.parametrize(
    ("path", "here"),
    [
        (r"C:\Users\Ann Doe\x.gguf", "/mnt/c/Users/Ann Doe/x.gguf"),
        ("d:/models", "/mnt/d/models"),
        (r"\\wsl$\Ubuntu\home\ann\x.gguf", "/home/ann/x.gguf"),
        (r"\\wsl.localhost\Ubuntu-24.04\home", "/home"),
    ],
)
def test_a_path_of_windows_is_told_as_it_is_called_here(path: str, here: str) -> None:
    with pytest.raises(UsageError) as refused:
        outside_source(path)
    assert str(refused.value) == f"{path} is a path of Windows; under WSL it is {here}"
