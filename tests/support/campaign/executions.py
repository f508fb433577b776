"""Coverage-guided fuzzing by libFuzzer: of Python by atheris, where it is installed (`pip install atheris`), and of
native code where clang is.

As a module, `python -m tests.support.campaign.executions MODULE TARGET ...` is the fuzzer of Python itself, with
options of libFuzzer; build/fuzz/fuzz is that of native code, whose target is named by MOEINF_FUZZ.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.support.campaign.step import Done, Turn

ROOT: Final = Path(__file__).parents[3]
# A folder for each module of targets, and one for native code, with a folder for each target: what has reached other
# code.
CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"
NATIVE: Final = "native"
_BUILD: Final = ROOT / "build" / "fuzz"
_OTHER_PLACES: Final = list[str]()


def covered(turn: Turn) -> Done:
    """One target for so many seconds, from the corpus that is kept; a fault has the bytes that bring it about."""
    targets = sorted(CORPUS.glob("*/*"))
    kept = targets[turn.number % len(targets)]
    group, name = kept.parent.name, kept.name
    if group == NATIVE and shutil.which("clang++") is None:
        return Done(Counter({"left out: executions of native code, which need clang": 1}), [])
    if group != NATIVE and importlib.util.find_spec("atheris") is None:
        return Done(Counter({"left out: executions of Python, which need atheris": 1}), [])
    found = turn.folder / "found"
    found.mkdir()
    command = [str(_built())] if group == NATIVE else [sys.executable, "-m", __name__, group, name]
    options = ["-print_final_stats=1", "-max_len=4096", "-timeout=120", "-rss_limit_mb=3000"]
    options += [f"-max_total_time={int(turn.seconds)}", f"-seed={turn.rng.randrange(1, 1 << 31)}"]
    done = subprocess.run(
        [*command, str(found), str(kept), *options, f"-artifact_prefix={turn.folder}/"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        cwd=ROOT,
        env=os.environ | {"MOEINF_FUZZ": name},
    )
    faults = []
    if done.returncode != 0:
        spoilt = [path.read_bytes() for path in turn.folder.glob("*-*") if path.is_file()]
        told = [line for line in done.stderr.splitlines() if re.search(r"Error|ERROR|assert", line)][-4:]
        faults = [f"{group}/{name} of {data!r}: {' | '.join(told)}" for data in spoilt] or [done.stderr[-800:]]
    ran = re.search(r"number_of_executed_units: (\d+)|#(\d+)\s+DONE", done.stderr)
    return Done(Counter({f"executions: {group}/{name}": int(ran[1] or ran[2]) if ran else 0}), faults)


def _built() -> Path:
    """The fuzzer of native code, compiled anew where its sources have changed; with the engine of the environment where
    that was compiled here, as the inner loops take minutes."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(_BUILD), "-DMOEINF_NATIVE_TESTS=ON", "-DMOEINF_SANITIZE=fuzzer"]
    engines = sorted(ROOT.glob("build/cp*/libmoeinf_engine.a"), key=lambda path: path.stat().st_mtime)
    configure += [f"-DMOEINF_ENGINE_LIBRARY={engines[-1] if engines else ''}", "--log-level=WARNING"]
    for command in (configure, ["cmake", "--build", str(_BUILD), "--target", "fuzz"]):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"CC": "clang", "CXX": "clang++"}
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1500:]} {done.stderr[-1500:]}")
    return _BUILD / "fuzz"


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    _import_plainly()
    group, name, *rest = sys.argv[1:]
    with atheris.instrument_imports(include=["moeinf"]):  # while it runs, too: families are imported as they are met
        importlib.import_module("moeinf").__path__.extend(_OTHER_PLACES)
        target = importlib.import_module(f"tests.support.campaign.targets.{group}").TARGETS[name]
        place = next((Path(word) for word in rest if not word.startswith("-")), None)
        if place is not None and "-merge=1" not in rest:
            for number, data in enumerate(target.seeds()):
                (place / f"seed{number}").write_bytes(data)
            words = place.with_name("words")
            words.write_text(target.dictionary())
            rest += [f"-dict={words}"] if words.stat().st_size else []
        atheris.Setup([sys.argv[0], *rest], target.run)
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
