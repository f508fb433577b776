"""Runs Triton's kernels in its interpreter, on the CPU: triton looks at the variable when a kernel is declared.

A machine's GPU is for tests/gpu, in a process of its own.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
