"""pull from a local server that speaks the Hub's API, through the real huggingface_hub client."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from moeinf.config.pull_options import PullOptions
from moeinf.errors import CheckpointError, HubError, ModelNotFoundError, UsageError
from moeinf.pull.events import SilentProgress
from moeinf.pull.hub import remote
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.pull.steps import PullPlan
from moeinf.store.library import Library
from moeinf.store.verify import verify
from tests.support.checkpoints import CONFIG, content, random_tensors, write_checkpoint
from tests.support.hub_server import RANGE_BYTES, REPO, Hub, point_client_at, serving

SHARD = "model-00002-of-00004.safetensors"
TOKEN = "hf_secretsecretsecret"


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def weights(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a pull of the same checkpoint from a folder gives, but for the manifest, which names the source."""
    stored = content(pull(str(checkpoint), home=tmp_path_factory.mktemp("home")).path)
    return {name: digest for name, digest in stored.items() if name != "manifest.json"}


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, with the client pointed at it; waits are noted instead of waited."""
    with serving(checkpoint) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        yield served


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a pull would have waited between retries."""
    waited: list[float] = []
    monkeypatch.setattr(remote.Patience, "__init__", lambda self: None)
    monkeypatch.setattr(remote.Patience, "sleep", lambda self, seconds: waited.append(seconds), raising=False)
    monkeypatch.setattr(remote.Patience, "clock", lambda self: 0.0, raising=False)
    return waited


def sound(home: Path, weights: dict[str, str]) -> None:
    model = Library(home).find("tiny-moe")
    assert verify(model) == []
    assert {name: digest for name, digest in content(model.path).items() if name != "manifest.json"} == weights


def test_a_repository_is_stored_with_its_commit_and_each_shard_is_fetched_once(
    server: Hub, tmp_path: Path, weights: dict[str, str], checkpoint: Path
) -> None:
    model = pull(REPO, home=tmp_path)
    sound(tmp_path, weights)
    assert model.manifest.source.to_json() == {"kind": "hub", "repo": REPO, "revision": server.commit}
    size = (checkpoint / SHARD).stat().st_size
    ranged = [seen for seen in server.seen if seen.path.endswith(SHARD) and seen.host == "cdn" and seen.sent_bytes]
    assert max(seen.sent_bytes for seen in ranged) <= RANGE_BYTES
    assert size <= server.sent_bytes(SHARD) <= size + 10_000  # the header is read ahead
    assert not list(tmp_path.rglob("*.safetensors.part")) and not list((tmp_path / "partial").iterdir())


@pytest.mark.parametrize("reference", [f"{REPO}@main", f"hf.co/{REPO}", f"https://huggingface.co/{REPO}/tree/main"])
def test_a_stored_repository_is_found_without_a_request(reference: str, server: Hub, tmp_path: Path) -> None:
    stored = ensure(reference, home=tmp_path)
    server.seen.clear()
    assert ensure(reference, home=tmp_path) == stored
    assert ensure("tiny-moe", home=tmp_path).path == ensure(REPO, home=tmp_path).path == stored.path
    assert ensure(f"{REPO}@{server.commit[:12]}", home=tmp_path).path == stored.path
    assert server.seen == []


def test_a_repeated_pull_asks_for_news_and_downloads_nothing(server: Hub, tmp_path: Path) -> None:
    first = pull(REPO, home=tmp_path)
    server.seen.clear()
    assert pull("tiny-moe", home=tmp_path) == first
    assert not [seen for seen in server.seen if seen.path.endswith(".safetensors")]


def test_a_new_commit_replaces_the_model(server: Hub, tmp_path: Path) -> None:
    first = pull(REPO, home=tmp_path)
    server.commit = "e" * 40
    second = pull("tiny-moe", home=tmp_path)
    assert second.manifest.source.revision == "e" * 40 and second.id != first.id
    assert [path.name for path in (tmp_path / "models").iterdir()] == [second.id]


def test_the_sizes_are_said_before_the_first_shard_also_by_a_run(server: Hub, tmp_path: Path, checkpoint: Path) -> None:
    said: list[tuple[int, int, int] | str] = []

    class Noting(SilentProgress):
        def sizes(self, *sizes: int) -> None:
            said.append((sizes[0], sizes[1], sizes[2]))

        def start(self, verb: str, *rest: object) -> None:
            said.append(verb)

    model = ensure(REPO, home=tmp_path, progress=Noting())
    fetched = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    small = ensure(REPO, PullOptions(quant="q4_k"), home=tmp_path, progress=SilentProgress())
    weights = {
        stored.id: sum(path.stat().st_size for path in (stored.dense_path, *stored.shard_paths))
        for stored in (model, small)
    }
    assert said[:2] == [(fetched, weights[model.id], weights[small.id]), "pulling"]
    assert small.name == "tiny-moe:q4_k" and weights[small.id] < weights[model.id] / 2
    server.seen.clear()
    for reference in (REPO, "tiny-moe", "tiny-moe:q4_k"):
        assert ensure(reference, PullOptions(quant="q4_k"), home=tmp_path) == small
    assert server.seen == []


