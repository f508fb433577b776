"""A new user's first command, from an empty home to an answer: seconds, words on the screen, and what it showed.

    python benchmarks/first_minutes.py --page --out benchmarks/results/first-minutes/steps.json

A stand-in for the Hub on this machine serves the demo model, in a checkpoint and in GGUF files, under the repositories
of Qwen3-30B-A3B, so that the figures are those of moeinf: a real download comes on top. Needs what the tests need.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from moeinf.store.naming.catalogue import DATA, known_model  # noqa: E402
from tests.support.hub_server import serving  # noqa: E402
from tests.support.known_models import write_forms  # noqa: E402

PROMPT = "Once upon a time"
STEPS = (
    ("a name", ["moeinf", "run", "qwen3", PROMPT, "-n", "16"]),
    ("again", ["moeinf", "run", "qwen3", PROMPT, "-n", "16"]),
    ("another form", ["moeinf", "run", "qwen3:30b-a3b-q4_K_M", PROMPT, "-n", "16"]),
    ("what fits", ["moeinf", "fit", "qwen3:30b-a3b-q8_0"]),
)
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def typed(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Runs a command on a terminal of 100 columns; what it showed, and when the first of it came."""
    started, shown, first = time.monotonic(), b"", 0.0
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, environment)
    try:
        while select.select([terminal], [], [], 300)[0]:
            piece = os.read(terminal, 65536)
            if not piece:
                break
            shown += piece
            first = first or time.monotonic() - started
    except OSError:  # the command has ended
        pass
    _, status = os.waitpid(pid, 0)
    text = _CODES.sub("", shown.decode("utf-8", "replace")).replace("\r\n", "\n")
    text = "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))  # of a line that was redrawn, the last
    return {
        "command": " ".join(f"'{word}'" if " " in word else word for word in words),
        "exit": os.waitstatus_to_exitcode(status),
        "first_line_s": round(first, 2),
        "seconds": round(time.monotonic() - started, 2),
        "words": len(text.split()),
        "shown": text,
    }


def _write_page(found: Sequence[dict[str, Any]]) -> None:
    page = ROOT / "docs" / "first-minutes.md"
    rows = "".join(f"| `{each['command']}` | {each['seconds']:.1f} | {each['words']} |\n" for each in found)
    table = f"| command | seconds | words on the screen |\n|---|---|---|\n{rows}"
    address = re.compile(r"http://127\.0\.0\.1:\d+")
    shown = re.sub(r"note: other programs .*\n(  .*\n)*", "", address.sub("https://huggingface.co", found[0]["shown"]))
    shown = "\n".join(line.rstrip() for line in shown.split("\n"))
    text = page.read_text(encoding="utf-8")
    for mark, made in (("table", table), ("shown", f"```\n{shown.strip()}\n```\n")):
        between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = between.sub(lambda match, made=made: f"{match[1]}{made}{match[2]}", text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--page", action="store_true", help="write the figures into docs/first-minutes.md")
    given = options.parse_args()
    model = known_model("qwen3")
    assert model is not None
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch) / "files"
        files.mkdir()
        write_forms(files)
        with serving(DATA / "demo") as hub:
            hub.repos = {source.location: ("f" * 40, files) for source in model.gguf}
            hub.repos |= {source.location: ("a" * 40, DATA / "demo") for source in model.quantised}
            hub.repos[model.checkpoint.location] = (model.checkpoint.revision, DATA / "demo")
            environment = os.environ | {
                "MOEINF_HOME": str(Path(scratch) / "home"),
                "HOME": scratch,
                "HF_ENDPOINT": hub.endpoint,
                "MOEINF_HOST": "127.0.0.1:1",
                "COLUMNS": "100",
                "TERM": "xterm-256color",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            found = [{"step": step} | typed(words, environment) for step, words in STEPS]
    for each in found:
        print(f"{each['step']:14} {each['seconds']:7.2f} s  {each['words']:4} words  $ {each['command']}")
        assert each["exit"] == 0, each["shown"]
    if given.page:
        _write_page(found)
    if given.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        given.out.write_text(json.dumps({"commit": commit.stdout.strip()[:12], "steps": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
