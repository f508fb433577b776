"""Trains the network: Adam on the log loss of both labels, over stretches of consecutive passes in a drawn order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from moeinf.bench.tuning.lessons import HORIZON, Lessons
from moeinf.bench.tuning.network import HALF_LIVES, UseNetwork
from moeinf.types import Float32Array

STRETCH: Final = 128  # passes that a step learns from
LEAST_STEPS: Final = 200  # where there is little to learn from, it is gone through more often
RATE: Final = 2e-3  # of the first steps but the very first; it falls to nothing in a line
WARM_UP: Final = 100  # steps


def train(lessons: Lessons, rounds: int, seed: int, progress: Callable[[int, int], None]) -> dict[str, Float32Array]:
    """Weights after `rounds` of going through all passes; the same for the same seed. progress(done, all) in steps."""
    generator = torch.Generator().manual_seed(seed)
    network = UseNetwork(lessons.shape, generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, betas=(0.9, 0.99))
    used = lessons.used()
    frequency = _frequencies(used)
    starts = range(0, len(used), STRETCH)
    steps = max(rounds * len(starts), LEAST_STEPS)
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(starts), generator=generator).tolist()
        number = order.pop()
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
        loss = _loss(network, lessons, used, starts[number], frequency[number])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, steps)
    return network.weights()


def _loss(
    network: UseNetwork, lessons: Lessons, used: Float32Array, start: int, frequency: Float32Array
) -> torch.Tensor:
    end = min(start + STRETCH, len(used))
    before = used[start - 1 : start] if start else np.zeros_like(used[:1])
    inputs = np.concatenate([before, used[start:end]])
    evidence = torch.from_numpy(lessons.evidence[start:end].astype(np.float32))
    logits = network(torch.from_numpy(inputs), torch.from_numpy(frequency), evidence)
    counts = torch.from_numpy(lessons.counts[start:end].astype(np.float32))
    labels = torch.from_numpy(labels_of(used, start, end)).permute(1, 0, 2, 3)
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=(0, 2, 3))
    return (losses * counts).sum() / counts.sum().clamp(min=1)


def labels_of(used: Float32Array, start: int, end: int) -> Float32Array:
    """[passes, L, 2, E]: whether the next token uses an expert, and whether any of the next HORIZON does."""
    labels = np.zeros((end - start, used.shape[1], 2, used.shape[2]), np.float32)
    for ahead in range(1, HORIZON + 1):
        later = used[start + ahead : end + ahead]
        np.maximum(labels[: len(later), :, 1], later, out=labels[: len(later), :, 1])
        if ahead == 1:
            labels[: len(later), :, 0] = later
    return labels


def _frequencies(used: Float32Array) -> Float32Array:
    """[stretches, half-lives, L, E]: decayed means of what was used before each stretch."""
    decays = np.exp2(-1 / np.array(HALF_LIVES))[:, None, None]
    running = np.zeros((len(HALF_LIVES), *used.shape[1:]))
    kept = []
    for number, row in enumerate(used):
        if number % STRETCH == 0:
            kept.append(running.astype(np.float32))
        running *= decays
        running += (1 - decays) * row
    return np.stack(kept)
