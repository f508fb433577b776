"""Which experts tokens use instead of absent ones, step by step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeinf.runtime.cache.table import ABSENT, RESIDENT
from moeinf.types import Float32Array, IntArray, Spares


def substituted(
    states: npt.NDArray[np.uint8], ids: IntArray, weights: Float32Array, spares: Spares | None, most_lost: float
) -> tuple[IntArray, Float32Array]:
    """The routing that the layer is given: states [experts, slices]."""
    absent = (states == ABSENT).any(axis=1)
    resident = (states == RESIDENT).all(axis=1)
    for needed in [_given_up(each, absent, resident, most_lost)[1] for each in _tokens(ids, weights, spares)]:
        absent[needed], resident[needed] = False, True
    made = [_changed(each, _given_up(each, absent, resident, most_lost)[0]) for each in _tokens(ids, weights, spares)]
    return np.array([each for each, _ in made]), np.array([each for _, each in made], np.float32)


_Token = tuple[list[int], list[float], list[tuple[int, float]], bool]


def _tokens(ids: IntArray, weights: Float32Array, spares: Spares | None) -> list[_Token]:
    rows = range(len(ids))
    behind = [[] if spares is None else list(zip(spares.ids[t], spares.weights[t], strict=True)) for t in rows]
    keeps_sum = spares is not None and spares.keeps_sum
    return [(ids[t].tolist(), weights[t].astype(float).tolist(), behind[t], keeps_sum) for t in rows]


def _given_up(
    token: _Token, absent: npt.NDArray[np.bool_], resident: npt.NDArray[np.bool_], most_lost: float
) -> tuple[dict[int, tuple[int, float] | None], list[int]]:
    """What stands in for each place of the token that it gives up; the experts that it needs all the same."""
    ids, weights, spares, _ = token
    free = [(expert, weight) for expert, weight in spares if resident[expert] and expert not in ids]
    missing = sorted((weights[place], place) for place, expert in enumerate(ids) if absent[expert])
    given_up: dict[int, tuple[int, float] | None] = {}
    lost = 0.0
    for weight, place in missing:
        lost += weight / sum(weights)
        if lost > most_lost:
            break
        given_up[place] = free.pop(0) if free else None
    return given_up, [ids[place] for _, place in missing if place not in given_up]


def _changed(token: _Token, given_up: dict[int, tuple[int, float] | None]) -> tuple[list[int], list[float]]:
    ids, weights, _, keeps_sum = token
    if not given_up:
        return ids, weights
    chosen = [given_up.get(place, (expert, weights[place])) for place, expert in enumerate(ids)]
    heaviest = max((each for each in chosen if each is not None), key=lambda each: each[1])[0]
    grown = sum(weights) / sum(each[1] for each in chosen if each is not None) if keeps_sum else 1.0
    return (
        [heaviest if each is None else each[0] for each in chosen],
        [0.0 if each is None else each[1] * grown for each in chosen],
    )
