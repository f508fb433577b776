"""A reference means the same to every verb, to every route and to programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import moeinf
from moeinf.engine.reporting import Reporting
from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.pull.pull import pull
from moeinf.references.meaning import stored
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming import catalogue
from tests.support.cli.commands import Done
from tests.support.hub_server import REPO, Hub
from tests.support.known_models import FILES, keep_rates, published, write_forms
from tests.support.live_server import live_server
from tests.support.owners import lm_studio_file, ollama_store

Command = Callable[..., Done]
HELD = {"mine:latest", "two:a", "two:b"}


class Expected(NamedTuple):
    """What a reference means: kind and place of the source, its GGUF file, and the format that was asked for."""

    kind: str
    place: str
    file: str = ""
    format: str = "keep"
    is_stored: bool = False  # before anything is pulled
    in_place: bool = False  # of this disk, so that an index of it is made by whoever needs it
    here: bool = False  # named by its path, which clients of a server may not


MEANT = {
    "mine": Expected("embedded", "demo", is_stored=True),
    "MINE:latest": Expected("embedded", "demo", is_stored=True),
    "demo:q8_0": Expected("embedded", "demo", format="q8_0"),
    "another:5m": Expected("file", "Story-Q4_K_M.gguf", in_place=True),
    "ollama:another:5m": Expected("file", "Story-Q4_K_M.gguf", in_place=True),
    "lmstudio:other/Tale-GGUF": Expected("file", "Story-Q8_0.gguf", in_place=True),
    "other/Tale-GGUF:q8_0": Expected("file", "Story-Q8_0.gguf", in_place=True),
    "file": Expected("file", "Story-IQ4_XS.gguf", in_place=True, here=True),
    "folder": Expected("folder", "checkpoint", here=True),
    "story": Expected("hub", FILES, "Story-Q8_0.gguf"),
    "registry.ollama.ai/library/Story:latest": Expected("hub", FILES, "Story-Q8_0.gguf"),
    "story:Q4_K_M": Expected("hub", FILES, "Story-Q4_K_M.gguf"),
    "story:5m-bf16": Expected("hub", REPO),
    "ours": Expected("hub", REPO),
    "ours:q8_0": Expected("hub", REPO, format="q8_0"),
    REPO: Expected("hub", REPO),
    f"{REPO}:q8_0": Expected("hub", REPO, format="q8_0"),
    f"hf.co/{FILES}:Q4_K_M": Expected("hub", FILES, "Story-Q4_K_M.gguf"),
}
UNKNOWN = {
    "stroy": "model 'stroy' not found; did you mean story",
    "mime": "model 'mime' not found; did you mean mine",
    "two": "model 'two' not found; did you mean two:a or two:b?",
    "ollama:gone": "ollama has no model 'gone' here; it has ollama:another:5m",
    "story:q5_K_M": "story:5m has no form 'q5_k_m'; its tags are",
    "x" * 5000: "is too long for a model",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model, one of two tags, and a name of the user's."""
    home = tmp_path_factory.mktemp("filled")
    pull("demo", home=home)
    for name in ("mine", "two:a", "two:b"):
        Library(home).copy("demo", name)
    Library(home).remove("demo")
    (home / "aliases.json").write_text(json.dumps({"ours": REPO}))
    return home