def test_a_dry_run_tells_what_would_be_fetched(server: Hub, tmp_path: Path, checkpoint: Path) -> None:
    plan = plan_pull(REPO, home=tmp_path / "home")
    assert isinstance(plan, PullPlan)
    assert plan.fetch_bytes == sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert not (tmp_path / "home").exists()


def test_kept_shards_are_not_downloaded_again(server: Hub, tmp_path: Path, checkpoint: Path) -> None:
    pull(REPO, PullOptions(keep_source=True), home=tmp_path)
    kept = tmp_path / "sources" / REPO.replace("/", "--") / server.commit / SHARD
    assert kept.read_bytes() == (checkpoint / SHARD).read_bytes()
    Library(tmp_path).remove("tiny-moe")
    before = server.sent_bytes(SHARD)
    pull(REPO, PullOptions(keep_source=True), home=tmp_path)
    assert server.sent_bytes(SHARD) - before < 10_000


def test_the_token_goes_to_the_hub_and_to_no_other_host(server: Hub, tmp_path: Path) -> None:
    pull(REPO, PullOptions(token=TOKEN), home=tmp_path)
    tokens = {host: {seen.token for seen in server.seen if seen.host == host} for host in ("hub", "cdn")}
    assert tokens == {"hub": {f"Bearer {TOKEN}"}, "cdn": {""}}
    assert len([seen for seen in server.seen if seen.host == "cdn"]) > 8
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


PASSING = {
    "lost connections": {"drop": 5},
    "cut bodies": {"cut": 6},
    "too many requests": {"429": 4},
    "server errors": {"503": 3},
    "other bytes than asked for": {"shift": 5},
    "an expired address": {"expired": 3},
    "a whole file": {"whole": 3},
    "an API that is down": {"api 503": 4},
    "no redirect": {"self": 10_000},
    "all of it": {"drop": 2, "cut": 3, "429": 2, "500": 1, "shift": 2, "expired": 1, "api 503": 1},
}


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_that_passes_is_outlived(
    name: str, server: Hub, tmp_path: Path, weights: dict[str, str], waits: list[float]
) -> None:
    server.faults = dict(PASSING[name])
    pull(REPO, home=tmp_path)
    sound(tmp_path, weights)
    assert all(1 <= seconds <= 60 for seconds in waits)
    assert waits or name == "no redirect"


def test_a_server_that_names_a_time_is_given_it(server: Hub, tmp_path: Path, waits: list[float]) -> None:
    server.faults, server.waits = {"429": 1}, {"Retry-After": "17"}
    pull(REPO, home=tmp_path)
    assert waits == [17.0]


