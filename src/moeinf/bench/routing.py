"""A recorded trace as the routing of a benchmark: checked against the model before anything is read."""

from __future__ import annotations

from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.guess_options import GuessOptions
from moeinf.errors import UsageError
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.predictors import DEFAULT
from moeinf.traces.guesses import guesses_of, quality_of
from moeinf.traces.replayed import RecordedRouting
from moeinf.traces.trace import ABSENT, Trace, load_trace
from moeinf.types import MoeShape


def recorded_routing(
    folder: Path, shape: MoeShape, config: RuntimeConfig, num_tokens: int, guess: GuessOptions
) -> RecordedRouting:
    """The routing of a trace for a model of that shape, and for so many tokens of all requests together.

    Raises UsageError for what is no trace, a trace of another model, one of fewer tokens, and one without the guesses
    that the predictor asks for.
    """
    trace = load_trace(folder, num_tokens)
    _check_shape(trace, shape, folder)
    if trace.num_tokens < num_tokens:
        raise UsageError(
            f"--routing {folder}: the trace has {trace.num_tokens} tokens, and -p, -n and -r ask for {num_tokens}; "
            "lower them"
        )
    guesses = guesses_of(trace, quality_of(guess), guess.seed)
    asked = config.experts.prefetch and LookAheadPredictor.name in (config.experts.predictor or DEFAULT).split("+")
    if guesses is None and asked:
        raise UsageError(
            f"--routing {folder}: the trace has no guesses of look-ahead; choose another --predictor, or --no-prefetch"
        )
    return RecordedRouting(trace, guesses)


def _check_shape(trace: Trace, shape: MoeShape, folder: Path) -> None:
    """A trace may have fewer experts a token than the model: some recorders leave the least likely ones out."""
    of_trace, of_model = ((each.num_layers, each.counts or each.num_experts) for each in (trace.shape, shape))
    if of_trace != of_model or trace.shape.top_k > shape.top_k:
        raise UsageError(f"--routing {folder} is of another model: {trace.shape.text}, and this one has {shape.text}")
    if (trace.experts == ABSENT).any():
        raise UsageError(f"--routing {folder} is of a model with an encoder; bench replays decoders alone")
