"""Mutates GGUF files, whole and split: each becomes a model's config, places and tokenizer, or ends in one line.

    python -m tests.fuzz.hostile_gguf [--seconds 600 | --cases 60] [--seed 1] [--case 17]

A case is a sound tiny model in one file or two, some with a vision tower, of which something is mutated: a value of the
metadata, a tensor's entry, a count, single bytes, or a whole file, which is cut off, missing, a link, a FIFO or a
folder. Whatever is read
lies inside its file, whatever has a place does too, and memory stays within eight times what was given and a fixed
allowance. An address space with a limit and an alarm stand behind that. Exits 1 at a fault.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import struct
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeinf.errors import MoeinfError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.gguf.gguf_vision import processor_file, tower_places
from moeinf.gguf.header import parse_gguf, read_gguf
from moeinf.models.family import family_of
from moeinf.pull.gguf.index import check_runs
from tests.support.fuzzing import mutate_bytes, run_cases
from tests.support.gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U32, U64, Entry, header, text
from tests.support.gguf_files import ARCHITECTURES, converted, model_metadata
from tests.support.mmproj_gguf import as_in_files, tower_metadata
from tests.support.tiny_models import all_configs

CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
OTHERS = ("deepseek_v3", "gpt_oss", "phimoe", "qwen3_5_moe", "qwen3_next")  # tiny configs of the tests
TOKENS = ["a", "b", "c", "ab", "abc", "</s>", "<t>", "[PAD7]"]
TOKENIZER: dict[str, Any] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 4, 5],
    "tokenizer.ggml.merges": ["a b", "ab c"],
    "tokenizer.ggml.eos_token_id": 5,
    "tokenizer.chat_template": "{{ messages }}",
}
HOSTILE: tuple[Any, ...] = (
    False,
    True,
    0,
    1,
    7,
    2**31 - 1,
    2**32 - 1,
    0.0,
    1e30,
    math.inf,
    math.nan,
    "",
    "x",
    "\x1b[2J",
    "a" * 100_000,
    "llama",
    "qwen35moe",
    "deepseek2",
    "yarn",
    "spm",
    ["x"],
    [1],
    [0] * 10_000,
    ["a"] * 10_000,
    (U64, struct.pack("<Q", 2**63)),
    (I32, struct.pack("<i", -1)),
    (F32, struct.pack("<f", -1.0)),
    (BOOL, b"\x02"),
    (STRING, text(b"", 2**63)),
    (STRING, text(b"\xff\xfe")),
    (99, b""),
    (ARRAY, struct.pack("<IQ", U32, 2**62)),
    (ARRAY, struct.pack("<IQ", STRING, 2**24)),
    (ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000),
)
SIZES = (0, 1, 2, 3, 31, 33, 64, 2**31, 2**32, 2**48, 2**63, 2**64 - 1)
ALLOWANCE_BYTES = 32 << 20


def sound_parts(config: dict[str, Any]) -> list[tuple[list[tuple[str, Any]], list[Entry]]]:
    """Metadata and entries of a model in two files."""
    plan, kind = family_of(config).tensors, config["model_type"]
    layout = plan.experts[1 if kind == "gpt_oss" else 0]  # the other one is MXFP4
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in layout.items()}
    inner, architecture = config.get("text_config") or config, ARCHITECTURES[kind]
    tensors = converted(kind, inner, {name: torch.zeros(shape) for name, shape in shapes.items()})
    fields = TOKENIZER | {f"{architecture}.{name}": value for name, value in model_metadata(kind, inner).items()}
    fields["general.architecture"] = architecture
    entries: list[list[Entry]] = [[], []]
    for number, (name, values) in enumerate(tensors.items()):
        into = entries[number % 2]
        end = into[-1].offset + 4 * math.prod(into[-1].ne) if into else 0
        into.append(Entry(name, values.shape[::-1], 0, end + -end % 32))
    total = len(tensors)
    found = []
    for number, some in enumerate(entries):
        numbers = {"split.no": number, "split.count": 2, "split.tensors.count": total}
        split = [(name, (2, struct.pack("<H", value))) for name, value in numbers.items()]
        found.append(((list(fields.items()) if number == 0 else []) + split, some))
    return found


def seeing_parts() -> tuple[list[tuple[str, Any]], list[Entry], list[tuple[str, Any]], list[Entry]]:
    """Metadata and entries of a model in one file, and of its tower."""
    config = all_configs("SEEING")["qwen3_vl_moe"]
    fields, entries = joined(sound_parts(config))
    marks = [*TOKENS[:5], "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"]
    fields = [(name, marks if name == "tokenizer.ggml.tokens" else value) for name, value in fields]
    shapes, deep, ends = family_of(config).seen_by, config["vision_config"]["deepstack_visual_indexes"], [0]
    of_tower: list[Entry] = []
    for source, shape in shapes.items():
        for name, values in as_in_files(source, np.zeros(shape, np.float32), deep):
            of_tower.append(Entry(name, values.shape[::-1], 0, ends[-1]))
            end = ends[-1] + values.nbytes
            ends.append(end + -end % 32)
    named = {"general.architecture": "clip", "general.type": "mmproj"} | tower_metadata(config)
    return fields, entries, list(named.items()), of_tower


def joined(parts: list[tuple[list[tuple[str, Any]], list[Entry]]]) -> tuple[list[tuple[str, Any]], list[Entry]]:
    """The same model in one file."""
    entries: list[Entry] = []
    for _, some in parts:
        for entry in some:
            end = entries[-1].offset + 4 * math.prod(entries[-1].ne) if entries else 0
            entries.append(entry._replace(offset=end + -end % 32))
    return [field for field in parts[0][0] if not field[0].startswith("split.")], entries


def mutate_entry(entry: Entry, rng: random.Random) -> Entry:
    kind = rng.randrange(5)
    if kind == 0:
        return entry._replace(offset=rng.choice([*SIZES, entry.offset + 32, max(0, entry.offset - 32)]))
    if kind == 1:
        return entry._replace(type=rng.choice([*range(45), 2**32 - 1]))
    if kind == 2:
        return entry._replace(name=rng.choice(["", "\n", "x", "token_embd.weight", "a" * 5000]))
    ne = list(entry.ne)
    if kind == 3:
        ne[rng.randrange(len(ne))] = rng.choice(SIZES)
        return entry._replace(ne=ne)
    return entry._replace(ne=ne * rng.randrange(4))


class Cases:
    def __init__(self, folder: Path) -> None:
        np.seterr(all="raise")
        self._work = folder / "work"
        self._seeing = seeing_parts()
        self._models = [sound_parts(CONFIG), *(sound_parts(all_configs()[name]) for name in OTHERS)]

    def run(self, seed: int, number: int) -> str:
        """How a case ended, in a word; raises what is no error of moeinf's own, and AssertionError."""
        rng = random.Random(f"{seed}:{number}")
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        paths = self._write(rng)
        given = sum(path.lstat().st_size for path in paths if path.is_file())
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            self._use(rng.choice(paths))
            ended = "sound"
        except MoeinfError as error:
            line = str(error)
            assert line.isprintable() and len(line) < 2000, f"no line: {line!r}"
            ended = "refused"
        taken = tracemalloc.get_traced_memory()[1] - before
        assert taken <= 8 * given + ALLOWANCE_BYTES, f"{taken} bytes of memory for {given} bytes of files"
        return f"{'split' if len(paths) > 1 else 'file'} {ended}"

    def _write(self, rng: random.Random) -> list[Path]:
        self._tower: Path | None = None
        if rng.random() < 0.2:
            fields, entries, of_tower, its_entries = self._seeing
            paths = [self._work / "m.gguf", self._work / "mmproj.gguf"]
            self._write_one(paths[0], fields, entries, 20, rng)
            self._write_one(paths[1], of_tower, its_entries, rng.randrange(20), rng)
            self._tower = paths.pop()
            return paths
        model = self._models[rng.choice([0, 0, 0, *range(len(self._models))])]
        parts = [joined(model)] if rng.random() < 0.6 else model
        names = ["m.gguf"] if len(parts) == 1 else [f"m-0000{number + 1}-of-00002.gguf" for number in range(2)]
        paths = [self._work / name for name in names]
        hit, kind = rng.randrange(len(parts)), rng.randrange(20)
        for number, (path, (fields, entries)) in enumerate(zip(paths, parts, strict=True)):
            self._write_one(path, fields, entries, kind if number == hit else 20, rng)
        return paths

    def _write_one(
        self, path: Path, fields: list[tuple[str, Any]], entries: list[Entry], kind: int, rng: random.Random
    ) -> None:
        """kind: of what is mutated; from 18 on nothing is."""
        end = max((entry.offset + 4 * math.prod(entry.ne) for entry in entries), default=0)
        fields, entries, counts = list(fields), list(entries), dict[str, int]()
        if kind < 8:
            at = rng.randrange(len(fields))
            fields[at] = (rng.choice([fields[at][0]] * 9 + ["", "x", "llama.x"]), rng.choice(HOSTILE))
        elif kind < 12:
            at = rng.randrange(len(entries))
            entries[at] = mutate_entry(entries[at], rng)
        elif kind == 12:
            counts = {rng.choice(["num_tensors", "num_keys"]): rng.choice(SIZES)}
        data = header(fields, entries, **counts)
        data += bytes(-len(data) % 32 + end)
        path.write_bytes(mutate_bytes(data, rng) if 13 <= kind < 17 else data)
        if kind == 17:
            self._replace(path, rng)

    def _replace(self, path: Path, rng: random.Random) -> None:
        path.unlink()
        special = rng.randrange(5)
        if special == 0:
            os.mkfifo(path)
        elif special == 1:
            path.mkdir()
        elif special < 4:
            path.symlink_to(["/dev/zero", path.name][special - 2])

    def _use(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self._read_within(path)
        gguf = read_gguf(path)
        places = places_of(gguf, family_of(config_of(gguf)).tensors)
        for tensor in (tensor for source in places.dense.values() for tensor in source.tensors):
            assert 0 < tensor.offset_bytes <= gguf.files[tensor.file].num_bytes - tensor.num_bytes
        for parts in places.experts:
            for source in parts.values():
                last = source.offset_bytes + (source.tensor.shape[0] - 1) * source.stride_bytes + source.num_bytes
                assert 0 < source.offset_bytes < last <= gguf.files[source.tensor.file].num_bytes
        tokenizer_files(gguf)
        if self._tower is not None:
            gguf = replace(gguf, mmproj=read_gguf(self._tower))
            check_runs(gguf)
            for place in tower_places(gguf, family_of(config_of(gguf)).seen_by).values():
                for tensor in place.tensors:
                    assert tensor.file == len(gguf.files)
                    assert 0 < tensor.offset_bytes <= self._tower.stat().st_size - tensor.num_bytes
            processor_file(gguf)

    def _read_within(self, path: Path) -> None:
        data = path.read_bytes()

        def read(offset: int, num_bytes: int) -> bytes:
            assert 0 <= offset <= offset + num_bytes <= len(data), "read past the end of the file"
            return data[offset : offset + num_bytes]

        try:
            parse_gguf(read, len(data), str(path))
        except MoeinfError:
            return


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, Cases))
