"""Python imports this by itself: moeinf._native is the module that SANITIZED_NATIVE_MODULE names.

cextensions/tests/python.sh makes the module and puts this folder on the path. With SANITIZED_ALONE, what this
process starts has no sanitizer: the tokenizer's process bounds its address space, of which a sanitizer takes terabytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class _Sanitized(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return (
            spec_from_file_location(name, os.environ["SANITIZED_NATIVE_MODULE"]) if name == "moeinf._native" else None
        )


sys.meta_path.insert(0, _Sanitized())  # in front of the finder of an editable installation
if os.environ.get("SANITIZED_ALONE"):
    os.environ.pop("LD_PRELOAD", None)
