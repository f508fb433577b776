"""Rotary positions: which angle each pair of a head's dimensions is rotated by, at each position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.soft_tokens import SoftTokens, positions_3d
from moeinf.types import Float32Array, FloatArray, IntArray

_WIDEST = 1 << 16  # numbers of a head that positions rotate: a table of them is made before a weight is read


@dataclass(frozen=True, eq=False)
class Rope:
    """Pair i of a token at position p is rotated by p * frequencies[i]; cos and sin are multiplied by `scale`.

    Over the first 2 * len(frequencies) dimensions of a head; the others stay as they are. Pairs are (i, i + half), or,
    interleaved, (2 i, 2 i + 1).

    dynamic and longrope have other frequencies for sequences beyond a limit (`within`). Keys are kept rotated, so all
    tokens of a sequence are computed anew when an answer grows across it, as published code does (Phi-3.5-MoE). Then a
    sequence gives the same at once, in chunks and token by token, and no token is rotated unlike its neighbours.
    dynamic has frequencies of its own for every length; beyond the limit they are those of the tokens that there is
    room for. (transformers goes by the length so far, and leaves the keys before as they are.)
    """

    frequencies: Float32Array  # [rotary_dim / 2]
    scale: float = 1.0  # yarn and longrope: of queries and keys
    interleaved: bool = False
    limit: int = 0  # a sequence of more tokens has the positions that `beyond` gives for its room
    beyond: Callable[[int], Rope] | None = None
    axes: IntArray | None = None  # of each frequency: whether it turns by time, row or column; None: all are alike
    unstretched: Float32Array | None = None  # the frequencies that the config stretched, where it did
    learned: str | None = None  # a tensor, whose exponentials multiply the frequencies; with no `beyond`

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.frequencies)

    def within(self, room: int, length: int) -> Rope:
        """The positions of a sequence of so many tokens that has room for more; one object for all up to the limit."""
        return self if self.beyond is None or length <= self.limit else self.beyond(room)

    def tables(
        self, start: int, num_tokens: int, pictures: Sequence[SoftTokens] = ()
    ) -> tuple[Float32Array, Float32Array]:
        """cos and sin [num_tokens, rotary_dim / 2] of the tokens from `start`, in a sequence with these pictures."""
        if self.axes is None or not pictures:
            positions = np.arange(start, start + num_tokens, dtype=np.float32)[:, None]
        else:
            positions = positions_3d(pictures, start, num_tokens).T[:, self.axes].astype(np.float32, "C")
        angles = positions * self.frequencies
        scale = np.float32(self.scale)
        return np.cos(angles) * scale, np.sin(angles) * scale


def plain_rope(rotary_dim: int, theta: float, interleaved: bool = False) -> Rope:
    """frequencies theta^(-2 i / rotary_dim) (RoFormer, arXiv 2104.09864, section 3.2.2)."""
    return Rope(_plain(rotary_dim, theta).astype(np.float32), interleaved=interleaved)


def rope_fields(f: Fields) -> Fields:
    """The object of config.json that describes positions, under either of its names; empty where there is none."""
    name = next((name for name in ("rope_scaling", "rope_parameters") if f.get(name)), "rope_parameters")
    return f.within(name)


def names_positions(f: Fields) -> bool:
    """Whether config.json says how positions are turned: {} asks for plain ones in rope_parameters alone."""
    return bool(f.get("rope_scaling")) or f.get("rope_parameters") is not None


def whole_heads(f: Fields) -> None:
    """Refuses positions of a part of each head: of a family for which readers differ in what partial_rotary_factor is.

    transformers ignores it there where positions are of the default kind, and fails at others; "proportional" alone has
    a meaning in whole heads.
    """
    if rope_kind(f) != "proportional":
        for fields in (f, rope_fields(f)):
            fields.only("partial_rotary_factor", 1.0, None)


def partial_rotary(f: Fields, head_dim: int, default: float = 1.0) -> int:
    """How many of a head's dimensions are rotated: partial_rotary_factor, from either place where it is kept."""
    factor = _share(f, default)
    if rope_kind(f) == "proportional":  # which counts its pairs by the whole head
        return head_dim
    rotated = int(head_dim * factor)
    if not 2 <= rotated <= head_dim or rotated % 2:
        size = size_of_heads(f, head_dim)
        raise CheckpointError(f"{f.where}: partial_rotary_factor {factor} of a head is no even number: {size}")
    return rotated


def _share(f: Fields, default: float) -> float:
    """default: where the field is missing. Null means whole heads to transformers, whatever the family's default is."""
    missing = 1.0 if "partial_rotary_factor" in f else default
    return rope_fields(f).number("partial_rotary_factor", f.number("partial_rotary_factor", missing))


