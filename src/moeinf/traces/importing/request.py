"""A request of another recorder, as lists, and how requests become a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeinf.errors import MALFORMED, in_a_line
from moeinf.traces.trace import Trace, check, joined
from moeinf.types import MoeShape


class ForeignError(Exception):
    """A file is not what its form says; the text says why."""


@dataclass(frozen=True, slots=True)
class ForeignRequest:
    """experts, weights, and look-ahead's guesses with theirs, [tokens][layers][top_k] each.

    prompt_tokens: the first ones, that were prefill; passes: how many tokens each ran. None: not known.
    """

    experts: Sequence[Any]
    prompt_tokens: int | None
    passes: Sequence[int] | None
    weights: Sequence[Any] | None = None
    guesses: Sequence[Any] | None = None
    guess_weights: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """What was read of a recorder: requests of one model, whose every layer has num_experts experts; 0: not known."""

    model: str
    num_experts: int
    requests: Sequence[ForeignRequest]


def trace_of(foreign: Foreign) -> Trace:
    """Raises ForeignError for requests that are ragged, or of different models."""
    parts: list[Trace] = []
    if foreign.requests and not foreign.num_experts:
        raise ForeignError("it does not say how many experts a layer has: give --num-experts")
    for number, request in enumerate(foreign.requests):
        try:
            experts = np.array(request.experts, np.int64)
            shape = MoeShape(experts.shape[1], foreign.num_experts, experts.shape[2])
            if parts and shape != parts[0].shape:
                raise ValueError(f"it has {_text(shape)}, those before {_text(parts[0].shape)}")
            part = Trace(
                foreign.model,
                shape,
                experts,
                np.array([0, len(experts)]),
                None if request.passes is None else np.cumsum([0, *request.passes]),
                None if request.prompt_tokens is None else np.array([request.prompt_tokens]),
                _array(request.weights, np.float32),
                _array(request.guesses, np.int64),
                _array(request.guess_weights, np.float32),
                model=foreign.model,
            )
            check(part)
        except MALFORMED as error:
            reason = "tokens or layers are missing" if "inhomogeneous" in str(error) else in_a_line(error)
            raise ForeignError(f"request {number + 1} does not fit ({reason})") from error
        parts.append(part)
    if not parts:
        raise ForeignError("it holds no request")
    return joined(parts)


def _array(rows: Sequence[Any] | None, kind: type[np.generic]) -> Any:
    return None if rows is None else np.array(rows, kind)


def _text(shape: MoeShape) -> str:
    return f"{shape.num_layers} layers and {shape.top_k} experts a token"
