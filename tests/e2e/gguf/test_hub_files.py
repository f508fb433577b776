"""GGUF files of the Hub: chosen by tag, refused by their headers, downloaded whole, and used as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.errors import CheckpointError, HubError, UnsupportedModelError, UsageError
from moeinf.pull.gguf.gguf_files import choose
from moeinf.pull.hub import download
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.store.files import write_fully
from moeinf.store.format import MERGED_FILE
from moeinf.store.library import Library
from moeinf.store.sums.checksums import CHECKSUMS_FILE
from moeinf.store.verify import verify
from tests.support.adapters import factors, write_adapter
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.hub_server import RANGE_BYTES, REPO, Hub, point_client_at, serving
from tests.support.mixed_gguf import without_vocabulary


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three quantisations of a model, one of them a split, and a file that is none."""
    folder = tmp_path_factory.mktemp("repository")
    config, tensors = checkpoint("qwen3_moe")
    for tag, kind in (("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_0")):
        write_gguf(folder / f"Tiny-MoE-{tag}.gguf", config, tensors, kinds=lambda name, kind=kind: kind)  # type: ignore[misc]
    write_gguf(folder / "Tiny-MoE-BF16.gguf", config, tensors, tensors_a_part=9)
    (folder / "mmproj-F16.gguf").write_bytes(b"GGUF")
    return folder


