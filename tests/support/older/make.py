"""Writes stores as commits write them: python tests/support/older/make.py COMMIT...

Of each commit a copy is built, and its commands are carried out for the checkpoint and the GGUF file of this folder,
which lie at /tmp/older/ck and /tmp/older/gguf meanwhile, as a store notes where a source lies. What a commit does not
know of is left out, and said. A store goes into DATE-COMMIT.tar.xz.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
PLACE: Final = Path("/tmp/older")
_RUN: Final = ("run", "m", "a b", "--temperature", "0", "-n", "4", "--expert-cache", "50%")
COMMANDS: Final = (
    ("pull", "/tmp/older/ck", "--name", "mq8_0", "--quant", "q8_0"),  # the first commits keep one of a source
    ("pull", "/tmp/older/ck", "--name", "m"),
    ("pull", "/tmp/older/gguf/model.gguf", "--lora", "/tmp/older/gguf/adapter", "--name", "g"),
    ("create", "c", "-f", "/tmp/older/Modelfile"),
    (*_RUN, "--trace", "/tmp/older/home/traces"),
    (*_RUN, "--predictor", "eamc", "--policy", "paper"),
    ("run", "m", " ".join("abcdefgh"[n % 8] for n in range(90)), "-n", "4", "--prefix-disk", "20MB"),
)


def main() -> None:
    for commit in sys.argv[1:]:
        made(commit)


def made(commit: str) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    for source, place in (("checkpoint", "ck"), ("gguf", "gguf")):
        with tarfile.open(HERE / f"{source}.tar.xz") as archive:
            archive.extractall(PLACE / place)
    (PLACE / "Modelfile").write_text('FROM m\nSYSTEM """Be\nbrief."""\nPARAMETER temperature 0.5\nPARAMETER stop b\n')
    site = _environment()
    _carry_out("git", "-C", str(ROOT), "worktree", "add", "--detach", str(PLACE / "tree"), commit)
    try:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
        _carry_out(*pip, "--target", str(site), str(PLACE / "tree"))
        date = _carry_out("git", "-C", str(ROOT), "log", "-1", "--format=%ad-%h", "--date=short", "--abbrev=8", commit)
    finally:
        _carry_out("git", "-C", str(ROOT), "worktree", "remove", "--force", str(PLACE / "tree"))
    environment = os.environ | {"MOEINF_HOME": str(PLACE / "home")}
    for words in COMMANDS:
        done = subprocess.run(
            [str(PLACE / "venv" / "bin" / "python"), "-m", "moeinf", *words],
            cwd=PLACE,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{commit}: {' '.join(words)[:60]}: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(HERE / f"{date.strip()}.tar.xz", "w:xz", dereference=True) as archive:
        for path in sorted((PLACE / "home").iterdir()):
            archive.add(path, path.name, filter=lambda each: None if each.isfifo() else each)


def _environment() -> Path:
    """The folder of packages of an environment that finds those of this one, too, but for moeinf itself."""
    venv.create(PLACE / "venv", symlinks=True)
    site = next((PLACE / "venv" / "lib").iterdir()) / "site-packages"
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return site


def _carry_out(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
