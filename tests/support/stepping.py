"""Answers made alone, with the steps that they wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Chooser, Monitor, generate
from moeinf.sampling.step_queue import StepModel, Steps


def stepped(
    model: StepModel,
    sequence: CachedTokens,
    prompt: Sequence[int],
    chooser: Chooser,
    monitor: Monitor,
    *,
    max_tokens: int,
    chunk: int,
) -> Iterator[int]:
    """The tokens of `generate`."""
    steps = Steps(model)
    with steps.seat() as seat:
        for token in generate(seat, sequence, prompt, chooser, monitor, max_tokens=max_tokens, chunk=chunk):
            if token is None:
                steps.run()
            else:
                yield token
