"""What an installation brings: the base without torch and without what only tests need."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def names(requirements: str) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in re.findall(r'"([^"]+)"', requirements)}


def listed(key: str) -> set[str]:
    """The names of the packages in a list of pyproject.toml."""
    found = re.search(rf"^{key} = \[(.*?)\]$", PROJECT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, key
    return names(found[1])


def test_torch_comes_with_the_gpu_alone() -> None:
    assert "numpy" in listed("dependencies") and "torch" not in listed("dependencies")
    assert listed("gpu") == {"torch"}
    assert "torch" in listed("test")  # the path of a GPU is tested on an emulated one


def steps(target: str) -> str:
    """What make would do in a folder where nothing is installed."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_no_package_that_only_tests_need() -> None:
    demo, tests = steps("demo"), steps("lint")
    assert "--no-build-isolation -e .\n" in demo and "[test]" not in demo and "torch" not in demo
    assert "--no-build-isolation -e .\n" in tests and "-e '.[test]'" in tests and "torch" in tests


def test_wheels_are_built_for_the_systems_and_versions_that_are_named() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for system in ("x86-64", "arm64", "macOS", "WSL2"):
        assert system in readme
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    assert all(system in workflow for system in ("ubuntu-24.04", "ubuntu-24.04-arm", "macos-14"))
    assert all(f"cp3{minor}-*" in PROJECT for minor in range(10, 15))


def test_what_was_tested_is_locked_with_its_hashes() -> None:
    """For every system and Python; the lock fits what pyproject.toml asks for."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = [block for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if block and block[0] != "#"]
    assert all(re.match(r"[a-z0-9-]+==[^\s;]+", block) and "--hash=sha256:" in block for block in pinned)
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, flags=re.MULTILINE):
        versions.setdefault(name, []).append(version)
    for key in ("dependencies", "vision"):
        wanted = re.search(rf"^{key} = \[(.*?)\]$", PROJECT, flags=re.MULTILINE | re.DOTALL)
        assert wanted is not None
        for each in map(Requirement, re.findall(r'"([^"]+)"', wanted[1])):
            found = versions[canonicalize_name(each.name)]
            assert all(each.specifier.contains(version) for version in found), f"{each}: {found}; run make lock"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("readelf") is None, reason="it reads ELF by readelf")
def test_the_native_module_is_hardened() -> None:
    native = importlib.util.find_spec("moeinf._native")
    assert native is not None and native.origin is not None
    told = subprocess.run(["readelf", "-dlW", "--dyn-syms", native.origin], capture_output=True, text=True, check=True)
    assert re.search(r"FLAGS.* BIND_NOW|FLAGS_1.* NOW", told.stdout) and "GNU_RELRO" in told.stdout
    assert re.search(r"GNU_STACK\s+(0x0+ )+\s*RW\b", " ".join(told.stdout.split("\n")))
    assert "__stack_chk_fail" in told.stdout and re.search(r"__\w+_chk\b", told.stdout)


def test_every_module_loads_where_the_system_lacks_what_only_linux_has() -> None:
    code = """
import errno, importlib, os, pkgutil, select

for name in ("EUCLEAN", "EREMOTEIO", "ENOMEDIUM", "ENOKEY", "EKEYEXPIRED", "EKEYREVOKED"):
    delattr(errno, name)
for module, names in ((os, ("O_DIRECT", "sched_getaffinity", "posix_fadvise")), (select, ("epoll",))):
    for name in names:
        delattr(module, name)
import moeinf
for module in pkgutil.walk_packages(moeinf.__path__, "moeinf."):
    if "gpu" not in module.name and "__main__" not in module.name:
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
