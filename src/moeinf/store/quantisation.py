"""Chooses the formats of stored weights: what the user wants, as far as the rows of a matrix allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from moeinf.errors import UsageError
from moeinf.types import FORMAT_BLOCKS, Format, TensorPlan

Choice = Literal[
    "keep", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "q3_k", "iq3_s",
    "iq3_xxs", "q2_k", "iq2_s", "iq2_xs", "iq2_xxs", "mxfp4",
]  # fmt: skip
# Of experts, which --quant means by a name.
Mixture = Literal[
    "q5_k_m", "q4_k_m", "q3_k_m", "iq3_s_m", "iq3_xxs_m", "q2_k_m", "iq2_s_m", "iq2_xs_m", "iq2_xxs_m"
]  # fmt: skip
ExpertChoice = Literal[Choice, Mixture, "fitted"]  # fitted: each part of each layer in its own, to have a size
DenseChoice = Literal[Choice, "more", "fitted"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
EXPERT_CHOICES: tuple[ExpertChoice, ...] = get_args(ExpertChoice)
DENSE_CHOICES: tuple[DenseChoice, ...] = get_args(DenseChoice)
# What --quant makes of experts: gate and up in the format of that name, down in a larger one. An error there goes into
# the sum of all layers as it is, while one of gate and up is damped by the other. All layers alike: slots are equal.
_MIXTURES: Mapping[Choice, Mixture] = {
    "q5_k": "q5_k_m", "q4_k": "q4_k_m", "q3_k": "q3_k_m", "iq3_s": "iq3_s_m", "iq3_xxs": "iq3_xxs_m",
    "q2_k": "q2_k_m", "iq2_s": "iq2_s_m", "iq2_xs": "iq2_xs_m", "iq2_xxs": "iq2_xxs_m",
}  # fmt: skip
_PARTS: Mapping[ExpertChoice, tuple[Choice, Choice]] = {  # of gate and up, and of down
    "q5_k_m": ("q5_k", "q6_k"), "q4_k_m": ("q4_k", "q5_k"), "q3_k_m": ("q3_k", "q4_k"), "q2_k_m": ("q2_k", "q3_k"),
    "iq3_s_m": ("iq3_s", "iq4_xs"), "iq3_xxs_m": ("iq3_xxs", "iq4_xs"), "iq2_s_m": ("iq2_s", "iq3_s"),
    "iq2_xs_m": ("iq2_xs", "iq3_xxs"), "iq2_xxs_m": ("iq2_xxs", "iq2_s"),
}  # fmt: skip
# 8 bits for the matrix that makes logits, which are what is sampled from, and for embeddings.
_HEAD_FORMAT: Choice = "q8_0"
# Where rows are no whole number of blocks of 256, never to one that loses more. Dense matrices are few bytes of a
# model: 8 bits. Experts are nearly all of it: the next of the formats with blocks of 32, as in llama.cpp's files.
_FALLBACKS: Mapping[Format, Format] = {
    "q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q3_k": "iq4_nl", "q2_k": "iq4_nl",
    "iq3_s": "iq4_nl", "iq3_xxs": "iq4_nl", "iq2_s": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_xxs": "iq4_nl",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The formats that experts and dense matrices are to be stored in; `keep` is the format of the source.

    experts: of all parts, or a mixture (`q4_k_m`). dense: of all matrices, or `more`: 8 bits, and where there are no
    experts, so that dense matrices are a third of a model, 6.
    """

    experts: ExpertChoice = "keep"
    dense: DenseChoice = "keep"

    @property
    def tag(self) -> str:
        """`q4_k` where it is what --quant means by that, else `q4_k-q8_0`."""
        if self == FITTED:
            return "fitted"
        return next((name for name in CHOICES if _named(name) == self), f"{self.experts}-{self.dense}")

    def of(self, state: str) -> str:
        """Extends a fingerprint or locator of a source, so that different choices give different texts."""
        both = self.experts if self.experts == self.dense else f"{self.experts}-{self.dense}"
        return state if self == KEEP else f"{state} as {both}"


def _named(name: Choice) -> Quantisation:
    """What --quant means by a name."""
    return Quantisation(_MIXTURES.get(name, name), name if name in ("keep", "q8_0") else "more")


KEEP = Quantisation()
FITTED = Quantisation("fitted", "fitted")
SMALL = Quantisation("q4_k_m", "more")  # what is offered to whoever is about to store all bits of a model


