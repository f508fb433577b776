"""Mutates what a pull, a listing and a run read, one file at a time: each ends well, or in one line of moeinf's own.

    python -m tests.fuzz.hostile_files [--seconds 600 | --cases 60] [--seed 1] [--case 17]

A case is a checkpoint that is pulled, or a store that is listed, pulled into, opened and removed from, with one file
mutated: as bytes, as JSON with values that no model has, or replaced by a link, a FIFO, a folder or nothing. It must
leave the store's other model at work, and take at most four times the bytes it was given, and a fixed allowance. An
address space with a limit and an alarm stand behind that. Cases are numbered; --case repeats one. Exits 1 at a fault.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import MoeinfError
from moeinf.models.family import family_of
from moeinf.pull import pull as install
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.store.library import Library
from moeinf.text.tokenizer import check_text_files
from tests.support.fuzzing import mutate_bytes, run_cases

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    "mlp_only_layers": [],
    "eos_token_id": 1,
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
}
SMALL = {
    "config.json": CONFIG,
    "tokenizer.json": TOKENIZER,
    "generation_config.json": {"top_k": 5, "do_sample": True},
    "tokenizer_config.json": {"add_bos_token": False, "chat_template": "{{ messages[0].content }}"},
}
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    7,
    2**31 - 1,
    2**31,
    2**63,
    10**9,
    10**400,
    0.5,
    1e300,
    -1e300,
    5e-324,
    math.inf,
    math.nan,
    "",
    "x",
    "../x",
    "/etc/passwd",
    "\x1b[2J",
    "\ud800",
    "a" * 100_000,
    [],
    {},
    [[]],
    [0] * 10_000,
    {"a": {"b": 1}},
)
WEIGHTS = "model.safetensors"
ALLOWANCE_BYTES = 64 << 20


def write_checkpoint(folder: Path) -> None:
    """Zeros in every tensor."""
    folder.mkdir()
    for name, value in SMALL.items():
        (folder / name).write_text(json.dumps(value))
    plan = family_of(CONFIG).tensors
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plan.experts[0].items()}
    header, end = dict[str, Any](__metadata__={"format": "pt"}), 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    (folder / WEIGHTS).write_bytes(framed(json.dumps(header).encode()) + bytes(end))


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def mutate_value(value: Any, rng: random.Random) -> Any:
    """A copy with one value at any depth replaced, removed or doubled."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(HOSTILE)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        return [*value[:at], mutate_value(value[at], rng), *value[at + rng.randrange(2) :]]
    name = rng.choice(list(value))
    if rng.random() < 0.1:
        return {key: item for key, item in value.items() if key != name}
    added = {rng.choice(["x", "__metadata__", "text_config", "a" * 1000]): rng.choice(HOSTILE)}
    return value | {name: mutate_value(value[name], rng)} | (added if rng.random() < 0.1 else {})


def mutate_data(data: bytes, rng: random.Random) -> bytes:
    """As `mutate_bytes`, and an empty file, or one with brackets that no parser can follow to their end."""
    kind = rng.randrange(7)
    if kind == 0:
        return b""
    if kind == 1:
        at = rng.randrange(len(data) + 1)
        return data[:at] + b"[" * 100_000 + data[at:]
    return mutate_bytes(data, rng)


def mutate_file(path: Path, rng: random.Random) -> None:
    data = path.read_bytes() if path.is_file() else b""
    kind = rng.randrange(10)
    if kind < 5 and path.suffix in (".json", ".safetensors") and data:
        start = 8 + int.from_bytes(data[:8], "little") if path.suffix == ".safetensors" else len(data)
        value = mutate_value(json.loads(data[8 if start < len(data) else 0 : start]), rng)
        text = json.dumps(value).encode()
        path.write_bytes(framed(text) + data[start:] if path.suffix == ".safetensors" else text)
    elif kind < 8:
        path.write_bytes(mutate_data(data, rng))
    else:
        path.unlink(missing_ok=True)
        special: list[Callable[[], object]] = [
            lambda: None,
            lambda: os.mkfifo(path),
            path.mkdir,
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to("/etc/passwd"),
            lambda: path.symlink_to(path.name),
            lambda: path.symlink_to("/no"),
        ]
        rng.choice(special)()


