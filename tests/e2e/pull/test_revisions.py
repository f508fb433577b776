"""Revisions of one repository: each has a place of its own, and `org/repo` is the default branch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeinf.cli import run_command
from moeinf.config.pull_options import PullOptions
from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import Library, StoredModel
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.hub_server import REPO, Hub, point_client_at, serving

MAIN, DEV, MOVED = "c" * 40, "0123456789abcdef" * 2 + "01234567", "e" * 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of the default branch, and of the others."""
    return [write_checkpoint(tmp_path_factory.mktemp("checkpoint"), random_tensors(seed=seed)) for seed in (1, 2)]


@pytest.fixture
def server(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(folders[0]) as served:
        for branch in ("dev", "Dev", "refs/pr/1", "v1.0", "q8_0", "latest"):
            served.branches[branch] = (DEV, folders[1])
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
        yield served


def commit_of(stored: StoredModel) -> str:
    return stored.manifest.source.revision


@pytest.mark.parametrize("revision", ["dev", "refs/pr/1", "v1.0", "latest", DEV, DEV[:7], DEV[:12]])
@pytest.mark.parametrize("main_first", [True, False])
def test_a_revision_has_a_place_beside_the_default_branch(
    revision: str, main_first: bool, server: Hub, tmp_path: Path
) -> None:
    references = [REPO, f"{REPO}@{revision}"]
    made = {each: ensure(each, home=tmp_path) for each in (references if main_first else references[::-1])}
    server.seen.clear()
    for _ in range(2):
        assert [commit_of(ensure(each, home=tmp_path)) for each in references] == [MAIN, DEV]
        assert [ensure(each, home=tmp_path) for each in references] == [made[each] for each in references]
    assert ensure("tiny-moe", home=tmp_path) == made[REPO] and made[REPO].name == "tiny-moe:latest"
    names = {model.name: model.revision for model in Library(tmp_path).list()}
    assert sorted(names.values()) == ["", revision] and len(names) == 2 and server.seen == []


def test_two_names_of_one_commit_are_each_brought_up_to_date_from_their_own(server: Hub, tmp_path: Path) -> None:
    server.branches["dev"] = (MAIN, server.folder)
    main, dev = pull(REPO, home=tmp_path), pull(f"{REPO}@dev", home=tmp_path)
    assert main.id == dev.id and (main.revision, dev.revision) == ("", "dev")
    server.commit = MOVED
    moved = pull("tiny-moe", home=tmp_path)
    assert commit_of(moved) == MOVED and commit_of(pull("tiny-moe:dev", home=tmp_path)) == MAIN
    assert commit_of(ensure(REPO, home=tmp_path)) == MOVED and commit_of(ensure(f"{REPO}@dev", home=tmp_path)) == MAIN
    assert commit_of(ensure(f"{REPO}@{MAIN[:9]}", home=tmp_path)) == MAIN, "a commit is found under whatever name"


def test_a_moved_default_branch_keeps_the_revisions(server: Hub, tmp_path: Path) -> None:
    pull(f"{REPO}@dev", home=tmp_path)
    pull(REPO, home=tmp_path)
    server.commit = MOVED
    assert commit_of(pull(REPO, home=tmp_path)) == MOVED
    assert commit_of(ensure(f"{REPO}@dev", home=tmp_path)) == DEV
    server.branches["dev"] = ("f" * 40, server.folder)
    assert commit_of(ensure(f"{REPO}@dev", home=tmp_path)) == DEV, "a stored one needs no network"
    assert commit_of(pull(f"{REPO}@dev", home=tmp_path)) == "f" * 40
    assert commit_of(ensure(REPO, home=tmp_path)) == MOVED


def test_formats_of_a_revision_are_its_own(server: Hub, tmp_path: Path) -> None:
    made = {
        (revision, quant): ensure(f"{REPO}{revision}", PullOptions(quant=quant), home=tmp_path)
        for revision in ("", "@dev")
        for quant in (None, "q8_0")
    }
    assert {key: (commit_of(model), model.name) for key, model in made.items()} == {
        ("", None): (MAIN, "tiny-moe:latest"),
        ("", "q8_0"): (MAIN, "tiny-moe:q8_0"),
        ("@dev", None): (DEV, "tiny-moe:dev"),
        ("@dev", "q8_0"): (DEV, "tiny-moe:dev-q8_0"),
    }
    server.seen.clear()
    for (revision, quant), model in made.items():
        assert ensure(f"{REPO}{revision}", PullOptions(quant=quant), home=tmp_path) == model
    assert server.seen == []


@pytest.mark.parametrize("other", ["Dev", DEV])
def test_a_name_that_another_revision_has_asks_for_one_of_its_own(other: str, server: Hub, tmp_path: Path) -> None:
    first = pull(f"{REPO}@dev", PullOptions(name="mine"), home=tmp_path)
    for reference in (REPO, f"{REPO}@{other}"):
        with pytest.raises(UsageError, match=r"mine:latest is the name of a model of org/Tiny-MoE@dev.*--name OTHER"):
            pull(reference, PullOptions(name="mine"), home=tmp_path)
    assert ensure("mine", home=tmp_path) == first


def test_a_branch_with_the_name_of_a_format_throws_nothing_away(server: Hub, tmp_path: Path) -> None:
    quantised = ensure(REPO, PullOptions(quant="q8_0"), home=tmp_path)
    with pytest.raises(UsageError, match="--name OTHER"):
        ensure(f"{REPO}@q8_0", home=tmp_path)
    assert ensure(REPO, PullOptions(quant="q8_0"), home=tmp_path) == quantised


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    assert run_command(list(words)) == 0
    return capfd.readouterr().out


def test_list_and_rm_tell_revisions_apart(server: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pull(REPO, home=tmp_path)
    pull(f"{REPO}@dev", PullOptions(name="mine"), home=tmp_path)
    lines = printed(capfd, "list").splitlines()
    assert "REVISION" in lines[0]
    assert ["dev" in line.split() for line in sorted(lines[1:])] == [True, False], "mine, then tiny-moe"
    told = {each["name"]: each["revision"] for each in json.loads(printed(capfd, "list", "--json"))}
    assert told == {"mine:latest": "dev", "tiny-moe:latest": ""}
    printed(capfd, "rm", f"{REPO}@dev")
    assert [model.name for model in Library(tmp_path).list()] == ["tiny-moe:latest"]
    with pytest.raises(ModelNotFoundError):
        Library(tmp_path).find(f"{REPO}@dev")


def test_what_was_created_of_a_repository_is_not_the_repository(
    server: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {REPO}@dev\nSYSTEM x\n")
    pull(f"{REPO}@dev", home=tmp_path)
    printed(capfd, "create", "zebra", "-f", str(tmp_path / "Modelfile"))
    for _ in range(2):
        assert ensure(f"{REPO}@dev", home=tmp_path).preset_text == ""
        Library(tmp_path).remove("tiny-moe:dev")
