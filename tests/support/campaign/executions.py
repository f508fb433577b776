"""Coverage-guided fuzzing of the targets, by atheris where it is installed (`pip install atheris`).

As a module, `python -m tests.support.campaign.executions TARGET ...` is the fuzzer itself, with options of libFuzzer.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.support.campaign.step import Done, Turn

ROOT: Final = Path(__file__).parents[3]
CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"  # a folder for each target: what has reached other code
_NAMES: Final = ("safetensors", "gguf", "manifest", "body", "calls")
_OTHER_PLACES: Final = list[str]()


def covered(turn: Turn) -> Done:
    """One target for so many seconds, from the corpus that is kept; a fault has the bytes that bring it about."""
    if importlib.util.find_spec("atheris") is None:
        return Done(Counter({"executions: steps left out, which need atheris": 1}), [])
    folder, name = turn.folder, turn.of(_NAMES)
    found = folder / "found"
    found.mkdir()
    options = [
        f"-max_total_time={int(turn.seconds)}",
        f"-seed={turn.rng.randrange(1, 1 << 31)}",
        "-print_final_stats=1",
    ]
    options += ["-max_len=4096", "-timeout=20", "-rss_limit_mb=3000", f"-artifact_prefix={folder}/"]
    command = [sys.executable, "-m", __name__, name, str(found), str(CORPUS / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT)
    faults = []
    if done.returncode != 0:
        spoilt = [path.read_bytes() for path in folder.glob("*-*") if path.is_file()]
        told = [line for line in done.stderr.splitlines() if re.search(r"Error|ERROR|assert", line)][-4:]
        faults = [f"{name} of {data!r}: {' | '.join(told)}" for data in spoilt] or [done.stderr[-800:]]
    ran = re.search(r"number_of_executed_units: (\d+)|#(\d+)\s+DONE", done.stderr)
    return Done(Counter({f"executions: {name}": int(ran[1] or ran[2]) if ran else 0}), faults)


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    _import_plainly()
    with atheris.instrument_imports(include=["moeinf"]):
        importlib.import_module("moeinf").__path__.extend(_OTHER_PLACES)
        from tests.support.campaign.targets import TARGETS, seeds
    name, *rest = sys.argv[1:]
    for number, data in enumerate(seeds(name)):
        place = next((Path(word) for word in rest if not word.startswith("-")), None)
        if place is not None and "-merge=1" not in rest:
            (place / f"seed{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], *rest], TARGETS[name])
    atheris.Fuzz()


def _import_plainly() -> None:
    """Takes the finder of an editable installation away, whose modules atheris cannot look into."""
    found = importlib.util.find_spec("moeinf")
    assert found is not None and found.submodule_search_locations is not None
    _OTHER_PLACES.extend(found.submodule_search_locations)  # of the native module
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "ScikitBuildRedirectingFinder"]
    sys.path.insert(0, str(ROOT / "src"))


if __name__ == "__main__":
    main()
