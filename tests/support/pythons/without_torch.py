"""A plugin of pytest: tests are skipped that need a package which is not installed, such as torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

_NEEDED = (
    "anthropic", "gguf", "httpx", "jsonschema_rs", "llama_cpp", "matplotlib", "ollama", "openai", "pexpect", "PIL",
    "pyte", "safetensors", "torch", "transformers", "triton",
)  # fmt: skip


class _Missing(MetaPathFinder):
    """Asked last: for what no other finder knows."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in _NEEDED:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        return None


def pytest_configure() -> None:
    sys.meta_path.append(_Missing())
