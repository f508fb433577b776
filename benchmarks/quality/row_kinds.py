"""The rows of the table of docs/formats.md: what is made of a checkpoint, by moeinf and by llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PEER_TYPES: Final = ("Q4_K_M", "IQ4_XS", "Q3_K_M")
_PLAIN: Final = ("q8_0", "q6_k", "q5_k")  # moeinf's without calibration, for `fit` and `pull`
_BOTH: Final = ("q4_k", "iq4_xs", "q3_k")  # with and without


@dataclass(frozen=True, slots=True)
class Row:
    """A model that is made of the checkpoint."""

    tag: str
    options: tuple[str, ...] = ()  # of `moeinf pull`
    peer: str = ""  # the type that llama-quantize is told; "": moeinf's
    calibrated: bool = False
    size_of: str = ""  # the row whose weights' size it has at most

    @property
    def measures(self) -> bool:
        """Whether parts are measured for it on a text."""
        return bool(self.size_of)


def rows_of(types: Sequence[str]) -> list[Row]:
    """All rows; those of llama.cpp first, since others have their sizes."""
    rows = []
    for kind in types:
        rows += [Row(kind, peer=kind), Row(f"{kind}-imatrix", peer=kind, calibrated=True)]
    rows += [Row(kind, ("--quant", kind)) for kind in (*_BOTH, *_PLAIN)]
    rows += [Row(f"{kind}-calibrated", ("--quant", kind), calibrated=True) for kind in _BOTH]
    for kind in types:
        rows += [
            Row(f"size-of-{kind}".lower(), size_of=kind),
            Row(f"size-of-{kind}-calibrated".lower(), calibrated=True, size_of=f"{kind}-imatrix"),
        ]
    return rows