LASTING = {
    "lost connections": ({"drop": 10_000}, "connection failed"),
    "cut bodies of nothing": ({"503": 10_000}, "HTTP 503"),
    "too many requests": ({"429": 10_000}, "HTTP 429"),
    "other bytes than asked for": ({"shift": 10_000}, "wrong part of the file"),
    "an expired address": ({"expired": 10_000}, "address was refused"),
    "a whole file": ({"whole": 10_000}, "instead of a part"),
    "an API that is down": ({"api 503": 10_000}, "HTTP 503"),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_fault_that_lasts_is_one_line_after_a_bounded_number_of_retries(
    name: str, server: Hub, tmp_path: Path, waits: list[float]
) -> None:
    server.faults, words = dict(LASTING[name][0]), LASTING[name][1]
    with pytest.raises(HubError, match=words) as caught:
        pull(REPO, PullOptions(token=TOKEN), home=tmp_path)
    for secret in (TOKEN, "signature", "\n"):
        assert secret not in str(caught.value)
    assert remote.MAX_RETRIES <= len(waits) <= 4 * remote.MAX_RETRIES  # four shards at once
    assert Library(tmp_path).list() == []


@pytest.mark.parametrize("fault", ["relink", "commit"])
def test_a_file_that_changes_between_listing_and_download_is_refused(fault: str, server: Hub, tmp_path: Path) -> None:
    server.faults = {fault: 10_000}
    with pytest.raises(HubError, match="changed on the server"):
        pull(REPO, home=tmp_path)
    assert Library(tmp_path).list() == []


def test_a_file_that_changes_in_the_middle_of_its_download_is_discarded(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server.takes
    count = 0

    def takes(fault: str) -> bool:
        nonlocal count
        count += fault == "etag"
        return count == 12 if fault == "etag" else real(fault)  # the headers take the first eight

    monkeypatch.setattr(server, "takes", takes)
    with pytest.raises(HubError, match="changed on the server while it was downloaded"):
        pull(REPO, home=tmp_path)
    assert not list(tmp_path.rglob("*.part")) and Library(tmp_path).list() == []


def test_a_flipped_bit_is_found_discarded_and_the_next_pull_is_sound(
    server: Hub, tmp_path: Path, weights: dict[str, str]
) -> None:
    server.faults = {"flip": 10_000}
    with pytest.raises(HubError, match="do not have the Hub's checksum; they were discarded, repeat the pull"):
        pull(REPO, home=tmp_path)
    assert not list(tmp_path.rglob("*.part")) and Library(tmp_path).list() == []
    server.faults = {}
    pull(REPO, home=tmp_path)
    sound(tmp_path, weights)


def test_a_damaged_prefix_of_an_interrupted_download_is_fetched_again_and_said(
    server: Hub, tmp_path: Path, weights: dict[str, str], waits: list[float]
) -> None:
    server.faults = {"503": 0}
    interrupt(server, tmp_path)
    part = next(tmp_path.rglob("*.part"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    notes = Notes()
    pull(REPO, home=tmp_path, progress=notes)
    assert any("is damaged; fetching it again" in line for line in notes.lines)
    sound(tmp_path, weights)


def test_an_interrupted_download_goes_on_behind_what_it_has(
    server: Hub, tmp_path: Path, weights: dict[str, str], waits: list[float], checkpoint: Path
) -> None:
    interrupt(server, tmp_path)
    part = next(tmp_path.rglob("*.part"))
    held, name = part.stat().st_size, part.name.removesuffix(".part")
    assert held > 0 and (checkpoint / name).read_bytes().startswith(part.read_bytes())
    server.seen.clear()
    pull(REPO, home=tmp_path)
    sound(tmp_path, weights)
    size = (checkpoint / name).stat().st_size
    assert server.sent_bytes(name) <= size - held + 10_000


def interrupt(server: Hub, home: Path) -> None:
    """A pull that dies in the middle of a shard: Ctrl-C at the fourth piece of its bytes."""

    class Impatient(SilentProgress):
        advanced = 0

        def advance(self, num_bytes: int) -> None:
            self.advanced += num_bytes
            if self.advanced > 3 * RANGE_BYTES:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(REPO, home=home, progress=Impatient())
    for thread in threading.enumerate():
        if thread.name == "moeinf-download":  # in a real interruption they end with the process
            thread.join(30)
    assert Library(home).list() == []


def test_a_gated_repository_says_where_to_accept_its_terms(server: Hub, tmp_path: Path) -> None:
    server.gated = True
    with pytest.raises(HubError, match=rf"{REPO} is gated: accept its terms at {server.endpoint}/{REPO}.*HF_TOKEN"):
        pull(REPO, home=tmp_path)


def test_a_repository_that_is_not_there_may_be_private(server: Hub, tmp_path: Path) -> None:
    server.missing = True
    with pytest.raises(HubError, match=r"not found on .*, or is private.*HF_TOKEN"):
        pull(REPO, home=tmp_path)


def test_an_unknown_revision_is_named(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="no revision 'nope'"):
        pull(REPO, PullOptions(revision="nope"), home=tmp_path)


def test_a_hub_out_of_reach_is_one_line(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127\.0\.0\.1:9 is out of reach \(ConnectError\)"):
        pull(REPO, home=tmp_path)
    assert len(waits) == 2


@pytest.mark.parametrize(
    "repo",
    [
        "hf://../x",
        "hf://a/../b",
        "hf://a",
        "hf.co/a/b/c/d",
        "hf://a/b@../c",
        "hf://a/b--c",
        "hf://evil@host/x",
        "hf:///etc/passwd",
        "hf://a/b\0",
        "hf://" + "a" * 4096 + "/b",
    ],
)
def test_what_cannot_be_a_repository_is_refused_before_any_request(repo: str, server: Hub, tmp_path: Path) -> None:
    with pytest.raises((UsageError, ModelNotFoundError)):
        pull(repo, home=tmp_path / "home")
    assert server.seen == [] and not (tmp_path / "home").exists()


def test_a_repository_without_safetensors_suggests_the_one_it_was_made_from(server: Hub, tmp_path: Path) -> None:
    server.folder = tmp_path / "repo"
    server.folder.mkdir()
    (server.folder / "config.json").write_text(json.dumps(CONFIG))
    (server.folder / "pytorch_model.bin").touch()
    server.card = {"base_model": ["org/original"]}
    with pytest.raises(CheckpointError, match=r"only PyTorch.*try `moeinf pull org/original`"):
        pull(REPO, home=tmp_path / "home")


def test_a_faulty_checkpoint_is_refused_before_its_shards_are_downloaded(server: Hub, tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors["model.norm.weight"]
    server.folder = write_checkpoint(tmp_path / "repo", tensors)
    with pytest.raises(CheckpointError, match=r"lacks tensor 'model\.norm\.weight'"):
        pull(REPO, home=tmp_path / "home")
    assert server.sent_bytes(".safetensors") < 50_000


@pytest.mark.parametrize("damaged", [False, True])
def test_the_hub_s_cache_is_read_in_place_and_left_alone(
    damaged: bool, server: Hub, tmp_path: Path, checkpoint: Path, weights: dict[str, str]
) -> None:
    cache = fill_cache(tmp_path / "hf-cache", checkpoint, server.commit)
    if damaged:
        with open(cache / SHARD, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in cache.parent.parent.rglob("*")}
    notes = Notes()
    pull(REPO, home=tmp_path / "home", progress=notes)
    sound(tmp_path / "home", weights)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in cache.parent.parent.rglob("*")} == before
    fetched = {seen.path.rpartition("/")[2] for seen in server.seen if seen.path.endswith(".safetensors")}
    assert fetched == ({SHARD} if damaged else set())
    assert bool(notes.lines) == damaged


def fill_cache(cache: Path, checkpoint: Path, commit: str) -> Path:
    """The checkpoint as the Hub's library keeps it; returns the snapshot folder."""
    repo = cache / f"models--{REPO.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for folder in (snapshot, repo / "blobs", repo / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    for path in checkpoint.iterdir():
        blob = repo / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(blob)
    return snapshot


SCRIPT = """
import sys
from pathlib import Path
from moeinf.errors import MoeinfError
from moeinf.pull.pull import pull
from moeinf.store.verify import verify
try:
    model = pull(sys.argv[1], home=Path(sys.argv[2]))
except MoeinfError as error:
    print(type(error).__name__, error)
else:
    print(model.name, model.id, verify(model))
"""


def run_pull(home: Path, **environment: str) -> str:
    """A pull in a process of its own, where the Hub's library reads its environment."""
    names = {"HF_HOME": str(home / "hf"), **environment}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, REPO, str(home / "store")],
        capture_output=True,
        text=True,
        env=os.environ | names,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_endpoint_and_token_come_from_the_environment(server: Hub, tmp_path: Path) -> None:
    expected = pull(REPO, home=tmp_path / "in-process")
    server.seen.clear()
    printed = run_pull(tmp_path, HF_ENDPOINT=server.endpoint, HF_TOKEN=TOKEN)
    assert printed == f"tiny-moe:latest {expected.id} []"
    assert {seen.token for seen in server.seen if REPO in seen.path} == {f"Bearer {TOKEN}"}
    assert {seen.token for seen in server.seen if seen.host == "cdn"} == {""}


def test_offline_no_request_is_made_and_the_cache_suffices_or_the_error_says_so(
    server: Hub, tmp_path: Path, checkpoint: Path
) -> None:
    environment = {"HF_ENDPOINT": server.endpoint, "HF_HUB_OFFLINE": "1"}
    printed = run_pull(tmp_path, **environment)
    assert printed.startswith(f"UnreachableError {REPO} is not in cache and offline")
    fill_cache(tmp_path / "hf" / "hub", checkpoint, server.commit)
    assert run_pull(tmp_path, **environment).endswith("[]")
    assert server.seen == []


def test_a_cache_that_does_not_tell_the_commit_is_taken_where_it_has_one(
    server: Hub, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache, notes = Path(constants.HF_HUB_CACHE), Notes()
    fill_cache(cache, checkpoint, server.commit)
    for refs in cache.glob("*/refs"):
        shutil.rmtree(refs)
    stored = pull(REPO, home=tmp_path / "home", progress=notes)
    assert stored.manifest.source.revision == server.commit and stored.revision == ""
    assert any("taking the only one" in note and server.commit in note for note in notes.lines)
    assert ensure(f"{REPO}@{server.commit[:9]}", home=tmp_path / "other").manifest.source.revision == server.commit
    with pytest.raises(HubError, match="is not in cache and offline"):
        pull(f"{REPO}@v1.0", home=tmp_path / "another")
    fill_cache(cache, checkpoint, "d" * 40)
    for refs in cache.glob("*/refs"):
        shutil.rmtree(refs)
    with pytest.raises(HubError, match=rf"which commit of {REPO} is meant; write {REPO}@c{{12}} or {REPO}@d{{12}}"):
        pull(REPO, home=tmp_path / "another")
    assert server.seen == []
