"""A Hugging Face Hub repository as a source: pinned to a commit, every byte checked against the Hub's hashes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.hf_api import ModelInfo as RepoInfo
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined, unused-ignore]

from moeinf.errors import MALFORMED, CheckpointError, HubError, UsageError
from moeinf.pull.events import PullProgress
from moeinf.pull.hub.download import download, fetch_bytes, held_bytes, matches
from moeinf.pull.hub.hub_errors import hub_errors_named, offline_error, transport_error
from moeinf.pull.hub.proxies import check_proxies
from moeinf.pull.hub.remote import MAX_RETRIES, Patience, Remote, RemoteFile
from moeinf.pull.hub.settings import check_certificates, checked_endpoint, checked_token
from moeinf.pull.source import (
    INDEX_FILE,
    SINGLE_FILE,
    FolderSource,
    Source,
    chat_code,
    find_shards,
    is_kept,
    most_bytes,
)
from moeinf.pull.steps import Steps
from moeinf.store.files import errors_named
from moeinf.store.format import Header, header_length, parse_header, read_header
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.gguf_models import whole_of
from moeinf.store.naming.names import is_commit

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]{0,255}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
HEAD_BYTES = 256 << 10  # holds the header of most shards, so that one request suffices
_METADATA_TIMEOUT_S = 30.0
_HEADER_THREADS = 8  # a large model has a hundred shards; one after the other their headers take half a minute
_T = TypeVar("_T")


def check_repo(repo: str, revision: str) -> None:
    """Raises UsageError for what cannot name a repository or revision, before it reaches a URL or a path."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise UsageError(f"{repo[:100]!r} is not the name of a Hub repository (org/repo)")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"{revision[:100]!r} is not a branch, tag or commit")


def open_hub(
    asked: ModelSource,
    token: str | None,
    progress: PullProgress,
    checkpoint: Callable[[Source], Steps],
    files: Callable[[HubRepository], Steps],
) -> Steps:
    """Opens a repository at a revision, "" for its default branch; returns the pull that one of two functions makes.

    checkpoint: called with a checkpoint, which it is unless it has GGUF files alone, or one of them is asked for.
    files: called with what has GGUF files.

    With HF_HUB_OFFLINE no request is made: the source is then what the Hub's cache holds. Raises HubError,
    CheckpointError, UsageError.
    """
    repo, revision = asked.location, asked.revision
    check_repo(repo, revision)
    if constants.HF_HUB_OFFLINE:
        if asked.file:
            raise offline_error(repo)
        return checkpoint(_CachedSource(repo, revision, progress))
    repository = HubRepository(repo, revision, token, progress, Patience())
    has_shards = INDEX_FILE in repository.names or SINGLE_FILE in repository.names
    if asked.file or (
        not has_shards and any(name.lower().endswith(".gguf") or whole_of(name) for name in repository.names)
    ):
        return files(repository)
    return checkpoint(HubSource(repository))


