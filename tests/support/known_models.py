"""Models that are known by name for a test: the demo model under a name of its own, in several published forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from moeinf.engine.speed.rates import Reading
from moeinf.engine.speed.rates_file import save
from moeinf.forecast import known
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from moeinf.store.naming import catalogue
from tests.support.gguf_files import tokenizer_fields, write_gguf
from tests.support.hub_server import REPO, Hub, point_client_at, serving
from tests.support.live_server import live_server
from tests.support.rates import rates_of_this_machine

FILES, PLAIN = "maker/Story-GGUF", "maker/Plain"
NAME = "story:5m"


def write_forms(folder: Path) -> Path:
    """GGUF files of the demo model in two quantisations, in a folder of their own."""
    folder.mkdir(exist_ok=True)
    demo = catalogue.DATA / "demo"
    config = json.loads((demo / "config.json").read_text())
    metadata: dict[str, Any] = tokenizer_fields(json.loads((demo / "tokenizer.json").read_text()), eos=0, bos=0)
    tensors = {name: tensor.float() for name, tensor in load_file(demo / "model.safetensors").items()}
    for tag, kind in (("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_0"), ("IQ4_XS", "Q4_0")):
        write_gguf(folder / f"Story-{tag}.gguf", config, tensors, kinds=lambda name, kind=kind: kind, metadata=metadata)  # type: ignore[misc]
    return folder


def keep_rates(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was measured before: whoever measures it again fails."""
    save(rates_of_this_machine(), home)
    monkeypatch.setattr(known, "measure", lambda *given: pytest.fail("measured"))
    monkeypatch.setattr(
        "moeinf.engine.speed.kept.measure_reading", lambda *given: dict.fromkeys(given[-1], Reading(2e9, 1e9))
    )


@contextmanager
def published(files: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that has the demo model as a checkpoint and in GGUF files, and a catalogue that knows it as NAME.

    files: as write_forms has made them. folder: for what the client keeps.
    """
    models = {
        "demo": {"embedded": "demo"},
        "plain:5m": {"checkpoint": PLAIN, "also": ["plain"], "dense": True},
        "mixtral:8x7b": {"checkpoint": "org/other", "like": "mixtral-8x7b"},
        NAME: {"checkpoint": REPO, "gguf": ["gone/Story-GGUF", FILES], "also": ["story", "story:5m-instruct"]},
    }
    (folder / "models.json").write_text(json.dumps(models))
    monkeypatch.setattr(catalogue, "MODELS", folder / "models.json")
    catalogue.catalogue.cache_clear()
    with serving(catalogue.DATA / "demo") as hub:
        hub.repos |= {FILES: ("f" * 40, files), PLAIN: ("e" * 40, catalogue.DATA / "demo")}
        point_client_at(hub.endpoint, folder, monkeypatch)
        yield hub
    catalogue.catalogue.cache_clear()


@contextmanager
def empty_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, HttpServer]]:
    """The Hub of `published`, and a server over a store that has no model yet, on a machine that was measured."""
    (folder / "home").mkdir()
    keep_rates(folder / "home", monkeypatch)
    forms = write_forms(folder / "files")
    with published(forms, folder, monkeypatch) as hub, live_server(Library(folder / "home")) as running:
        yield hub, running
