"""Finds the scheme of a matrix by the tensors that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from moeinf.errors import CheckpointError
from moeinf.pull.coded.bitsandbytes import table
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.float4 import float4
from moeinf.pull.coded.float8 import CODES, float8
from moeinf.pull.coded.integers import integers
from moeinf.pull.coded.scheme import POWERS, Pool, Scheme, Shape
from moeinf.pull.coded.transposed import codes_name, transposed

_BEHIND = (  # what may stand behind the name of a matrix
    "_packed", "_scale_inv", "_scale", "_scale_2", "_global_scale", "_zero_point", "_g_idx", "_shape",
    ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4",
)  # fmt: skip
_IN_PLACE = ("qweight", "qzeros", "scales", "g_idx")  # what may stand in place of `weight`
# Of activations and of keys and values, which moeinf computes with as they are.
_ACTIVATIONS = re.compile(
    r".*[._](input_(scale|zero_point|global_scale)|output_scale|activation_scale|(kv?|q|v)(_proj)?_(scale|zero_point))"
)


def codes_of(pool: Pool, name: str) -> str | None:
    """Returns the tensor that has the codes of a matrix, or is the matrix; None where there is neither."""
    return next(iter(codings_of(pool, name)), None)


def codings_of(pool: Pool, name: str) -> list[str]:
    """Returns all tensors that may have the codes of a matrix, or are the matrix: one, in a sound checkpoint."""
    names = (name, name + "_packed", codes_name(name)) if name.endswith("weight") else (name, name + "_packed")
    return [each for each in names if pool.found(each)]


def stale_codings(pool: Pool, unnamed: Set[str]) -> set[str]:
    """Returns the tensors of codings that the index does not name, of matrices of which it names another coding.

    unnamed: the tensors that the index does not name.
    """
    stale = set[str]()
    for name in unnamed:
        stem = name.removesuffix("qweight")
        matrix = name.removesuffix("_packed") if stem == name else f"{stem}weight"
        codings = codings_of(pool, matrix)
        if name in codings and not set(codings) <= unnamed:
            stale |= {name, *belonging(pool, matrix)} & unnamed
    return stale


def scheme_of(pool: Pool, name: str, shape: Shape, declared: Declared, shares: int = 1) -> Scheme | None:
    """Returns how a matrix of the plan is coded; None for one that is there as it is, or not at all.

    shares: of its rows, which may have been coded one by one.

    Raises CheckpointError where tensors are missing or have other shapes, UnsupportedModelError where moeinf does not
    read them.
    """
    codes = codes_of(pool, name)
    place = pool.found(codes) if codes else None
    if codes is None or place is None:
        return None
    if len(several := codings_of(pool, name)) > 1:
        raise CheckpointError(
            f"the matrix {name!r} is there as {several[0]!r} and as {several[1]!r}; remove one of the two, or let the "
            "index name one alone"
        )
    dtype = place[1].dtype
    if codes == name:
        if not declared.method and not any(pool.found(name + end) for end in ("_scale", "_scale_inv", ".quant_map")):
            return None
        if dtype == CODES:
            return float8(pool, name, shape, declared, shares)
        scales = pool.found(f"{name}_scale")
        if dtype == "I8" and scales and scales[1].dtype == POWERS:
            return float4(pool, name, shape, declared)
        if dtype == "I8":
            return integers(pool, name, shape, declared)
        if dtype == "U8" and pool.found(f"{name}.quant_map"):
            return table(pool, name, shape, declared)
        if dtype == "U8" and scales:
            return float4(pool, name, shape, declared)
        return None
    if codes == name + "_packed":
        return (float4 if dtype == "U8" else integers)(pool, name, shape, declared)
    return transposed(pool, name, shape, declared)


def belonging(pool: Pool, name: str) -> Iterable[str]:
    """Yields the tensors that by their names are parts of a coded matrix."""
    names = [name + end for end in _BEHIND]
    if name.endswith("weight"):
        names += [name.removesuffix("weight") + each for each in _IN_PLACE]
    return (each for each in names if pool.found(each))


def is_of_activations(name: str) -> bool:
    return bool(_ACTIVATIONS.fullmatch(name))
