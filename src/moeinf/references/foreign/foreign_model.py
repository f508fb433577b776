"""A model that another program has on this disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moeinf.pull.forms.form import quantisation_of
from moeinf.pull.origins import Origin
from moeinf.references.foreign.go_templates import twin_of
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.catalogue import KnownModel, known_checkpoint, known_form, known_model, known_source
from moeinf.store.naming.gguf_models import model_files
from moeinf.store.naming.names import DEFAULT_TAG, default_name, name_from, outside_source, repository_source

Owner = Literal["ollama", "lmstudio", "llama.cpp", "hub"]  # as `OWNER:NAME` has them
_GGUF_REPO = re.compile(r"[-_.]gguf$", re.IGNORECASE)
_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """path: its first GGUF file, or the folder of a checkpoint. repo: of the Hub, where its owner tells it."""

    owner: Owner
    name: str  # as its owner calls it: "mixtral:8x7b", "org/repo:FILE.gguf"
    path: Path
    num_bytes: int
    repo: str = ""
    tower: Path | None = None  # of a model that sees
    system: str = ""  # the message that its owner would begin with
    params: Mapping[str, object] = field(default_factory=dict)  # options of ollama's
    template: str = ""  # of chats, in Go, beside the file
    fault: str = ""  # why it cannot be used

    @property
    def is_checkpoint(self) -> bool:
        return not self.fault and self.path.is_dir()

    @property
    def origin(self) -> Origin:
        """What a pull of it takes."""
        source = outside_source(str(self.path)) or ModelSource("file", str(self.path))
        twin = twin_of(self.template) if self.template else None
        return Origin(source, default_name(source), template=twin.jinja if twin else "")

    @property
    def tag(self) -> str:
        """The quantisation that its name tells: "q4_k_m"; "" where none does."""
        return quantisation_of(self._stem) or quantisation_of(self.name.removesuffix(".gguf").replace(":", "-"))

    @property
    def known(self) -> KnownModel | None:
        """The model of the catalogue that it is a form of."""
        if self.owner == "ollama":
            form = known_form(self.name)
            return form[0] if form else known_model(self.name)
        return known_source(self.repo) or next(filter(None, map(known_checkpoint, self._words)), None)

    @property
    def _stem(self) -> str:
        """The name of its file, without the number of its first part."""
        return _PART.sub("", self.path.stem)

    @property
    def _words(self) -> list[str]:
        """What it may be called without its quantisation: as quantisers name repositories, ORG_NAME-GGUF, and files."""
        file = re.sub(rf"[-_.]{re.escape(quantisation_of(self._stem))}$", "", self._stem, flags=re.IGNORECASE)
        names = [_GGUF_REPO.sub("", self.repo.rpartition("/")[2]), file]
        return [each for name in names for each in (name, name.partition("_")[2]) if each]

    @property
    def own_name(self) -> str:
        """The name that it gets in the store, where its files are told of."""
        if self.owner == "ollama":
            return self.name
        known, tag = self.known, self.tag or ("checkpoint" if self.is_checkpoint else "file")
        if known is not None:
            return known.form_name(tag)
        return name_from(_GGUF_REPO.sub("", self.repo) or self.path.stem) + f":{tag}"

    def is_meant(self, reference: str) -> bool:
        """Whether a name, org/repo[:TAG] or OWNER:NAME means it."""
        text = reference.lower().removesuffix(f":{DEFAULT_TAG}")
        if text.startswith(f"{self.owner}:"):
            text = text.removeprefix(f"{self.owner}:")
            return text in (self.name.lower().removesuffix(f":{DEFAULT_TAG}"), self.own_name.lower(), self.repo.lower())
        if text == self.own_name.lower().removesuffix(f":{DEFAULT_TAG}"):
            return True
        form, model = known_form(text), known_model(text)
        if form is not None:
            return form[0] is self.known and form[1] == self.tag
        if model is not None:
            return model is self.known
        source = repository_source(reference)  # of a checkpoint, that means what the Hub has today
        return source is not None and not self.is_checkpoint and self._is_of(source)

    def _is_of(self, source: ModelSource) -> bool:
        if source.revision or source.location.lower() != self.repo.lower():
            return False
        wanted = source.file.lower().removesuffix(".gguf")
        return wanted in ("", self.tag, self.path.stem.lower())


def first_files(folder: Path) -> list[tuple[Path, int]]:
    """The first file of each GGUF model right in a folder, and the bytes of all its parts."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    found = []
    for stem, first in model_files(sizes).items():
        parts = [size for name, size in sizes.items() if _is_part(name, stem)]
        found.append((folder / first, sum(parts)))
    return found


def _is_part(name: str, stem: str) -> bool:
    return re.fullmatch(re.escape(stem) + r"(-\d{5}-of-\d{5})?\.gguf", name.lower()) is not None
