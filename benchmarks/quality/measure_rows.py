"""Divergence of a checkpoint's quantised forms by their size: moeinf's own, and those of llama.cpp's quantiser.

    python benchmarks/quality/measure_rows.py CHECKPOINT --texts FOLDER --work FOLDER --out FILE.json
        [--gguf BF16.gguf --llama-cpp FOLDER] [--rows NAME ...] [--speed]

FOLDER of --texts is that of cut_texts.py. --gguf is the same checkpoint as a GGUF file, and --llama-cpp the folder of
llama-quantize and llama-imatrix. Every row is made by the command that FILE tells of it, is compared with the
checkpoint by `moeinf compare` on the same text, and is deleted. What FILE has is not measured again, so that the same
command goes on where it stopped. --speed times the rows that FILE has, a third of the experts resident: alone on a
quiet machine. --rows measures these alone, and anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from cut_texts import CALIBRATING, COMPARED, MEASURING
from row_kinds import PEER_TYPES, Row, rows_of

from moeinf.store.library import Library

WHOLE = "quality:whole"
_TOGETHER = 4  # rows that are compared with one reading of the checkpoint; so many lie on the disk at once
_TIMED_TOGETHER = 12  # rows that are timed by turns
_TOKENS = 32_768  # more than either text has
_MEASURED = 512  # tokens on which each part is measured for a size


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything lies."""

    checkpoint: str
    texts: Path
    work: Path
    gguf: Path | None
    llama_cpp: Path | None

    @property
    def home(self) -> Path:
        return self.work / "home"

    @property
    def calibrating(self) -> Path:
        return self.texts / CALIBRATING

    @property
    def imatrix(self) -> Path:
        return self.work / "imatrix.gguf"