def chosen(quant: str | None, experts: str | None = None, dense: str | None = None) -> Quantisation | None:
    """Returns the choice of --quant and of the options that override it; None without any. Raises UsageError.

    --quant means what files of that name are elsewhere: a mixture. The other two mean their formats and no others.
    """
    for option, value in (("--quant", quant), ("--quant-experts", experts), ("--quant-dense", dense)):
        if value is not None and value not in CHOICES:
            numbers = "; `pull` also takes a number of bits a weight, such as 4.5" if option == "--quant" else ""
            raise UsageError(f"unknown {option} {value[:100]!r}; known: {', '.join(CHOICES)}{numbers}")
    if quant is experts is dense is None:
        return None
    mixture = _named(cast(Choice, quant or "keep"))
    return Quantisation(cast(ExpertChoice, experts or mixture.experts), cast(DenseChoice, dense or mixture.dense))


@dataclass(frozen=True, slots=True)
class DenseTensor:
    """A tensor of the dense file and what it is made of."""

    source: str  # its name in the checkpoint
    format: Format
    shape: tuple[int, ...]


class FormatPlan:
    """Chooses the format of each matrix, and remembers where it could not be the wanted one."""

    def __init__(self) -> None:
        self._departures: dict[tuple[str, int, Format, Format], list[str]] = {}  # kind, columns, wanted, found -> names
        self._kept: dict[str, list[str]] = {}  # kind -> names of what is in mxfp4 already

    def fit(self, kind: str, name: str, wanted: Choice, cols: int, source: Format) -> Format:
        """Returns the wanted format or its fallback, if its blocks divide the rows; else the format of the source."""
        if wanted == "keep" or wanted == source:
            return source
        if source == "mxfp4":
            self._kept.setdefault(kind, []).append(name)
            return source
        fallback = _FALLBACKS.get(wanted, wanted)
        options: Sequence[Format] = (wanted, "q8_0" if kind == "dense" and fallback != wanted else fallback)
        found = next((each for each in options if cols % FORMAT_BLOCKS[each][0] == 0), source)
        if found != wanted:
            self._departures.setdefault((kind, cols, wanted, found), []).append(name)
        return found

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Returns a line for each reason why a format is not the wanted one."""
        kept = (
            f"{_listed(kind, names)}: comes in mxfp4, which other formats would only make larger and less exact; "
            "stored as mxfp4"
            for kind, names in self._kept.items()
        )
        departures = (
            f"{_listed(kind, names)}: rows of {cols} are no whole number of {wanted} blocks "
            f"({FORMAT_BLOCKS[wanted][0]}); stored as {found}, {bits_of(found):g} bits a weight instead of "
            f"{bits_of(wanted):g}"
            for (kind, cols, wanted, found), names in self._departures.items()
        )
        return (*kept, *departures)


def bits_of(format: Format) -> float:
    """Bits of a weight, with its share of the scales."""
    weights, num_bytes = FORMAT_BLOCKS[format]
    return 8 * num_bytes / weights


def _listed(kind: str, names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {kind} tensors"


def _parts(wanted: ExpertChoice) -> tuple[Choice, Choice]:
    """Of gate and up, and of down."""
    return _PARTS[wanted] if wanted in _PARTS else (cast(Choice, wanted), cast(Choice, wanted))


def expert_formats(
    plan: TensorPlan, wanted: ExpertChoice, sources: Mapping[str, Format], formats: FormatPlan
) -> dict[str, Format]:
    """Returns the format of each part of an expert. Biases stay as they are in the source."""
    others, down = _parts(wanted)
    return {
        part: formats.fit("expert", f"expert {part}", down if part == "down" else others, shape[-1], sources[part])
        if len(shape) > 1
        else sources[part]
        for part, shape in plan.parts.items()
    }


def dense_tensors_of(
    plan: TensorPlan, asked: Quantisation, sources: Mapping[str, Format], formats: FormatPlan
) -> dict[str, DenseTensor]:
    """Returns every tensor of the dense file by its stored name. sources: the formats where none is wanted."""
    if asked.dense == "more":
        wanted: Choice = "q6_k" if plan.moe.dense else "q8_0"
        of_tables, _ = _parts(asked.experts)  # as large as all experts, or larger
    else:
        wanted = of_tables = cast(Choice, asked.dense)
    kinds: dict[str, Choice] = {name: of_tables if name in plan.lookups else wanted for name in plan.matrices}
    if wanted != "keep":
        kinds = dict.fromkeys(plan.lookups, _HEAD_FORMAT) | kinds
    dense = {
        name: DenseTensor(name, formats.fit("dense", name, kinds.get(name, "keep"), shape[-1], sources[name]), shape)
        for name, shape in plan.dense.items()
    }
    if wanted != "keep" and plan.head is not None:
        source, stored = plan.head
        shape = plan.dense[source]
        if dense[source].format != _HEAD_FORMAT:  # else the embedding that it is tied to is in that format, too
            head = formats.fit("dense", stored, _HEAD_FORMAT, shape[-1], sources[source])
            if head == _HEAD_FORMAT:
                if source not in plan.lookups:
                    del dense[source]
                dense[stored] = DenseTensor(source, head, shape)
    return dense
