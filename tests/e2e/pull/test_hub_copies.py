"""A head that config.json ties, in a repository of the Hub: it is compared, and each shard is still fetched once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import DiskSpaceError
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.checkpoint.convert import convert_shard
from moeinf.pull.pull import plan_pull, pull
from moeinf.store.verify import verify
from tests.support.checkpoints import CONFIG, content, random_tensors, write_checkpoint
from tests.support.hub_server import REPO, Hub, point_client_at, serving
from tests.support.pairs.pulled import Notes

FILES = [f"model-0000{number}-of-00004.safetensors" for number in range(1, 5)]


@pytest.fixture(params=["its own", "the embedding"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Its embedding is in the first shard, its head in the last."""
    tensors = random_tensors()
    if request.param == "the embedding":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    config = CONFIG | {"tie_word_embeddings": True}
    return write_checkpoint(
        tmp_path / "c", tensors, config, order=lambda name: (name == "lm_head.weight", "embed" not in name, name)
    )


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(checkpoint) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        yield served


def weights(path: Path) -> dict[str, str]:
    return {name: digest for name, digest in content(path).items() if name != "manifest.json"}


def fetched_once(server: Hub, checkpoint: Path) -> None:
    for file in FILES:
        size = (checkpoint / file).stat().st_size
        assert size <= server.sent_bytes(file) <= size + 10_000, file  # the header is read ahead


def test_it_is_stored_as_from_a_folder(server: Hub, checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_pull(REPO, home=tmp_path / "a")
    assert all(server.sent_bytes(file) <= 10_000 for file in FILES)
    sizes = {file: (checkpoint / file).stat().st_size for file in FILES}
    assert plan.needed_bytes >= plan.store_bytes + max(sizes.values()) + sizes[FILES[0]] + sizes[FILES[-1]]
    server.seen.clear()
    notes = Notes()
    model = pull(REPO, home=tmp_path / "a", progress=notes)
    fetched_once(server, checkpoint)
    local = pull(str(checkpoint), home=tmp_path / "b")
    assert weights(model.path) == weights(local.path) and verify(model) == []
    assert model.manifest.formats.fallbacks == local.manifest.formats.fallbacks
    own = bool(local.manifest.formats.fallbacks)
    assert any("kept and used" in line for line in notes.lines) == own
    stored = sum(path.stat().st_size for path in (model.dense_path, *model.shard_paths))
    assert plan.store_bytes == stored if own else plan.store_bytes > stored  # not known before it is fetched
    assert not list((tmp_path / "a" / "partial").iterdir())


def test_an_interrupted_pull_compares_and_fetches_nothing_again(
    server: Hub, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop_at in (0, 1, 2):

        def convert(*args: Any, left: list[int] = [stop_at]) -> Any:  # noqa: B006
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return convert_shard(*args)

        monkeypatch.setattr(steps, "convert_shard", convert)
        with pytest.raises(KeyboardInterrupt):
            pull(REPO, home=tmp_path / "a")
    monkeypatch.setattr(steps, "convert_shard", convert_shard)
    model = pull(REPO, home=tmp_path / "a")
    assert weights(model.path) == weights(pull(str(checkpoint), home=tmp_path / "b").path)
    sizes = sum((checkpoint / file).stat().st_size for file in FILES)
    assert sum(server.sent_bytes(file) for file in FILES) <= sizes + 4 * 4 * 10_000  # headers, each time


def test_too_little_disk_is_refused_before_anything_is_fetched(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "free_bytes", lambda folder: 1000)
    with pytest.raises(DiskSpaceError):
        pull(REPO, home=tmp_path / "a")
    assert all(server.sent_bytes(file) <= 10_000 for file in FILES)