def ran(words: Sequence[str | Path], place: Place) -> str:
    """What a command prints. Raises CalledProcessError."""
    print("$", *words, flush=True)
    environment = os.environ | {
        "MOEINF_HOME": str(place.home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.run(list(map(str, words)), env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def made(row: Row, found: dict[str, Any], place: Place) -> tuple[str, str]:
    """Makes a row's model: how `moeinf` calls it, and the command that it took."""
    if not row.peer:
        words = ["moeinf", "pull", place.checkpoint, "--name", f"quality:{row.tag}", *row.options]
        if row.size_of:
            words += ["--size", str(found["rows"][row.size_of]["weights_bytes"])]
        if row.measures:
            words += ["--text", str(place.texts / MEASURING), "--tokens", str(_MEASURED)]
        if row.calibrated:
            words += ["--calibrate", str(place.calibrating), "--calibrate-tokens", str(_TOKENS)]
        ran([*words, "--quiet", "--yes"], place)
        return f"quality:{row.tag}", _told(words, place)
    assert place.gguf is not None and place.llama_cpp is not None
    words = [str(place.llama_cpp / "llama-quantize")]
    if row.calibrated:
        _gather(place)
        words += ["--imatrix", str(place.imatrix)]
    file = place.work / f"{row.tag}.gguf"
    words += [*row.options, str(place.gguf), str(file), row.peer]
    ran(words, place)
    return str(file), _told(words, place)


def _gather(place: Place) -> None:
    """The importance matrix of the text that calibrates moeinf's rows, too: llama-imatrix's or, where that ends with an
    error, moeinf's own sums."""
    if place.imatrix.exists():
        return
    assert place.llama_cpp is not None
    part = place.imatrix.with_suffix(".part.gguf")
    words = ["-m", str(place.gguf), "-f", str(place.calibrating), "-o", str(part), "--no-ppl"]
    try:
        ran([place.llama_cpp / "llama-imatrix", *words], place)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        print(f"{error}; moeinf gathers what llama-quantize is given", flush=True)
        part.unlink(missing_ok=True)
        words = ["--calibrate", str(place.calibrating), "--calibrate-tokens", str(_TOKENS), "--imatrix", str(part)]
        ran(["moeinf", "pull", place.checkpoint, "--name", WHOLE, *words, "--quiet", "--yes"], place)
    part.rename(place.imatrix)


def _told(words: Sequence[str], place: Place) -> str:
    """A command without the folders of this machine."""
    folders = {place.checkpoint: "CHECKPOINT", str(place.gguf): "BF16.gguf"}
    return " ".join(folders.get(word, Path(word).name if "/" in word else word) for word in words)


def weights_bytes(name: str, place: Place) -> int:
    """Of all weights, without vocabularies, and without what lies between the experts of a store."""
    if name.endswith(".gguf"):
        return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(name).tensors)
    stored = Library(place.home).find(name)
    manifest = stored.manifest
    experts = sum(
        manifest.moe.experts_of(layer) * sum(spec.num_bytes for spec in manifest.layout_of(layer).tensors)
        for layer in range(manifest.moe.num_layers)
    )
    return stored.dense_bytes + experts


def measured(rows: Sequence[Row], found: dict[str, Any], place: Place) -> None:
    """Adds the rows to what was found. A size that cannot be met is told, and has no row."""
    names = {}
    for row in rows:
        try:
            names[row.tag] = made(row, found, place)
        except subprocess.CalledProcessError:
            if not row.size_of:
                raise
            print(f"{row.tag} is left out: see above", flush=True)
    rows = [row for row in rows if row.tag in names]
    if not rows:
        return
    words = ["moeinf", "compare", WHOLE, *(name for name, _ in names.values())]
    words += ["--text", str(place.texts / COMPARED), "--tokens", str(_TOKENS), "--json", "--quiet"]
    compared = json.loads(ran(words, place))
    found |= {key: compared[key] for key in ("predictions", "window", "perplexity")}
    for row, model in zip(rows, compared["models"], strict=True):
        name, command = names[row.tag]
        kept = ("kl", "kl_error", "kl_99", "perplexity", "same_token")
        more = {"weights_bytes": weights_bytes(name, place), "command": command}
        found["rows"][row.tag] = more | {key: model[key] for key in kept}
        print(row.tag, json.dumps(found["rows"][row.tag]), flush=True)
    for name, _ in names.values():
        forgotten(name, place)


def forgotten(name: str, place: Place) -> None:
    if name.endswith(".gguf"):
        ran(["moeinf", "rm", Path(name).stem.lower()], place)
        Path(name).unlink()
    else:
        ran(["moeinf", "rm", name], place)


def timed(rows: Sequence[Row], found: dict[str, Any], place: Place) -> None:
    """Adds how fast each row decodes with a third of its experts resident: the middle of its warm requests in rounds by
    turns, one forwards and one backwards, since the rate of a disk that others use is another each minute."""
    names = {row.tag: made(row, found, place)[0] for row in rows}
    rates: dict[str, list[float]] = {tag: [] for tag in names}
    for tag in (*names, *reversed(names)):
        words = ["moeinf", "bench", names[tag], "--expert-cache", "33%", "--repeats", "4", "--output", "json"]
        tests = json.loads(ran(words, place))
        rates[tag] += next(each["samples_ts"] for each in tests if each["test"].startswith("tg") and not each["cold"])
    for tag, name in names.items():
        found["rows"][tag]["tokens_per_s"] = round(statistics.median(rates[tag]), 2)
        forgotten(name, place)


def batches(rows: Sequence[Row], found: dict[str, Any], most: int) -> Iterator[list[Row]]:
    """Rows that are made together, at most so many: none with the size of another in the same batch, or before it."""
    left = list(rows)
    while left:
        ready = [row for row in left if not row.size_of or row.size_of in found["rows"]][:most]
        if not ready:
            raise SystemExit(f"{', '.join(row.tag for row in left)}: what they have the size of is not there")
        yield ready
        left = [row for row in left if row not in ready]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("checkpoint")
    for name in ("texts", "work", "out"):
        options.add_argument(f"--{name}", type=Path, required=True)
    for name in ("gguf", "llama-cpp"):
        options.add_argument(f"--{name}", type=Path)
    options.add_argument("--rows", nargs="+")
    options.add_argument("--speed", action="store_true")
    given = options.parse_args()
    place = Place(given.checkpoint, given.texts, given.work, given.gguf, given.llama_cpp)
    rows = [row for row in rows_of(PEER_TYPES) if place.llama_cpp or not row.peer]
    if given.rows:
        rows = [row for row in rows if row.tag in given.rows]
    place.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found["commit"] = commit.strip()[:12]
    found["compared_sha256"] = hashlib.sha256((place.texts / COMPARED).read_bytes()).hexdigest()
    if given.speed:
        rows = [row for row in rows if row.tag in found["rows"] and "tokens_per_s" not in found["rows"][row.tag]]
    else:
        rows = [row for row in rows if given.rows or row.tag not in found["rows"]]
        ran(["moeinf", "pull", place.checkpoint, "--name", WHOLE, "--quiet", "--yes"], place)
    for batch in batches(rows, found, _TIMED_TOGETHER if given.speed else _TOGETHER):
        (timed if given.speed else measured)(batch, found, place)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
