"""Asks the Hub in which forms a known model is published. Headers alone are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from moeinf.config.pull_options import PullOptions
from moeinf.errors import HubError, ModelNotFoundError, MoeinfError, UnreachableError
from moeinf.pull.checkpoint.checkpoint_pull import CheckpointPull
from moeinf.pull.events import PullProgress, SilentProgress
from moeinf.pull.forms.form import Form, Found, bits_class, preference, quantisation_of
from moeinf.pull.gguf.remote_gguf import HubFilePull
from moeinf.pull.hub.remote import Patience
from moeinf.pull.hub.repository import HubRepository, HubSource
from moeinf.pull.origins import Origin
from moeinf.pull.task import PullTask
from moeinf.store.library import Library
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.catalogue import KnownModel
from moeinf.store.naming.gguf_models import model_files
from moeinf.store.naming.names import asked_revision, default_name, full_name
from moeinf.store.quantisation import CHOICES, chosen

_THREADS: Final = 4  # headers of GGUF files are some megabytes each, most of them the vocabulary
_TELLING_BYTES: Final = 4 << 20  # of headers: fewer say how long requests take, and not how fast bytes come
_MADE: Final = ("q8_0", "q4_k")  # what is offered to be made of a checkpoint, where no file of these bits is published
_TRIES: Final = 4  # files of as many bits that are looked into, where some cannot be used
_MOST_BITS: Final = 8  # of a file that is offered: in 16 there is the checkpoint
_AS_PUBLISHED: Final = ("bf16", "fp16", "f16")  # what ollama's users write for the checkpoint itself


def published_forms(
    model: KnownModel, name: str, options: PullOptions, library: Library, progress: PullProgress | None = None
) -> Found:
    """All forms that are worth a choice: the checkpoints as they are, and one file for each number of bits.

    name: that the chosen one is stored under. options: of the pull that follows. Raises HubError where nothing of it
    can be had, with the reasons.
    """
    look = _Look(model, options, library, progress or SilentProgress())
    files = look.files()
    by_bits: dict[int, list[tuple[HubRepository, str, str]]] = {}
    for given in sorted(files, key=lambda each: preference(each[1])):  # of equal ones that of the first repository
        if bits_class(given[1]) <= _MOST_BITS:
            by_bits.setdefault(bits_class(given[1]), []).append(given)
    made = [quant for quant in _MADE if bits_class(quant) not in by_bits]
    tasks = [partial(look.of_first_file, given[:_TRIES], name) for given in by_bits.values()]
    tasks += [partial(look.of_checkpoint, source, name) for source in model.quantised]
    tasks.append(partial(look.of_checkpoint, model.checkpoint, name, made))
    started = time.monotonic()
    forms = look.all(tasks)
    elapsed, read = time.monotonic() - started, sum(each.read_bytes for each in look.repositories)
    notes = told_once(look.notes)
    if not forms:
        raise look.error(f"nothing of {name} can be fetched: {'; '.join(notes) or 'no file of it is published'}")
    ranked = tuple(sorted(forms, key=lambda form: form.rank, reverse=True))
    return Found(ranked, notes, read / elapsed if read >= _TELLING_BYTES else 0.0)


def form_of_tag(
    model: KnownModel, tag: str, options: PullOptions, library: Library, progress: PullProgress | None = None
) -> Form:
    """The form that a tag names: a published GGUF file, else a format that a checkpoint is stored in.

    Raises ModelNotFoundError, which names the tags that there are; HubError where the Hub is out of reach.
    """
    look = _Look(model, options, library, progress or SilentProgress())
    name, files = options.name or model.form_name(tag), look.files()
    for repository, known, file in files:
        if tag in (known, file.rpartition("/")[2].lower()):
            return look.of_file(repository, known, file, name)[0]
    for source in model.quantised:
        if _ending(source.location, model.checkpoint.location) == tag:
            return look.of_checkpoint(source, name)[0]
    if tag in CHOICES or tag in _AS_PUBLISHED:
        return look.of_checkpoint(model.checkpoint, name, () if tag in _AS_PUBLISHED else (tag,))[-1]
    if look.notes and not files:  # then nobody knows
        raise look.error("; ".join(told_once(look.notes)))
    there = sorted({known for _, known, _ in files} | {*_MADE, "bf16"})
    notes = f" ({'; '.join(told_once(look.notes))})" if look.notes else ""
    raise ModelNotFoundError(f"{model.name} has no form {tag!r:.50}; its tags are {', '.join(there)}{notes}")


def told_once(notes: Sequence[str]) -> tuple[str, ...]:
    """What begins with the name of a repository, and is the same of several, in one line."""
    named: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        name, _, rest = note.partition(" ")
        named.setdefault(rest, []).append(name)
    together = ((f"each of {', '.join(names)}" if names[1:] else names[0], rest) for rest, names in named.items())
    return tuple(f"{who} {rest}".rstrip() for who, rest in together)


@dataclass(slots=True)
class _Look:
    """Opens each repository once."""

    model: KnownModel
    options: PullOptions
    library: Library
    progress: PullProgress
    notes: list[str] = field(default_factory=list)
    repositories: list[HubRepository] = field(default_factory=list)
    error: type[HubError] = HubError  # what is raised where nothing is found

    def files(self) -> list[tuple[HubRepository, str, str]]:
        """The GGUF models of all repositories, the best repository first: tag and first file of each."""
        found = []
        for source in self.model.gguf:
            try:
                repository = self._open(source)
            except MoeinfError as error:
                self._note(error)
                continue
            models = model_files(repository.names)
            found += [(repository, tag, file) for stem, file in models.items() if (tag := quantisation_of(stem))]
        return found

    def of_first_file(self, given: Sequence[tuple[HubRepository, str, str]], name: str) -> list[Form]:
        """The first of these files that moeinf can run."""
        for repository, tag, file in given:
            if found := self._noted(partial(self.of_file, repository, tag, file, name)):
                return [*found]
        return []

    def of_file(self, repository: HubRepository, tag: str, file: str, name: str) -> list[Form]:
        source = replace(repository.origin, revision=repository.requested, file=file)
        options = replace(self.options, name=full_name(name))
        headers = HubFilePull(self._task(source, options), repository).headers()
        size = headers.store_bytes
        return [Form(tag, _origin(source), options, repository.repo, size, size, headers)]

    def of_checkpoint(self, asked: ModelSource, name: str, quants: Sequence[str] = ()) -> list[Form]:
        """As it is published, then in each of these formats."""
        repository = self._open(asked)
        source = HubSource(repository)
        download = sum(map(source.shard_bytes, source.shards.files))
        largest = max(map(source.shard_bytes, source.shards.files))
        forms = []
        for quant in ("keep", *quants):
            options = replace(self.options, name=full_name(name), quant=None if quant == "keep" else quant)
            headers = CheckpointPull(self._task(repository.origin, options), source).headers()
            tag = quant if quant != "keep" else _ending(asked.location, self.model.checkpoint.location)
            tag = tag or headers.manifest.info.dtype
            needed = headers.store_bytes + largest
            forms.append(Form(tag, _origin(asked), options, repository.repo, download, needed, headers))
        return forms

    def all(self, tasks: Sequence[Callable[[], Sequence[Form]]]) -> list[Form]:
        """What the tasks find; those that find nothing usable leave a note."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return [form for found in pool.map(self._noted, tasks) for form in found]

    def _noted(self, task: Callable[[], Sequence[Form]]) -> Sequence[Form]:
        try:
            return task()
        except MoeinfError as error:
            self._note(error)
            return ()

    def _note(self, error: MoeinfError) -> None:
        self.notes.append(str(error))
        if isinstance(error, UnreachableError):
            self.error = UnreachableError

    def _open(self, source: ModelSource) -> HubRepository:
        repository = HubRepository(source.location, source.revision, self.options.token, self.progress, Patience())
        self.repositories.append(repository)
        return repository

    def _task(self, source: ModelSource, options: PullOptions) -> PullTask:
        wanted, name = chosen(options.quant), options.name or ""
        return PullTask(Origin(source, name), name, wanted, options, self.library, self.progress)


def _origin(source: ModelSource) -> Origin:
    """Of a file or a checkpoint, at the revision that the catalogue has."""
    asked = replace(source, revision=asked_revision(source.revision))
    return Origin(asked, default_name(asked))


def _ending(location: str, plain: str) -> str:
    """What tells a quantised checkpoint from the plain one of its maker: "fp8", "gptq-int4"."""
    word, before = location.rpartition("/")[2].lower(), plain.rpartition("/")[2].lower()
    return word.removeprefix(before).strip("-_.") if word.startswith(before) else ""
