"""The error of a driver that refuses, as moeinf._native raises it."""

from __future__ import annotations


class CudaError(RuntimeError):
    """As moeinf._native raises it."""

    def __init__(self, name: str, function: str = "cuInit") -> None:
        super().__init__(f"{function}: {name}")
        self.name = name