@pytest.fixture
def world(filled: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    user = tmp_path / "user"
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("MOEINF_FOREIGN", "1")
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    ollama_store(user, "another:5m", files / "Story-Q4_K_M.gguf")
    lm_studio_file(user, "other/Tale-GGUF", files / "Story-Q8_0.gguf")
    shutil.copytree(catalogue.DATA / "demo", tmp_path / "checkpoint")
    monkeypatch.setattr("moeinf.bench.divergence.compare.compare", compared)
    with published(files, tmp_path, monkeypatch) as hub:
        yield World(filled, files, tmp_path, hub, monkeypatch)


def compared(first: StoredModel, others: list[StoredModel], *given: Any) -> None:
    """In place of hours of computing: the models are found by then."""
    raise UsageError(f"compared {1 + len(others)} models")


class World:
    """Homes that are alike, one for each verb, so that none finds what another has stored."""

    def __init__(self, filled: Path, files: Path, folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        self.filled, self.folder, self.hub, self._patch = filled, folder, hub, monkeypatch
        self._paths = {"file": files / "Story-IQ4_XS.gguf", "folder": folder / "checkpoint"}

    def written(self, reference: str) -> str:
        return str(self._paths.get(reference, reference))

    def home(self, verb: str) -> Library:
        home = Path(shutil.copytree(self.filled, self.folder / f"home-{verb.strip('/').replace('/', '-')}"))
        keep_rates(home, self._patch)
        self._patch.setenv("MOEINF_HOME", str(home))
        return Library(home)


def made(library: Library, wanted: Expected) -> StoredModel:
    """What the verb has stored, or the model that was stored before."""
    names = {model.name for model in library.list()} - HELD
    assert len(names) == (not wanted.is_stored), names
    return library.find(names.pop() if names else "mine")


def meant(library: Library, wanted: Expected, files: Path) -> Expected:
    manifest = made(library, wanted).manifest
    source = manifest.source
    place = source.location
    if source.kind == "folder":
        place = Path(place).name
    elif source.kind == "file" and Path(place).read_bytes() == (files / wanted.place).read_bytes():
        place = wanted.place  # ollama's files have their hashes as names
    return Expected(source.kind, place, source.file, manifest.formats.asked.tag, *wanted[4:])


@pytest.mark.parametrize("reference", MEANT)
def test_verbs_and_routes_agree(reference: str, world: World, files: Path, command: Command) -> None:
    wanted, written = MEANT[reference], world.written(reference)
    notes = dict[str, str]()
    for verb, more in (("run", ("Once", "-n", "1")), ("pull", ())):
        library = world.home(verb)
        done = command(verb, written, *more)
        assert done.code == 0 and meant(library, wanted, files) == wanted, (verb, done)
        notes[verb] = done.err
        size = made(library, wanted).size_bytes
    library, told = world.home("load"), list[str]()
    moeinf.load(written, reporting=Reporting(notify=told.append)).close()
    assert meant(library, wanted, files) == wanted
    notes["load"] = "\n".join(told)
    for said in ("which stay as they are", "taking q8_0"):
        assert len({said in note for note in notes.values()}) == 1, (said, notes)

    library = world.home("fit")
    fit, plan = json.loads(command("fit", written, "--json").out), command("run", written, "--plan")
    form = next((each for each in fit.get("forms", []) if each["tag"] == fit["taken"]), fit)
    assert form["store_bytes"] == pytest.approx(size, rel=0.06) and plan.code == 0, (fit, size, plan)
    assert len(library.list()) == 3, "nothing is stored by a look"
    library = world.home("server")
    with live_server(library) as server:
        forms = httpx.get(f"{server.url}/api/available/{written}", timeout=120).json()
        about = httpx.post(f"{server.url}/api/show", json={"model": written}, timeout=120)
        pulled = httpx.post(f"{server.url}/api/pull", json={"model": written, "stream": False}, timeout=120)
    assert bool(forms["forms"]) == ("forms" in fit) and (about.status_code == 200) == wanted.is_stored, about.text
    if wanted.here:
        assert pulled.status_code == 400 and "can be pulled with `moeinf pull` only" in pulled.json()["error"]
    else:
        assert pulled.status_code == 200 and meant(library, wanted, files) == wanted, pulled.text

    world.home("show")
    shown = command("show", written)
    assert (shown.code == 0) == (wanted.is_stored or wanted.in_place), shown
    if shown.code and not wanted.here:
        error = f"model '{written}' not found; `moeinf pull {written}` fetches it"
        assert about.json()["error"] == f"model '{written}' not found" and error in shown.err
    library = world.home("compare")
    assert "compared 2 models" in command("compare", "mine", written).err and meant(library, wanted, files) == wanted


@pytest.mark.parametrize("reference", UNKNOWN)
def test_what_means_nothing_is_told_alike(reference: str, world: World, command: Command) -> None:
    said, library = UNKNOWN[reference], world.home("unknown")
    lines = set()
    for words in (
        ("run", reference, "x"),
        ("run", reference, "--plan"),
        ("pull", reference),
        ("pull", reference, "--dry-run"),
        ("fit", reference),
        ("compare", "mine", reference),
        *([("show", reference), ("verify", reference)] if ":q5" not in reference else []),
    ):
        done = command(*words)
        assert done.code == 1, done
        lines.add(done.err.removeprefix("Error: ").strip())
    with live_server(library) as server:
        pulled = httpx.post(f"{server.url}/api/pull", json={"model": reference, "stream": False}, timeout=120)
        about = httpx.post(f"{server.url}/api/show", json={"model": reference}, timeout=120)
    assert pulled.status_code in (400, 404) and about.status_code == 404
    lines.add(pulled.json()["error"])
    with pytest.raises(ModelNotFoundError) as raised:
        moeinf.load(reference)
    lines.add(str(raised.value))
    assert len(lines) == 1 and said in lines.pop()


def test_clients_are_told_what_would_fetch_a_model_and_nothing_of_files(world: World) -> None:
    library = world.home("clients")
    with pytest.raises(ModelNotFoundError, match=r"`moeinf pull another:5m` takes the 3\.\d MB that ollama has of it"):
        stored("another:5m", library)
    answers = set()
    for path in (world.written("file"), world.written("folder"), "/nothing"):
        with pytest.raises(ModelNotFoundError) as raised:
            stored(path, library)
        answers.add(str(raised.value).replace(path, "PATH"))
    assert len(answers) == 1


def test_a_path_goes_before_names(world: World, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    library = world.home("path")
    shutil.copytree(world.folder / "checkpoint", world.folder / "story")
    monkeypatch.chdir(world.folder)
    assert command("pull", "story").code == 0 and library.list()[0].manifest.source.kind == "folder"
    assert not world.hub.seen


def test_a_form_is_pulled_again_under_a_name_of_its_own(world: World, command: Command) -> None:
    world.home("again")
    assert command("pull", "story:q4_K_M", "--name", "short").code == 0
    done = command("pull", "story:q4_K_M", "--name", "short")
    assert done.code == 0, done


def test_the_users_own_names_go_first(world: World, command: Command) -> None:
    library = world.home("own")
    (library.home / "aliases.json").write_text(json.dumps({"another:5m": REPO}))
    assert command("pull", "another:5m").code == 0
    assert library.list()[0].manifest.source.location == REPO
