"""The rows of the table of docs/formats.md: what is made of a checkpoint, by moeinf and by llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PEER_TYPES: Final = ("Q4_K_M", "IQ4_XS", "Q3_K_M")
_PLAIN: Final = ("q8_0", "q6_k", "q5_k")  # moeinf's without calibration, for `fit` and `pull`
_BOTH: Final = ("q4_k", "iq4_xs", "q3_k")  # with and without
# Recipes like those that files for ik_llama.cpp are made by (ggml-org/llama.cpp#12511, ikawrakow/ik_llama.cpp#262): 8
# bits beside the experts, and `down` a step above gate and up. Of gate and up, and of down.
_RECIPES: Final = {"Q4_K-recipe": ("q4_k", "q5_k"), "Q3_K-recipe": ("q3_k", "q4_k")}


@dataclass(frozen=True, slots=True)
class Row:
    """A model that is made of the checkpoint."""

    tag: str
    options: tuple[str, ...] = ()  # of `moeinf pull`, or of llama-quantize
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
    for tag, (others, down) in _RECIPES.items():
        options = _recipe(others, down)
        rows += [Row(tag, options, "Q4_K_M"), Row(f"{tag}-imatrix", options, "Q4_K_M", calibrated=True)]
    rows += [Row(kind, ("--quant", kind)) for kind in (*_BOTH, *_PLAIN)]
    rows += [Row(f"{kind}-calibrated", ("--quant", kind), calibrated=True) for kind in _BOTH]
    for kind in types:
        rows += [
            Row(f"size-of-{kind}".lower(), size_of=kind),
            Row(f"size-of-{kind}-calibrated".lower(), calibrated=True, size_of=f"{kind}-imatrix"),
        ]
    return rows


def _recipe(others: str, down: str) -> tuple[str, ...]:
    found = ["--token-embedding-type", "q8_0", "--output-tensor-type", "q8_0", "--tensor-type", "attn_=q8_0"]
    for part, kind in (("gate", others), ("up", others), ("down", down)):
        found += ["--tensor-type", f"ffn_{part}_exps={kind}"]
    return tuple(found)