@pytest.fixture
def server(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(repository) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        yield served


def test_a_file_of_another_revision_is_another_model(server: Hub, tmp_path: Path) -> None:
    server.branches["dev"] = ("d" * 40, tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    write_gguf(tmp_path / "dev" / "Tiny-MoE-Q8_0.gguf", *checkpoint("qwen3_moe"), kinds=lambda name: "Q4_0")
    references = [f"{REPO}:Q8_0", f"{REPO}:Q8_0@dev", f"{REPO}@dev"]
    made = [ensure(each, home=tmp_path) for each in references]
    assert [each.manifest.source.revision for each in made] == [server.commit, "d" * 40, "d" * 40]
    assert [each.name for each in made] == ["tiny-moe:q8_0", "tiny-moe:dev-q8_0", "tiny-moe:dev-q8_0"]
    server.seen.clear()
    assert [ensure(each, home=tmp_path) for each in references] == made and server.seen == []
    with pytest.raises(UsageError, match="--name OTHER"):
        pull(references[1], PullOptions(name="tiny-moe:q8_0"), home=tmp_path)


@pytest.mark.parametrize("reference", [f"hf.co/{REPO}:Q8_0", f"{REPO}:q8_0", f"{REPO}:Tiny-MoE-Q8_0.gguf"])
def test_a_tag_names_a_file_which_is_kept_whole(reference: str, server: Hub, tmp_path: Path) -> None:
    stored = ensure(reference, home=tmp_path)
    file = server.folder / "Tiny-MoE-Q8_0.gguf"
    assert (stored.path / file.name).read_bytes() == file.read_bytes()
    assert stored.manifest.source.to_json() == {
        "kind": "hub", "repo": REPO, "revision": server.commit, "file": file.name
    }  # fmt: skip
    assert stored.name.startswith("tiny-moe:")
    assert CHECKSUMS_FILE in stored.manifest.file_sizes() and verify(stored) == []
    size = file.stat().st_size
    assert size <= server.sent_bytes(file.name) <= size + (1 << 20)  # the header is read ahead
    server.seen.clear()
    assert ensure(reference, home=tmp_path).id == stored.id
    assert ensure(f"{REPO}:Q8_0", home=tmp_path).id == stored.id
    assert server.seen == [] and not list((tmp_path / "partial").iterdir())
    assert pull(reference, home=tmp_path).id == stored.id
    large = [seen for seen in server.seen if seen.sent_bytes > 2 * RANGE_BYTES and seen.host == "cdn"]
    assert not large or size < 1 << 20
    freed = Library(tmp_path).remove(stored.name)
    assert freed >= size and not stored.path.exists()


def test_without_a_tag_the_usual_file_is_taken(server: Hub, tmp_path: Path) -> None:
    for number, reference in enumerate((REPO, f"{REPO}:latest", f"hf.co/{REPO}")):
        stored = ensure(reference, home=tmp_path / str(number))
        assert stored.manifest.source.file == "Tiny-MoE-Q4_K_M.gguf"
        assert stored.name == "tiny-moe:latest"


def test_all_parts_of_a_split_come_together(server: Hub, tmp_path: Path) -> None:
    plan = plan_pull(f"{REPO}:BF16", home=tmp_path)
    stored = ensure(f"{REPO}:BF16", home=tmp_path)
    parts = sorted(path for path in server.folder.iterdir() if "BF16" in path.name)
    assert len(parts) > 1 and [file.file for file in plan.files] == [path.name for path in parts]
    assert plan.fetch_bytes == sum(path.stat().st_size for path in parts)
    assert stored.manifest.in_place is not None
    assert [file.file for file in stored.manifest.in_place.files] == [path.name for path in parts]
    assert verify(stored) == [] and plan_pull(f"{REPO}:BF16", home=tmp_path).up_to_date


def test_a_tag_that_is_not_there_is_told_which_are(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no GGUF file of the tag 'Q2_K'.*BF16, Q4_K_M, Q8_0"):
        pull(f"{REPO}:Q2_K", home=tmp_path)
    with pytest.raises(UsageError, match="--quant: a GGUF file is used as it is"):
        pull(f"{REPO}:Q8_0", PullOptions(quant="q4_k"), home=tmp_path)
    with pytest.raises(CheckpointError, match="several GGUF files, none of them Q4_K_M"):
        choose(["a-Q8_0.gguf", "a-Q5_0.gguf"], "", "x/y")
    assert choose(["only.gguf", "mmproj-F16.gguf"], "", "x/y") == "only.gguf"
    assert choose(["Q8_0/a-Q8_0-00001-of-00002.gguf", "Q8_0/a-Q8_0-00002-of-00002.gguf"], "q8_0", "x/y").startswith(
        "Q8_0/a-Q8_0-00001"
    )
    assert not (tmp_path / "models").exists()


def test_an_architecture_that_is_not_supported_is_refused_before_its_file_is_fetched(
    server: Hub, tmp_path: Path
) -> None:
    config, tensors = checkpoint("qwen3_moe")
    server.folder = tmp_path / "repo"
    server.folder.mkdir()
    metadata = {"general.architecture": "llama4"}
    [file] = write_gguf(server.folder / "a-Q4_K_M.gguf", config, tensors, metadata=metadata)
    with file.open("ab") as grown:
        grown.truncate(64 << 20)
    with pytest.raises(UnsupportedModelError, match="llama4"):
        pull(REPO, home=tmp_path / "home")
    assert server.sent_bytes(".gguf") < 2 << 20
    assert not (tmp_path / "home" / "models").exists()


def test_an_interrupted_download_goes_on_where_it_stopped(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1 << 30))

    def stop(fd: int, data: bytes, offset: int, path: Path) -> None:
        write_fully(fd, data, offset, path)
        if next(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(download, "write_fully", stop)
    with pytest.raises(KeyboardInterrupt):
        pull(f"{REPO}:Q8_0", home=tmp_path)
    monkeypatch.setattr(download, "write_fully", write_fully)
    [left] = tmp_path.rglob("*.part")
    held = left.stat().st_size
    [partial] = Library(tmp_path).partials()
    assert held > 0 and partial.asked is not None and partial.matches("tiny-moe:q8_0")
    server.seen.clear()
    stored = pull("tiny-moe:q8_0", home=tmp_path)
    file = server.folder / "Tiny-MoE-Q8_0.gguf"
    assert (stored.path / file.name).read_bytes() == file.read_bytes()
    assert f"bytes={held}-" in {seen.range.partition("-")[0] + "-" for seen in server.seen if seen.host == "cdn"}
    assert not list(tmp_path.rglob("*.part")) and Library(tmp_path).partials() == []


@pytest.mark.parametrize("said", ["{", "[]", "", '{"fingerprint": 1}'])
def test_a_download_whose_journal_is_damaged_begins_anew(said: str, server: Hub, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patched:
        patched.setattr(download, "write_fully", Mock(side_effect=KeyboardInterrupt))
        pull(f"{REPO}:Q8_0", home=tmp_path)
    [journal] = tmp_path.glob("partial/*/journal.json")
    journal.write_text(said)
    assert verify(pull(f"{REPO}:Q8_0", home=tmp_path)) == []


def test_a_download_may_be_repacked_and_is_deleted_then(server: Hub, tmp_path: Path) -> None:
    plain = pull(f"{REPO}:Q8_0", home=tmp_path / "plain")
    home, options = tmp_path / "home", PullOptions(repack=True)
    plan = plan_pull(f"{REPO}:Q8_0", options, home=home)
    assert plan.needed_bytes == 2 * plan.fetch_bytes > 0
    stored = pull(f"{REPO}:Q8_0", options, home=home)
    assert (stored.name, stored.manifest.in_place) == (plain.name, None) and verify(stored) == []
    assert not list(home.rglob("*.gguf")) and not list((home / "partial").iterdir())
    with Model(plain, RuntimeConfig.of(context=32)) as one, Model(stored, RuntimeConfig.of(context=32)) as other:
        wanted, found = (model.runner.forward([5, 17, 3], lambda: None) for model in (one, other))
        assert np.array_equal(found, wanted)
    server.seen.clear()
    assert ensure(f"{REPO}:Q8_0", home=home).id == stored.id and server.seen == []
    for source, again in ((f"{REPO}:Q8_0", options), (stored.name, PullOptions())):
        assert pull(source, again, home=home).id == stored.id
    assert server.sent_bytes("Q8_0.gguf") < plan.fetch_bytes or plan.fetch_bytes < 1 << 20
    assert plan_pull(stored.name, home=home).up_to_date
    assert pull(f"{REPO}:Q8_0", home=home).id == plain.id  # in place, in its stead
    assert [model.id for model in Library(home).list()] == [plain.id]


def test_what_cannot_be_repacked_is_one_line(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--keep-source: leave --repack out"):
        pull(f"{REPO}:Q8_0", PullOptions(repack=True, keep_source=True), home=tmp_path)
    with pytest.raises(UsageError, match="--repack is for GGUF files; 'demo' is a checkpoint"):
        pull("demo", PullOptions(repack=True), home=tmp_path)


def test_what_the_server_spoils_is_never_published(server: Hub, tmp_path: Path) -> None:
    server.faults["flip"] = 1000
    with pytest.raises((HubError, CheckpointError)):
        pull(f"{REPO}:Q8_0", home=tmp_path)
    assert Library(tmp_path).list() == []


def test_an_adapter_is_merged_beside_a_file_of_the_hub(server: Hub, tmp_path: Path) -> None:
    module = "model.layers.0.self_attn.q_proj"
    lora = PullOptions(lora=str(write_adapter(tmp_path / "tuned", factors(module, 96, 64))))
    plan = plan_pull(f"{REPO}:Q8_0", lora, home=tmp_path)
    stored, plain = ensure(f"{REPO}:Q8_0", lora, home=tmp_path), ensure(f"{REPO}:Q8_0", home=tmp_path)
    assert (plan.name, stored.name, plain.name) == ("tiny-moe:q8_0-tuned",) * 2 + ("tiny-moe:q8_0",)
    assert plan.needed_bytes > plan.fetch_bytes == plan_pull(f"{REPO}:Q8_0", home=tmp_path / "other").fetch_bytes
    assert stored.manifest.in_place is not None
    assert [file.file for file in stored.manifest.in_place.files] == ["Tiny-MoE-Q8_0.gguf", MERGED_FILE]
    assert not (stored.path / "adapter_model.safetensors").exists() and verify(stored) == []
    place = next(each for each in stored.manifest.in_place.dense if each.name == f"{module}.weight")
    assert [source.file for source in place.sources] == [1]
    file = stored.path / "Tiny-MoE-Q8_0.gguf"
    assert file.stat().st_ino == (plain.path / file.name).stat().st_ino, "it is downloaded once"
    assert ensure(f"{REPO}:Q8_0", lora, home=tmp_path).id == pull("tiny-moe:q8_0-tuned", home=tmp_path).id == stored.id
