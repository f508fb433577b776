"""One form of a model: a published file or checkpoint, and the format that it is stored in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from moeinf.config.pull_options import PullOptions
from moeinf.pull.origins import Origin
from moeinf.pull.steps import Headers

MOST_BITS: Final = 8.0  # a weight; what has more is no better in any answer that was measured (docs/formats.md)
_QUANTISATION: Final = re.compile(
    r"(?:^|[-_./])((?:ud-)?(?:i?q\d(?:_\w+)?|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|f16|fp16|f32))$", re.IGNORECASE
)
_CLASS: Final = re.compile(r"\d+")
_SIXTEEN: Final = {"bf16": 16, "f16": 16, "fp16": 16, "f32": 32}
# Of files of as many bits, the one to be offered: the mixtures that most people take, then what loses less.
_ORDER: Final = ("k_m", "0", "k_xl", "mxfp4", "mxfp4_moe", "k", "k_l", "k_s", "nl", "xs", "xxs", "1")


@dataclass(frozen=True, slots=True)
class Form:
    tag: str  # "q4_k_m"
    origin: Origin  # what a pull takes
    options: PullOptions  # with the name that it is stored under
    where: str  # the repository
    download_bytes: int
    needed_bytes: int  # of free disk
    headers: Headers

    @property
    def store_bytes(self) -> int:
        return self.headers.store_bytes

    @property
    def bits(self) -> float:
        """Of a weight, in the mean."""
        return 8 * self.store_bytes / self.headers.manifest.info.num_params

    @property
    def rank(self) -> tuple[float, int, int]:
        """Larger for the one to be preferred."""
        return rank_of(self.bits, self.store_bytes, self.download_bytes)


@dataclass(frozen=True, slots=True)
class Found:
    forms: tuple[Form, ...]  # the best first
    notes: tuple[str, ...]  # a line for each source that cannot be used
    bytes_per_s: float  # of the network, as far as the headers tell; 0 where they are too few for that


def rank_of(bits: float, store_bytes: int, download_bytes: int = 0) -> tuple[float, int, int]:
    """Larger for the form to be preferred: by what weights keep, then by how little is stored, and downloaded."""
    return min(bits, MOST_BITS), -store_bytes, -download_bytes


def quantisation_of(file: str) -> str:
    """The quantisation that the name of a GGUF file ends in, without its ending: "q4_k_m"; "" where it has none."""
    found = _QUANTISATION.search(file)
    return found[1].lower() if found else ""


def bits_class(tag: str) -> int:
    """The bits that a tag names: 4 of "iq4_xs", 16 of "bf16"."""
    if tag in _SIXTEEN:
        return _SIXTEEN[tag]
    found = _CLASS.search(tag)
    return int(found[0]) if found else 0


def preference(tag: str) -> tuple[int, int]:
    """Smaller for the tag to be offered of several of as many bits."""
    kind = re.sub(r"^(ud-)?(i?q\d_?|tq\d_?)", "", tag)
    place = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
    return place, tag.startswith(("i", "ud-i"))