class HubRepository:
    """The files of a repository at a commit, fetched as they are needed. Used from one thread."""

    def __init__(self, repo: str, revision: str, token: str | None, progress: PullProgress, patience: Patience) -> None:
        check_proxies()
        check_certificates()
        constants.HF_HUB_DISABLE_TELEMETRY = True  # it asks the Hub for a list, and stumbles where that is none
        token = checked_token(token)
        self.requested = revision
        self._repo = repo
        self._progress = progress
        self._patience = patience
        self._endpoint = checked_endpoint()
        self._auth = {
            key: value
            for key, value in build_hf_headers(token=token or False, library_name="moeinf").items()
            if key.lower() in ("authorization", "user-agent")
        }
        info = self._repo_info(HfApi(endpoint=self._endpoint, token=token or False, library_name="moeinf"))
        if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
            raise HubError(f"{self._endpoint} does not tell the commit of {repo}; check HF_ENDPOINT")
        self._commit = info.sha
        self._files = {sibling.rfilename: sibling for sibling in info.siblings or []}
        self.origin = ModelSource("hub", repo, self._commit)
        self.fingerprint = f"hub:{repo}@{self._commit}"
        self.base_model = _base_model(info, repo)
        self.read_bytes = 0  # of parts of files so far
        self._cached: dict[str, Path | None] = {}

    @property
    def repo(self) -> str:
        return self._repo

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def read_file(self, name: str) -> bytes:
        if name not in self._files:
            raise CheckpointError(f"{self._repo} has no {name}: not a Hugging Face checkpoint")
        file = self._remote_file(name)
        if file.num_bytes > most_bytes(name):
            raise CheckpointError(f"{self._repo}: {name} is {file.num_bytes} bytes long, more than {most_bytes(name)}")
        with self._named_errors():
            return fetch_bytes(self._remote(file))

    def num_bytes(self, name: str) -> int:
        return self._remote_file(name).num_bytes

    def sha256(self, name: str) -> str:
        """Of a file's content, as the Hub tells it; "" for a small file outside LFS."""
        return self._remote_file(name).sha256

    def missing_bytes(self, name: str, folder: Path) -> int:
        """How much of a file `fetch` has to download into the folder."""
        return self.num_bytes(name) - held_bytes(self._remote_file(name), folder)

    def reader(self, name: str) -> Callable[[int, int], bytes]:
        """Returns a function that reads so many bytes from an offset. It raises HubError."""
        remote = self._remote(self._remote_file(name))

        def read(offset: int, num_bytes: int) -> bytes:
            data = bytearray()
            with self._named_errors():
                remote.read(offset, offset + num_bytes, data.extend)
            self.read_bytes += len(data)
            return bytes(data)

        return read

    def header(self, shard: str) -> Header:
        """Reads the header of a safetensors file alone, by range."""
        num_bytes, where = self.num_bytes(shard), f"{self._repo}: {shard}"
        read = self.reader(shard)
        head = read(0, min(HEAD_BYTES, num_bytes))
        length = header_length(head[:8], num_bytes, where)
        if 8 + length > len(head):
            head += read(len(head), 8 + length - len(head))
        return parse_header(head[8 : 8 + length], num_bytes, where)

    def fetch(self, name: str, folder: Path) -> Path:
        """Downloads a file into the folder, going on where that stopped, and checks it."""
        with self._named_errors():
            return download(self._remote(self._remote_file(name)), folder, self._progress)

    def _repo_info(self, api: HfApi) -> RepoInfo:
        def ask() -> RepoInfo:
            try:
                info = api.model_info(
                    self._repo, revision=self.requested or None, files_metadata=True, timeout=_METADATA_TIMEOUT_S
                )
                if not all(map(_is_sound, info.siblings or [])):
                    raise ValueError("files without names or sizes")
                return info
            except HFValidationError:
                raise
            except MALFORMED as error:
                raise HubError(
                    f"{self._endpoint} answers for {self._repo} as no Hub does; check HF_ENDPOINT, and whether a login "
                    "page of your network stands between"
                ) from error

        with self._named_errors():
            return _patiently(ask, self._patience)

    def _remote_file(self, name: str) -> RemoteFile:
        sibling = self._files[name]
        sha256 = _sha256_of(sibling)
        if sibling.size is None or not (sha256 or sibling.blob_id):
            raise HubError(f"{self._endpoint} tells no size and checksum of {name}; check HF_ENDPOINT")
        url = hf_hub_url(self._repo, name, revision=self._commit, endpoint=self._endpoint)
        return RemoteFile(name.rpartition("/")[2], url, sibling.size, sha256, sibling.blob_id or "", self._commit)

    def _remote(self, file: RemoteFile) -> Remote:
        return Remote(file, self._auth, self._patience)

    def in_cache(self, shard: str) -> Path | None:
        """Tells whether the Hub's cache holds this very file. Asked once, as the answer takes a read of all of it."""
        if shard not in self._cached:
            found = try_to_load_from_cache(self._repo, shard, revision=self._commit)
            path = Path(found) if isinstance(found, str) else None
            if path:
                self._progress.stage(f"checking {shard} in the Hub's cache")
                with errors_named(path, CheckpointError):
                    if not matches(path, self._remote_file(shard)):
                        self._progress.note(f"{path} is damaged; downloading {shard} instead")
                        path = None
            self._cached[shard] = path
        return self._cached[shard]

    def _named_errors(self) -> AbstractContextManager[None]:
        return hub_errors_named(self._repo, self.requested, self._endpoint)


