"""Finds how much of their experts' weight tokens may lose, so that their distributions stay near enough to the exact
ones on a text."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Final

import numpy as np

from moeinf.engine.approximate.distributions import divergence, log_softmax
from moeinf.engine.reporting import Notify
from moeinf.engine.runner import ModelRunner
from moeinf.errors import UsageError
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.runtime.approximate import ApproximateExperts, Within
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Float32Array, FloatArray, Phase

LEVELS: Final = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8)  # of most_lost
PROMPT_TOKENS: Final = 32  # that are read before anything is measured
MEASURED_TOKENS: Final = 128
LEAST_TOKENS: Final = 16  # of a text
_CHARACTERS: Final = 16  # of a text for each token, at most


def tokens_of(text: str, tokenizer: Tokenizer, room: int) -> list[int]:
    """The tokens that are measured on: of the end of a text, as many as there is room for. Raises UsageError."""
    most = min(PROMPT_TOKENS + MEASURED_TOKENS, room)
    tokens = tokenizer.encode(text[-_CHARACTERS * most :])[:most]
    if len(tokens) < LEAST_TOKENS:
        raise UsageError(
            f"--approx: {len(tokens)} tokens are too few to measure on, of which {LEAST_TOKENS} are the least; give a "
            "longer --approx-text, and room for it in the context"
        )
    return tokens


def calibrated(
    runner: ModelRunner, experts: ApproximateExperts, tokens: Sequence[int], budget: float, step: Notify
) -> Within:
    """The most that tokens may lose for the budget, of LEVELS; the experts are left as that says.

    step: told what is being measured. Raises as ModelRunner.step.
    """
    found = Within(budget)
    best, beyond = -1, len(LEVELS)
    most_total = budget * (len(tokens) - _prompt_of(tokens))
    with tempfile.TemporaryFile() as exact:
        experts.within = found
        step("measuring what --approx costs: the exact answers")
        for row in _decoded(runner, tokens):
            exact.write(_logs(row).astype(np.float32).tobytes())
        while beyond - best > 1:
            level = (best + beyond) // 2
            step(f"measuring what --approx costs: {LEVELS[level]:.0%} of the experts' weight")
            experts.within = Within(budget, most_lost=LEVELS[level])
            exact.seek(0)
            measured = _divergence(_decoded(runner, tokens), exact, most_total)
            if measured <= budget:
                best, found = level, Within(budget, measured, LEVELS[level])
            else:
                beyond = level
    runner.cache.truncate(0)
    runner.tier.end_request()
    if not (experts.instead or experts.left_out):
        found = Within(budget)  # whatever a token may do without, it has nothing of the kind
    experts.within = found
    return found


def _decoded(runner: ModelRunner, tokens: Sequence[int]) -> Iterator[Float32Array]:
    """Logits [vocab] behind each token of a text but the first ones, which are its prompt."""
    cache, prompt, at = runner.cache, _prompt_of(tokens), 0
    cache.truncate(0)
    _begin(runner, "prefill")
    while at < prompt:
        piece = tokens[at : min(prompt, at + runner.plan.most_at_once)]
        runner.step([NewTokens(piece, cache, prompt)], _goes_on)
        at += len(piece)
    _begin(runner, "decode")
    for token in tokens[prompt:]:
        yield runner.step([NewTokens([token], cache)], _goes_on)[0]


def _goes_on() -> None:
    """Between two layers: nobody gives up what is measured."""


def _prompt_of(tokens: Sequence[int]) -> int:
    return min(PROMPT_TOKENS, len(tokens) // 2)


def _begin(runner: ModelRunner, phase: Phase) -> None:
    for observer in runner.observers:
        observer.begin(phase)


def _divergence(rows: Iterator[Float32Array], exact: IO[bytes], most_total: float) -> float:
    """The mean of KL(exact || rows); infinity as soon as their sum is beyond most_total."""
    total, count = 0.0, 0
    for row in rows:
        total += float(divergence(np.frombuffer(exact.read(row.nbytes), np.float32), _logs(row)))
        count += 1
        if total > most_total:
            return float("inf")
    return max(0.0, total / count)


def _logs(logits: Float32Array) -> FloatArray:
    """Logarithms of the probabilities, so exact that the smallest budget means something."""
    return log_softmax(logits.astype(np.float64))
