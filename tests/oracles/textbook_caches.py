"""Caches as their papers draw them: single accesses, plain lists, no scores. Each returns what it holds after each.

An access is a key (layer * num_experts + expert). Of equals the lowest key leaves, as everywhere in the project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Contents = list[frozenset[int]]


def by_value(keys: Sequence[int], size: int, value: Callable[[int, list[int]], object]) -> Contents:
    """A cache that evicts the smallest value(key, all accesses so far), never the key just accessed."""
    held: set[int] = set()
    contents: Contents = []
    for at, key in enumerate(keys):
        past = list(keys[: at + 1])
        if key not in held and len(held) == size:
            held.remove(min(held, key=lambda each: (value(each, past), each)))
        held.add(key)
        contents.append(frozenset(held))
    return contents


def times(key: int, past: list[int]) -> list[int]:
    return [at for at, each in enumerate(past) if each == key]


def lru(keys: Sequence[int], size: int) -> Contents:
    return by_value(keys, size, lambda key, past: times(key, past)[-1])


def lfu(keys: Sequence[int], size: int) -> Contents:
    return by_value(keys, size, lambda key, past: len(times(key, past)))


def decayed_lfu(keys: Sequence[int], size: int, num_experts: int, half_life: float) -> Contents:
    """Ages are counted in accesses of the key's own layer."""

    def frequency(key: int, past: list[int]) -> float:
        own = [each for each in past if each // num_experts == key // num_experts]
        return float(sum(0.5 ** ((len(own) - 1 - at) / half_life) for at in times(key, own)))

    return by_value(keys, size, lambda key, past: round(frequency(key, past), 9))


def lru_2(keys: Sequence[int], size: int) -> Contents:
    def last_two(key: int, past: list[int]) -> tuple[int, int]:
        used = [-1, *times(key, past)]
        return used[-2], used[-1]

    return by_value(keys, size, last_two)


def slru(keys: Sequence[int], size: int, most_protected: int) -> Contents:
    """Lists begin with what leaves next."""
    trial: list[int] = []
    protected: list[int] = []
    contents: Contents = []
    for key in keys:
        if key in protected:
            protected.remove(key)
            protected.append(key)
        elif key in trial:
            trial.remove(key)
            protected.append(key)
        else:
            if len(trial) + len(protected) == size:
                (trial if trial else protected).pop(0)
            trial.append(key)
        while len(protected) > most_protected:
            trial.append(protected.pop(0))
        contents.append(frozenset(trial + protected))
    return contents


def arc(keys: Sequence[int], c: int) -> Contents:
    """Megiddo and Modha, FAST 2003, figure 4, line by line; lists begin with what leaves next."""
    t1: list[int] = []
    t2: list[int] = []
    b1: list[int] = []
    b2: list[int] = []
    p = 0.0
    contents: Contents = []

    def replace(key: int) -> None:
        if len(t1) >= 1 and ((key in b2 and len(t1) == p) or len(t1) > p):
            b1.append(t1.pop(0))
        else:
            b2.append(t2.pop(0))

    for key in keys:
        if key in t1 + t2:
            (t1 if key in t1 else t2).remove(key)
            t2.append(key)
        elif key in b1:
            p = min(c, p + max(len(b2) / len(b1), 1))
            replace(key)
            b1.remove(key)
            t2.append(key)
        elif key in b2:
            p = max(0, p - max(len(b1) / len(b2), 1))
            replace(key)
            b2.remove(key)
            t2.append(key)
        else:
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    replace(key)
                else:
                    t1.pop(0)
            elif len(t1) + len(b1) < c and len(t1 + t2 + b1 + b2) >= c:
                if len(t1 + t2 + b1 + b2) == 2 * c:
                    b2.pop(0)
                replace(key)
            t1.append(key)
        contents.append(frozenset(t1 + t2))
    return contents