def rope_of(
    f: Fields,
    rotary_dim: int,
    theta: float,
    context_length: int,
    *,
    interleaved: bool = False,
    also: tuple[str, ...] = (),
) -> Rope:
    """The positions that config.json describes, in the spelling of old and new transformers.

    rotary_dim: the caller has heeded partial_rotary_factor. theta: the family's default. context_length:
    max_position_embeddings. also: further fields of the object that the caller has handled, or that cannot matter.
    Raises UnsupportedModelError for a type or a field that is not known.
    """
    r, kind = rope_fields(f), rope_kind(f)
    scaling = _SCALINGS.get(kind) if isinstance(kind, str) else None
    if scaling is None:
        raise UnsupportedModelError(f"{r.where} of type {kind!r:.100} is not supported (only {', '.join(_KINDS)})")
    names, make = scaling
    if kind == "default":
        r.only("factor", 1, None)  # which changes nothing
        names = ("factor",)
    r.refuse_others("rope_type", "type", "rope_theta", "partial_rotary_factor", *names, *also)
    theta, trained = r.number("rope_theta", f.number("rope_theta", theta)), _trained(f, context_length)
    if rotary_dim % 2:
        raise CheckpointError(f"{f.where}: {size_of_heads(f, rotary_dim)}; positions rotate pairs of an even size")
    if rotary_dim > _WIDEST:
        raise CheckpointError(f"config.json: positions rotate {rotary_dim} numbers of a head; moeinf takes {_WIDEST}")
    if theta <= 1 or trained < 2:
        raise CheckpointError(f"config.json: no positions have rope_theta {theta} and a trained length of {trained}")
    rope = make(_Source(r, rotary_dim, theta, context_length, trained, interleaved, _share(f, 1.0)))
    return replace(rope, unstretched=_plain(rotary_dim, theta).astype(np.float32))


def size_of_heads(f: Fields, size: int) -> str:
    """What says that heads, or parts of them, have this size."""
    names = ("qk_rope_head_dim", "head_dim", "global_head_dim")
    named = next((name for name in names if f.get(name) == size), None)
    hidden, heads = f.name_of("hidden_size"), f.name_of("num_attention_heads")
    return f"{hidden} by {heads} is {size}" if named is None else f"{named} is {size}"


def of_kind(f: Fields, kind: str) -> Fields:
    """The fields of a model whose kinds of layers have positions of their own, as one kind has them.

    rope_parameters is then an object of objects. Raises CheckpointError where it has none of this kind.
    """
    r = f.within("rope_parameters")
    if r.get(kind) is None:
        raise CheckpointError(f"{r.where}: {kind} is missing")
    r.within(kind)
    return f.replaced(rope_parameters=r.get(kind), rope_scaling=None)


def own_shares(f: Fields, *kinds: str) -> None:
    """Refuses a partial_rotary_factor for all kinds of layers, unless each kind has one of its own and it says nothing.

    Published checkpoints have both. rope_parameters is an object of objects, some of these kinds.
    """
    r = f.within("rope_parameters")
    if not all("partial_rotary_factor" in r.within(kind) for kind in kinds if kind in r):
        f.only("partial_rotary_factor", None)


def reach(f: Fields, context_length: int) -> int:
    """Tokens of the longest sequence: dynamic and yarn go beyond a max_position_embeddings that is the trained length.

    (Where a config was stretched before, as those of DeepSeek and gpt-oss, the two are equal.)
    """
    if rope_kind(f) not in ("dynamic", "yarn"):
        return context_length
    stretched = _trained(f, context_length) * rope_fields(f).number("factor", 1.0)
    return max(context_length, int(min(stretched, 1 << 30)))


def rope_kind(f: Fields) -> Any:
    """The type of positions, whatever it is."""
    r = rope_fields(f)
    return r.get("rope_type") or r.get("type") or "default"


def _trained(f: Fields, context_length: int) -> int:
    """Phi-3 and its kin keep it beside the object, or in both places."""
    name = "original_max_position_embeddings"
    inside = rope_fields(f).count(name, 0, minimum=0)
    beside = f.count(name, inside, minimum=0)
    if inside and beside != inside:
        raise CheckpointError(f"config.json: {name} is {beside}, and {inside} in {rope_fields(f).where.split()[-1]}")
    return beside or context_length


