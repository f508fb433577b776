"""Trains the maps from states to routing: Adam on the log loss, each token on its own, in a drawn order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from moeinf.runtime.policy.state_maps import REACH, map_shapes
from moeinf.traces.trace import Trace
from moeinf.types import Float32Array

BATCH: Final = 256  # tokens that a step learns from
EPOCHS: Final = 10  # 30 recall at most 0.002 more
LEAST_STEPS: Final = 400  # where there is little to learn from, it is gone through more often
RATE: Final = 1e-2  # of the first step; it falls to nothing in a line


def train_maps(trace: Trace, seed: int, progress: Callable[[int, int], None]) -> dict[str, Float32Array]:
    """Weights as map_shapes says, of a trace with states; the same for the same seed. progress(done, all) in steps."""
    assert trace.states is not None
    generator = torch.Generator().manual_seed(seed)
    shapes = map_shapes(trace.shape, trace.hidden_size)
    chance = trace.shape.top_k / trace.shape.num_experts
    first = math.log(chance / (1 - chance)) if chance < 1 else 0.0
    reduce = torch.randn(shapes["reduce"], generator=generator) * trace.hidden_size**-0.5
    expand, bias = torch.zeros(shapes["expand"]), torch.full(shapes["bias"], first)
    weights = [each.requires_grad_() for each in (reduce, expand, bias)]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    steps = max(LEAST_STEPS, EPOCHS * math.ceil(trace.num_tokens / BATCH))
    order: list[int] = []
    for step in range(steps):
        if len(order) < BATCH:
            order += torch.randperm(trace.num_tokens, generator=generator).tolist()
        tokens, order = order[:BATCH], order[BATCH:]
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        states = torch.from_numpy(trace.states[tokens].astype(np.float32)).transpose(0, 1)
        logits = torch.baddbmm(bias[:, None], torch.bmm(states, reduce), expand)  # [L, tokens, REACH * E]
        labels = torch.from_numpy(labels_of(trace, tokens))
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, steps)
    return {name: each.detach().numpy().copy() for name, each in zip(shapes, weights, strict=True)}


def labels_of(trace: Trace, tokens: list[int]) -> Any:
    """[L, tokens, REACH * E]: 1 where a token uses the expert in the layer, or in one of those behind it."""
    layers, experts = trace.shape.num_layers, trace.shape.num_experts
    used = np.zeros((layers + REACH - 1, len(tokens), experts), np.float32)
    np.put_along_axis(used[:layers], trace.experts[tokens].swapaxes(0, 1), 1, axis=2)
    return np.concatenate([used[ahead : ahead + layers] for ahead in range(REACH)], axis=2)
