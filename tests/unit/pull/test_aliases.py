"""Names that a user adds to those that moeinf knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.errors import UsageError
from moeinf.pull.origins import resolve
from moeinf.store.library import Library
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.aliases import ALIAS_FILE, known_sources


def write(home: Path, text: str) -> None:
    (home / ALIAS_FILE).write_text(text)


def test_a_name_of_the_user_means_a_repository_at_a_commit(tmp_path: Path) -> None:
    write(tmp_path, '{"Small": "org/Repo@0123abc", "small:q4": "org/Repo-GGUF:Q4_K_M"}')
    origin = resolve("small", Library(tmp_path))
    assert (origin.source, origin.name) == (ModelSource("hub", "org/Repo", "0123abc"), "small")
    of_file = resolve("small:q4", Library(tmp_path))
    assert (of_file.source, of_file.name) == (ModelSource("hub", "org/Repo-GGUF", "", "Q4_K_M"), "small:q4")
    assert resolve("small:latest", Library(tmp_path)).source.location == "org/Repo"
    known = known_sources(tmp_path)
    assert known["small"] == "org/Repo@0123abc" and known["small:q4"] == "org/Repo-GGUF:Q4_K_M"
    assert known["demo"] == "embedded" and list(known) == sorted(known)


def test_commits_of_names_that_come_with_moeinf_are_whole(tmp_path: Path) -> None:
    known = known_sources(tmp_path)
    commits = {source.partition("@")[2] for source in known.values()} - {""}
    assert all(len(commit) == 40 and int(commit, 16) for commit in commits)


def test_a_name_of_the_user_goes_before_one_that_comes_with_moeinf(tmp_path: Path) -> None:
    write(tmp_path, '{"mixtral": "mine/Mixtral"}')
    assert resolve("mixtral", Library(tmp_path)).source.location == "mine/Mixtral"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no sound JSON|not sound JSON"),
        ("[]", "not a JSON object|no JSON object|object"),
        ('{"a": 3}', "'a' is no org/repo"),
        ('{"a": "no-repo"}', "'a' is no org/repo"),
        ('{"a": "no repo/x"}', "'a' is no org/repo"),
        ('{"a": "./folder"}', "'a' is no org/repo"),
        ('{"a": "/org/repo"}', "'a' is no org/repo"),
        ('{"a/b": "org/repo"}', "a/b"),
    ],
)
def test_a_file_that_is_not_sound_is_named_with_what_it_should_hold(text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError, match=said):
        resolve("olmoe", Library(tmp_path))
