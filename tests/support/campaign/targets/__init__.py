"""What coverage-guided fuzzing calls with bytes: readers of files, requests, answers and messages of strangers.

Each module has its TARGETS by their names; tests/fuzz/corpus has a folder for each module, and in it one for each.
"""

from typing import Final

MODULES: Final = ("weights", "models", "requests", "forms", "answers", "kept", "machines")