def mscale(factor: float, weight: float = 1.0) -> float:
    """By how much yarn multiplies queries and keys (arXiv 2309.00071, section 3.4); weight: DeepSeek's fields."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


@dataclass(frozen=True, slots=True)
class _Source:
    """What the formulas are given."""

    fields: Fields
    rotary_dim: int
    theta: float
    context_length: int  # max_position_embeddings
    trained: int  # original_max_position_embeddings
    interleaved: bool
    share: float  # partial_rotary_factor

    def factor(self) -> float:
        return self.fields.number("factor", self.context_length / self.trained)

    def rope(self, frequencies: FloatArray, scale: float = 1.0) -> Rope:
        return Rope(frequencies.astype(np.float32), scale, self.interleaved)


def _plain(rotary_dim: int, theta: float) -> FloatArray:
    frequencies: FloatArray = theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return frequencies


def _default(s: _Source) -> Rope:
    return s.rope(_plain(s.rotary_dim, s.theta))


def _proportional(s: _Source) -> Rope:
    """The fast pairs of the whole head alone, the others stand still (Gemma 4). rotary_dim is the head's."""
    pairs = s.rotary_dim // 2
    turned = int(s.share * s.rotary_dim // 2)
    return s.rope(_plain(s.rotary_dim, s.theta) * (np.arange(pairs) < turned) / s.fields.number("factor", 1.0))


def _linear(s: _Source) -> Rope:
    """Every position divided by `factor` (arXiv 2306.15595)."""
    return s.rope(_plain(s.rotary_dim, s.theta) / s.fields.number("factor"))


def _dynamic(s: _Source) -> Rope:
    """Beyond max_position_embeddings the base grows with the length (NTK-aware scaling; arXiv 2309.00071, app. A.1)."""
    factor, dim = s.fields.number("factor"), s.rotary_dim

    @cache
    def beyond(room: int) -> Rope:
        growth = factor * room / s.context_length - (factor - 1)
        return s.rope(_plain(dim, s.theta * growth ** (dim / (dim - 2))))

    if dim <= 2:
        raise UnsupportedModelError(f"{s.fields.where} of type 'dynamic' needs more than {dim} rotary dimensions")
    return Rope(_default(s).frequencies, 1.0, s.interleaved, s.context_length, beyond)


def _yarn(s: _Source) -> Rope:
    """Slow pairs divided by `factor`, fast ones as they were, and those between (arXiv 2309.00071, section 3)."""
    f, factor, dim = s.fields, s.factor(), s.rotary_dim

    def pair_of(turns: float) -> float:  # the pair that turns so often within the trained length
        return dim * math.log(s.trained / (turns * 2 * math.pi)) / (2 * math.log(s.theta))

    # 0 means the default, in mscale and mscale_all_dim none
    low, high = (
        pair_of(f.number("beta_fast", 0, zero=True) or 32.0),
        pair_of(f.number("beta_slow", 0, zero=True) or 1.0),
    )
    if f.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    slow = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    plain = _plain(dim, s.theta)
    # DeepSeek: a weight of both, which cancel where they are equal; theirs of the scores is the attention's affair
    weights = [f.number(name, 0.0, zero=True) for name in ("mscale", "mscale_all_dim")]
    scale = mscale(factor, weights[0]) / mscale(factor, weights[1]) if all(weights) else mscale(factor)
    return s.rope(plain / factor * slow + plain * (1 - slow), f.number("attention_factor", scale))


def _longrope(s: _Source) -> Rope:
    """Each pair divided by a factor of its own, others beyond the trained length (arXiv 2402.13753).

    Scale: short_mscale and long_mscale where the config has them (the published Phi-3.5-MoE), else attention_factor, or
    sqrt(1 + ln(factor) / ln(trained length)).
    """
    f, plain, factor = s.fields, _plain(s.rotary_dim, s.theta), s.factor()
    common = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(s.trained))
    common = f.number("attention_factor", common)
    short, long = (
        s.rope(plain / np.array(f.numbers(f"{name}_factor", len(plain))), f.number(f"{name}_mscale", common))
        for name in ("short", "long")
    )
    return Rope(short.frequencies, short.scale, s.interleaved, s.trained, lambda room: long)


def _llama3(s: _Source) -> Rope:
    """Slow pairs divided by `factor`, by wavelength (published code of Llama 3.1: apply_scaling)."""
    f, plain = s.fields, _plain(s.rotary_dim, s.theta)
    low, high = f.number("low_freq_factor"), f.number("high_freq_factor")
    if low > high:
        raise CheckpointError(f"{f.where}: low_freq_factor {low} is above high_freq_factor {high}")
    turns = s.trained * plain / (2 * math.pi)
    # Llama 4 Scout has 1 for both: nothing lies between fast and slow.
    fast = np.clip((turns - low) / (high - low), 0, 1) if low < high else np.where(turns >= low, 1.0, 0.0)
    return s.rope(plain / f.number("factor") * (1 - fast) + plain * fast)


_LONGROPE = (
    (
        "short_factor",
        "long_factor",
        "factor",
        "attention_factor",
        "original_max_position_embeddings",
        "short_mscale",
        "long_mscale",
    ),
    _longrope,
)
_SCALINGS: dict[str, tuple[tuple[str, ...], Callable[[_Source], Rope]]] = {  # the fields that each reads
    "default": ((), _default),
    "linear": (("factor",), _linear),
    "proportional": (("factor",), _proportional),
    "dynamic": (("factor",), _dynamic),
    "yarn": (
        (
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "original_max_position_embeddings",
        ),
        _yarn,
    ),
    "longrope": _LONGROPE,
    "su": _LONGROPE,  # its first name
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), _llama3),
}
_KINDS = [repr(kind) for kind in _SCALINGS if kind != "su"]