class HubSource:
    """A repository that is a checkpoint."""

    def __init__(self, repository: HubRepository) -> None:
        """Raises CheckpointError where it is none."""
        self._repository = repository
        self.origin, self.fingerprint, self.requested = repository.origin, repository.fingerprint, repository.requested
        self.shards = find_shards(repository.names, repository.read_file, repository.repo, repository.base_model)
        self.told: tuple[str, ...] = ()
        self._headers: Mapping[str, Header] | None = None

    def kept_files(self) -> list[str]:
        return sorted(name for name in self._repository.names if is_kept(name))

    def read_file(self, name: str) -> bytes:
        return self._repository.read_file(name)

    def chat_code(self) -> str:
        return chat_code(self._repository.names, self._repository.read_file)

    def shard_bytes(self, shard: str) -> int:
        return self._repository.num_bytes(shard)

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0 if self._repository.in_cache(shard) else self._repository.missing_bytes(shard, folder)

    def copied_bytes(self, shard: str, folder: Path) -> int:
        return 0

    def headers(self) -> Mapping[str, Header]:
        """Reads the headers alone, by range, so that faults of form are found before gigabytes are fetched."""
        if self._headers is None:  # a commit does not change
            self._headers = self._read_headers()
        return self._headers

    def _read_headers(self) -> Mapping[str, Header]:
        cached = {shard: path for shard in self.shards.files if (path := self._repository.in_cache(shard))}
        found = {}
        for shard, path in cached.items():
            with errors_named(path, CheckpointError):
                found[shard] = read_header(path)
        rest = [shard for shard in self.shards.files if shard not in cached]
        with ThreadPoolExecutor(_HEADER_THREADS) as pool:
            return found | dict(zip(rest, pool.map(self._repository.header, rest), strict=True))

    def open_shard(self, shard: str, folder: Path) -> Path:
        # The cache is another program's: read in place, left alone.
        return self._repository.in_cache(shard) or self._repository.fetch(shard, folder)

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        with errors_named(folder):
            if not keep:
                (folder / shard).unlink(missing_ok=True)

    def check_unchanged(self) -> None:
        """Does nothing, as a commit does not change."""


class _CachedSource(FolderSource):
    """The part of a repository that the Hub's cache holds, for work without a network."""

    def __init__(self, repo: str, revision: str, progress: PullProgress) -> None:
        config = try_to_load_from_cache(repo, "config.json", revision=revision or None)
        snapshot = Path(config).parent if isinstance(config, str) else _unnamed_snapshot(repo, revision)
        if not isinstance(config, str):
            progress.note(
                f"the Hub's cache does not tell which commit of {repo} is meant; taking the only one, {snapshot.name}"
            )
        super().__init__(snapshot, ModelSource("hub", repo, snapshot.name), f"hub:{repo}@{snapshot.name}")
        self.requested = revision


def _unnamed_snapshot(repo: str, revision: str) -> Path:
    """The only snapshot of the cache that may be of the revision, whose name no file there tells.

    Raises HubError where there is none, or more than one.
    """
    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    found = sorted(path.parent for path in folder.glob("*/config.json") if path.parent.name.startswith(revision))
    if not found or (revision and not is_commit(revision)):
        raise offline_error(repo)
    if len(found) > 1:
        commits = " or ".join(f"{repo}@{path.name[:12]}" for path in found[:4])
        raise HubError(f"the Hub's cache does not tell which commit of {repo} is meant; write {commits}")
    return found[0]


def _is_sound(sibling: RepoSibling) -> bool:
    """Whether what a Hub says of a file has the types that it has; the library takes any."""
    size, sums = sibling.size, (sibling.blob_id, _sha256_of(sibling))
    named = isinstance(sibling.rfilename, str) and all(each is None or isinstance(each, str) for each in sums)
    return named and (size is None or (type(size) is int and size >= 0))


def _sha256_of(sibling: RepoSibling) -> str:
    return sibling.lfs.sha256 if sibling.lfs else ""


def _base_model(info: RepoInfo, repo: str) -> str:
    """Returns the repository that the model card names as the original, if the name may be printed."""
    named = (info.card_data.base_model if info.card_data else None) or []
    for base in [named] if isinstance(named, str) else named:
        if isinstance(base, str) and _REPO.fullmatch(base) and base != repo:
            return base
    return ""


def _patiently(ask: Callable[[], _T], patience: Patience) -> _T:
    """Repeats a request that failed for a reason that may pass."""
    for failures in range(MAX_RETRIES):
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code not in (408, 429, 500, 502, 503, 504):
                raise
        except transport_error():
            if failures >= 2:  # a wrong address does not get better; a first lost connection may
                raise
        patience.sleep(2.0**failures)
    return ask()
