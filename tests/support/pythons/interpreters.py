"""The Pythons of this machine, and an environment for each in which moeinf is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROMISED = [(3, minor) for minor in range(10, 15)]
_ABOUT = "import sys, venv; print(*sys.version_info[:3])"
_SETTING = "--config-settings"  # of which pip of Python 3.10 does not know the short form
_RELEASE = (_SETTING, "cmake.args=-DCMAKE_CXX_FLAGS_RELEASE=-O1")  # whether it runs, not how fast


def interpreters() -> dict[tuple[int, int], Path]:
    """The newest of each promised minor version: on the PATH, or of pyenv."""
    names = [f"python{major}.{minor}" for major, minor in PROMISED]
    found = [Path(each) for name in names if (each := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found += [*pyenv.glob("versions/*/bin/python"), Path(sys.executable)]
    newest: dict[tuple[int, int], tuple[int, Path]] = {}
    for path in found:
        done = subprocess.run([path, "-c", _ABOUT], capture_output=True, text=True, check=False)  # a shim may name none
        if done.returncode == 0 and (version := re.fullmatch(r"(\d+) (\d+) (\d+)\s*", done.stdout)):
            major, minor, patch = map(int, version.groups())
            if (major, minor) in PROMISED and (patch, path) > newest.get((major, minor), (-1, path)):
                newest[major, minor] = patch, path
    return {version: newest[version][1] for version in sorted(newest)}


def environment(python: Path, folder: Path, *packages: str) -> Path:
    """Installs moeinf, and packages, into a virtual environment; returns its folder of programs.

    The engine is that of the environment at hand, where it is built there: Python's part alone is compiled. The native
    tests have engines of their own, which need a sanitizer.
    """
    programs = folder / "bin"
    if not (programs / "python").exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "scikit-build-core>=0.10", "nanobind>=2.2", *packages], check=True)
    built = sorted(ROOT.glob("build/cp*/libmoeinf_engine.a"), key=os.path.getmtime)
    engine = [] if not built else [_SETTING, f"cmake.define.MOEINF_ENGINE_LIBRARY={built[-1]}"]
    search = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # CMake and Ninja are there
    how = [*_RELEASE, *engine, _SETTING, f"build-dir={folder / 'build'}"]
    subprocess.run([*pip, "--no-build-isolation", *how, str(ROOT)], check=True, env=os.environ | search)
    return programs
