"""What a user does with a store, each in a folder of its own: what is there before, the command, and what it leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moeinf.config.pull_options import PullOptions
from moeinf.errors import UsageError
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import Library
from moeinf.store.verify import verify
from moeinf.traces.folder import read_facts, request_files
from moeinf.traces.trace import dumps, load_trace, read_trace
from tests.support.campaign.learned import check_learned
from tests.support.checkpoints import content, write_checkpoint
from tests.support.faults.forks import Case, Forks, Outcome
from tests.support.hub_server import REPO, serving

State = dict[str, Any]
PROMPT: Final = "The king said"
LONG_PROMPT: Final = "Once upon a time there was a dog. The dog and the ball went to the house. " * 5
_RUN: Final = ("run", "demo", "--expert-cache", "33%", "--seed", "7", "-n", "6", "-q")
_LEARNED: Final = ("receipt.json", "eamc.npz", "hits.json", "compared.json")  # a time, figures of this machine
_ASKED: Final = [
    {"custom_id": f"r{number}", "prompt": f"{PROMPT} {number}", "max_tokens": 3, "temperature": 0}
    for number in range(4)
]


@dataclass(frozen=True)
class Scene:
    """A command over a copy of a template. Words may name files of the folder that holds the store, which is `home`.

    repeated: whether the command, given again after it has ended well, ends well once more; else it may say in a line
    that there is nothing to do. keeps: whether what the store held before has to be there whatever happens.
    """

    words: Sequence[str]
    template: str = "demo"
    changes: bool = True  # the store, or a file beside it
    repeated: bool = True
    keeps: bool = True
    extra: Callable[[Path, Outcome], Any] = field(default=lambda folder, outcome: None)

    def case(self, folder: Path, strike: Sequence[int] = (), *, quick: bool = False) -> Case:
        return Case(self.words, str(folder / "home"), strike=strike, quick=quick)


def _said(folder: Path, outcome: Outcome) -> str:
    return outcome.out


def _answers(folder: Path, outcome: Outcome) -> list[Any]:
    """Of a batch: each request has one answer, and no line is torn."""
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return sorted([line["custom_id"], line["response"]["body"]["choices"]] for line in lines)


def _traced(folder: Path, outcome: Outcome) -> Any:
    """What was said, and the routing of each request: one that was killed behind its end is recorded once more."""
    routing = {dumps(read_trace(path)) for path in request_files(folder / "traces")}
    return outcome.out, read_facts(folder / "traces"), [hash(each) for each in routing]


def _whole_traces(folder: Path) -> None:
    """Whatever was recorded can be read: a request has its name once it is whole."""
    if (folder / "traces").exists() and request_files(folder / "traces"):
        try:
            load_trace(folder / "traces")
        except UsageError as error:
            raise AssertionError(f"a recorded trace cannot be read: {error}") from error


SCENES: Final[dict[str, Scene]] = {
    "pull a folder": Scene(("pull", "checkpoint", "--name", "m", "-q"), "checkpoint"),
    "pull a folder as q8_0": Scene(("pull", "checkpoint", "--name", "m", "--quant", "q8_0", "-q"), "checkpoint"),
    "pull from the Hub": Scene(("pull", REPO, "--name", "m", "-q"), "checkpoint"),
    "pull a newer state": Scene(("pull", "checkpoint", "--name", "m", "-q"), "older", keeps=False),
    "cp": Scene(("cp", "demo", "b")),
    "create": Scene(("create", "c", "-f", "Modelfile", "-q")),
    "rm of one name of two": Scene(("rm", "b"), "two names", repeated=False, keeps=False),
    "rm of a model": Scene(("rm", "m"), "two models", repeated=False, keeps=False),
    "prune": Scene(("prune",), "littered"),
    "spread": Scene(("spread", "demo", "--also", "second", "-q"), extra=lambda folder, _: _listing(folder / "second")),
    "run --batch": Scene(("run", "demo", "--batch", "asked.jsonl", "--out", "answers.jsonl", "-q"), extra=_answers),
    "run with eamc": Scene((*_RUN, "--predictor", "eamc", "--policy", "paper", PROMPT), extra=_said),
    "run with a trace": Scene((*_RUN, "--trace", "traces", PROMPT), extra=_traced),
    "run with prefixes": Scene((*_RUN, "--prefix-disk", "50MB", LONG_PROMPT), extra=_said),
    "run": Scene((*_RUN, PROMPT), changes=False, extra=_said),
    "run with the pure reader": Scene((*_RUN, "--reader", "pure", PROMPT), changes=False, extra=_said),
    "verify": Scene(("verify", "demo"), changes=False, extra=_said),
    "show": Scene(("show", "demo"), changes=False, extra=_said),
    "serve": Scene(
        ("serve", "--host", "127.0.0.1:0", "--expert-cache", "33%"),
        changes=False,
        extra=lambda folder, outcome: json.loads(outcome.answer or "{}").get("response"),
    ),
}


def _listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


class Stage:
    """A folder in which scenes are played, with one process that runs their commands."""

    def __init__(self, folder: Path, forks: Forks, place: Path, *, quick: bool = False) -> None:
        """place: where scenes are played. quick: as of Case."""
        self._forks, self._templates, self._place, self._quick = forks, folder / "templates", place, quick

    def set_up(self, scene: Scene) -> Path:
        """A fresh copy of what the scene begins with; it lies where the last one lay."""
        template = self._templates / scene.template
        if self._place.exists():
            shutil.rmtree(self._place)
        if not template.exists():  # written where it is used, as the store notes where a source lies
            self._place.mkdir(parents=True)
            self._write(scene.template, self._place)
            shutil.copytree(self._place, template)
        else:
            shutil.copytree(template, self._place)
        return self._place

    def run(self, scene: Scene, strike: Sequence[int] = ()) -> Outcome:
        return self._forks.run(scene.case(self._place, strike, quick=self._quick))

    def whole(self, scene: Scene) -> State:
        """What the scene leaves where nothing happens to it."""
        self.set_up(scene)
        return self.state(scene, self.run(scene))

    def state(self, scene: Scene, outcome: Outcome) -> State:
        """All that can be told of the store after a command that ended well; raises AssertionError for damage."""
        home, extra = self._place / "home", None
        wrong = f"code {outcome.code}: {outcome.err.strip()[-300:]}"
        assert outcome.code == 0 and not outcome.hung, wrong
        if scene.words[0] == "serve":
            assert outcome.status == 200, f"{outcome.status}: {outcome.answer[:300]}"
        extra = scene.extra(self._place, outcome)
        models = self.check(home)
        assert not Library(home).partials() or scene.template == "littered", "an interrupted pull is left"
        Library(home).prune()
        files = [name for name in _listing(home) if name.rpartition("/")[2] not in _LEARNED]
        return {"models": models, "files": [name for name in files if _lasts(name)], "extra": extra}

    def check(self, home: Path) -> State:
        """What each name holds; raises AssertionError for one that cannot be read, and a model that is not sound."""
        library = Library(home)
        assert library.faults() == [], library.faults()
        held, contents = dict[str, Any](), dict[Path, dict[str, str]]()
        for model in library.list():
            if model.path not in contents:  # which several names may have
                found = verify(model)
                assert found == [], f"{model.name} is damaged: {found[:2]}"
                named = {name: sha256 for name, sha256 in content(model.path).items() if not name.startswith(".")}
                check_learned(model)
                contents[model.path] = named
            held[model.name] = [contents[model.path], model.preset_text]
        _whole_traces(home.parent)
        return held

    def before(self, scene: Scene) -> State:
        self.set_up(scene)
        return self.check(self._place / "home")

    def _write(self, name: str, folder: Path) -> None:
        home = folder / "home"
        if name in ("demo", "two names", "two models", "littered"):
            ensure("demo", home=home)
        if name == "two names":
            Library(home).copy("demo", "b")
        if name in ("two models", "checkpoint", "older", "littered"):
            write_checkpoint(folder / "checkpoint")
        if name in ("two models", "older", "littered"):
            pull(str(folder / "checkpoint"), PullOptions(name="m"), home=home)
        if name == "older":
            config = folder / "checkpoint" / "config.json"
            config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 20000.0'))
        if name == "littered":
            (home / "names" / "m" / "latest").unlink()  # nothing holds the model any more
            begun = home / "partial" / "0123456789abcdef"
            begun.mkdir(parents=True)
            (begun / "model.safetensors.part").write_bytes(bytes(1 << 20))
        if name == "demo":
            (folder / "Modelfile").write_text('FROM demo\nSYSTEM """Be\nbrief."""\nPARAMETER temperature 0.5\n')
            (folder / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _ASKED))
            (folder / "second").mkdir()


def _lasts(name: str) -> bool:
    """Whether a file of the store is there for good; kept prompts, what was measured, and locks come and go."""
    return name.split("/")[0] in ("names", "models", "partial")


@contextmanager
def stage(folder: Path, library: Path, place: Path | None = None, *, quick: bool = False) -> Iterator[Stage]:
    """A stage whose commands have this library preloaded, and a Hub of their own with one model.

    place: where scenes are played, if not in the folder. quick: as of Case.
    """
    write_checkpoint(folder / "hub")
    with serving(folder / "hub") as hub:
        environment = {"LD_PRELOAD": str(library), "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf")}
        environment |= {"HF_HUB_DISABLE_XET": "1", "MOEINF_FOREIGN": "0", "PYTHONFAULTHANDLER": "1"}
        forks = Forks(environment)
        try:
            yield Stage(folder, forks, place or folder / "place", quick=quick)
        finally:
            forks.close()
