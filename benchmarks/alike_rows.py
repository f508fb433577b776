"""What it saves to answer requests side by side that use the same experts: on recorded routing, by how they are chosen.

    python benchmarks/alike_rows.py TRACES --rows 16,32

TRACES: a folder with routing.npz (experts [tokens, layers, top_k], offsets of sequences). Of each sequence the first
fifth, 32 tokens at most, stands for what is known when it begins, and the rest is decoded, side by side with the
others of its group. Printed are experts that a step reads for each of its rows, the union of a layer once: of groups
by chance, by what is known of each, and by the routing of the tokens that are decoded, which nobody knows before.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]
Routing = npt.NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--rows", default="16,32")
    parser.add_argument("--orders", type=int, default=5, help="by chance, of which the mean counts")
    given = parser.parse_args()
    with np.load(given.traces / "routing.npz") as file:
        experts, offsets, num_experts = file["experts"], file["offsets"], int(file["n_experts"])
    sequences = [experts[a:b] for a, b in itertools.pairwise(offsets) if b - a >= 40]
    known = [min(32, len(each) // 5) for each in sequences]
    decoded = [each[count:] for each, count in zip(sequences, known, strict=True)]
    before = profiles([each[:count] for each, count in zip(sequences, known, strict=True)], num_experts)
    print(f"{given.traces.name}: {len(sequences)} sequences, {experts.shape[1]} layers x {num_experts} experts")
    for rows in map(int, given.rows.split(",")):
        rng = np.random.default_rng(0)
        chance = [groups_of(rng.permutation(len(sequences)), rows) for _ in range(given.orders)]
        by_chance = float(np.mean([read(decoded, each, num_experts) for each in chance]))
        print(f"{rows} rows: {by_chance:6.2f} experts a token by chance", end="")
        for name, profile in (("what is known", before), ("what comes", profiles(decoded, num_experts))):
            found = read(decoded, alike(profile, rows), num_experts)
            print(f", {found:6.2f} by {name} ({100 * (found / by_chance - 1):+.1f} %)", end="")
        print()


def profiles(parts: Sequence[Routing], num_experts: int) -> Counts:
    """How often each part uses each expert, [parts, layers * experts], of length 1."""
    found = []
    for part in parts:
        layers = part.shape[1]
        keys = part.astype(np.int64) + num_experts * np.arange(layers)[None, :, None]
        counts = np.bincount(keys.ravel(), minlength=layers * num_experts).astype(np.float64)
        found.append(counts / np.linalg.norm(counts))
    return np.array(found)


def groups_of(order: npt.NDArray[np.int64], rows: int) -> list[list[int]]:
    return [order[at : at + rows].tolist() for at in range(0, len(order) - rows + 1, rows)]


def alike(profile: Counts, rows: int) -> list[list[int]]:
    """Groups of those whose profiles are most alike: each begins with the one that is least like all that are left."""
    left, found = list(range(len(profile))), list[list[int]]()
    while len(left) >= rows:
        rest = profile[left]
        seed = left[int((rest @ rest.mean(0)).argmin())]
        near = sorted(left, key=lambda each: -float(profile[each] @ profile[seed]))[:rows]
        found.append(near)
        left = [each for each in left if each not in set(near)]
    return found


def read(decoded: Sequence[Routing], groups: Sequence[Sequence[int]], num_experts: int) -> float:
    """Experts that are read for a token: of each step of a group the union of each layer, while all of it decode."""
    experts = tokens = 0
    for group in groups:
        steps = min(len(decoded[each]) for each in group)
        routed = np.stack([decoded[each][:steps] for each in group], 2)  # [steps, layers, rows, top_k]
        flat = routed.reshape(steps, routed.shape[1], -1)
        used = np.zeros((*flat.shape[:2], num_experts), bool)
        np.put_along_axis(used, flat.astype(np.int64), True, 2)
        experts += int(used.sum())
        tokens += steps * len(group)
    return experts / tokens


if __name__ == "__main__":
    main()