class Cases:
    """A sound checkpoint and a store with one model of it, `kept`; each case works on copies."""

    def __init__(self, folder: Path) -> None:
        self._sound, self._store, self._work = folder / "sound", folder / "store", folder / "work"
        self._checked = dict[tuple[tuple[str, bytes], ...], int]()
        vars(steps)["check_text_files"] = self._check_once
        write_checkpoint(self._sound)
        install.pull(str(self._sound), PullOptions(name="kept"), home=self._store)
        shutil.copytree(self._sound, folder / "other")
        install.pull(str(folder / "other"), PullOptions(name="victim"), home=self._store)

    def run(self, seed: int, number: int) -> str:
        """How a case ended, in a word; raises what is no error of moeinf's own, and AssertionError."""
        rng = random.Random(f"{seed}:{number}")
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        shutil.copytree(self._store, self._work / "home")
        self._library = Library(self._work / "home")
        self._kept = self._library.find("kept").path
        case = rng.choices([self._pull, self._resume, self._name, self._manifest, self._collection], [10, 2, 4, 4, 1])[
            0
        ]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            case(rng)
            ended = "sound"
        except MoeinfError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000, f"no line: {error}"
            ended = "refused"
        given = sum(path.lstat().st_size for path in self._work.rglob("*"))
        taken = tracemalloc.get_traced_memory()[1] - before
        assert taken <= 4 * given + ALLOWANCE_BYTES, f"{taken} bytes of memory for {given} bytes of files"
        assert "kept:latest" in {model.name for model in self._library.list()}, "the sound model is lost"
        return f"{case.__name__.strip('_')} {ended}"

    def _pull(self, rng: random.Random) -> None:
        source = self._work / "source"
        shutil.copytree(self._sound, source)
        mutate_file(source / rng.choice([*SMALL, WEIGHTS, WEIGHTS, "config.json", "config.json", "LICENSE"]), rng)
        install.pull(str(source), PullOptions(quant=rng.choice([None, "q8_0"])), home=self._library.home)

    def _resume(self, rng: random.Random) -> None:
        """A journal, and what lies beside it, of a pull that is gone on with, listed and removed."""
        source, other = self._work / "source", self._work / "home" / "partial" / "0123456789abcdef"
        shutil.copytree(self._sound, source)
        other.mkdir(parents=True)
        journal = {
            "version": 2,
            "label": "half:latest",
            "source": {"kind": "folder", "path": str(source)},
            "quantisation": {"experts": "keep", "dense": "keep"},
            "fingerprint": "",
            "layout": "",
            "converted": [WEIGHTS],
        }
        (other / "journal.json").write_text(json.dumps(journal))
        mutate_file(other / "journal.json", rng)
        [partial] = self._library.partials()
        assert partial.name.isprintable()
        install.pull(str(source), home=self._library.home)
        self._library.remove(partial.name)
        assert self._library.partials() == []

    def _name(self, rng: random.Random) -> None:
        mutate_file(self._library.home / "names" / "victim" / "latest", rng)
        self._use_and_remove()

    def _manifest(self, rng: random.Random) -> None:
        folder = self._library.find("victim").path
        mutate_file(folder / rng.choice(["manifest.json", "receipt.json", "config.json"]), rng)
        self._use_and_remove()

    def _collection(self, rng: random.Random) -> None:
        """What earlier runs have learned: a run goes on without it."""
        with Model(self._library.find("kept"), RuntimeConfig.of(device="cpu", threads=1)):
            pass
        mutate_file(self._kept / "eamc.npz", rng)
        notices: list[str] = []
        Model(self._library.find("kept"), RuntimeConfig.of(device="cpu", threads=1), Reporting(notices.append)).close()
        assert all("\n" not in notice for notice in notices)

    def _use_and_remove(self) -> None:
        stored = [model.name for model in self._library.list()]
        assert all("\n" not in fault for fault in self._library.faults())
        for use in (lambda: self._library.find("victim").manifest, lambda: self._library.find("org/repo")):
            try:
                use()
            except MoeinfError as error:
                assert "\n" not in str(error)
        if "victim:latest" in stored or self._library.faults():
            self._library.remove("victim")
        assert self._library.faults() == [] and len(self._library.list()) == 1

    def _check_once(self, files: Mapping[str, bytes], where: str) -> int:
        """The process that loads a tokenizer is not started again for the same files."""
        content = tuple(sorted((name, data) for name, data in files.items() if name != "LICENSE"))
        if content not in self._checked:
            self._checked[content] = check_text_files(files, where)
        return self._checked[content]


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, Cases))
