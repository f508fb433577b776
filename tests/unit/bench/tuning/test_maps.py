"""Learning of maps from states to routing: repeatable, and used only where it is better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.bench.tuning.map_training import labels_of, train_maps
from moeinf.bench.tuning.maps import learn_maps, missing
from moeinf.terminal.tuning import map_lines
from moeinf.traces.trace import Trace
from moeinf.types import MoeShape

SHAPE = MoeShape(5, 24, 2)
HIDDEN = 16


def quiet(*_: object) -> None:
    pass


def made(tokens: int, *, linear: bool, seed: int = 0) -> Trace:
    """Routing that follows from states, or does not; guesses of look-ahead that know as much as chance does."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((tokens, SHAPE.num_layers, HIDDEN)).astype(np.float16)
    states[:, 1:] = states[:, :1]  # so that the first one tells of all layers
    routers = np.random.default_rng(9).standard_normal((SHAPE.num_layers, HIDDEN, SHAPE.num_experts))
    scores = np.einsum("tlh,lhe->tle", states.astype(float), routers)
    if not linear:
        scores = rng.standard_normal(scores.shape)
    experts = scores.argsort(axis=2)[:, :, ::-1][:, :, : SHAPE.top_k]
    guesses = rng.random(scores.shape).argsort(axis=2)[:, :, : SHAPE.top_k]
    trace = Trace("made", SHAPE, experts, np.arange(0, tokens + 1, 40), states=states)
    return replace(trace, guesses=guesses, guess_weights=np.ones(guesses.shape, np.float32))


def test_labels_say_what_is_used_here_and_behind() -> None:
    trace, tokens = made(80, linear=True), [3, 70, 3]
    labels = labels_of(trace, tokens)
    assert labels.shape == (5, 3, 3 * 24)
    for layer in range(5):
        for row, token in enumerate(tokens):
            wanted = np.zeros(3 * 24)
            for ahead in range(min(3, 5 - layer)):
                wanted[24 * ahead + trace.experts[token, layer + ahead]] = 1
            assert (labels[layer, row] == wanted).all()


def test_training_repeats_itself_for_a_seed() -> None:
    trace = made(200, linear=True)
    first, again, other = (train_maps(trace, seed, quiet) for seed in (3, 3, 4))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["reduce"] != other["reduce"]).any()


def test_routing_that_follows_from_states_is_learnt_and_switched_on() -> None:
    maps, recalls = learn_maps(made(2000, linear=True), "abc", 0, quiet)
    assert maps.gain.simulated_better and not maps.gain.better and maps.gain.requests == 13 and maps.gain.tokens == 520
    nearest = {name: found[0].recall for name, found in recalls.items()}
    assert nearest["tuned, early"] > 0.7 and nearest["tuned"] > 0.7 and nearest["look-ahead"] < 0.2
    maps = replace(maps, gain=replace(maps.gain, live_ms=(2.0, 2.0)))
    lines = map_lines("some", maps, recalls)
    assert lines[-1].startswith("some prefetches by") and maps.gain.text in lines[-2]


def test_routing_that_does_not_stays_off() -> None:
    maps, recalls = learn_maps(made(1200, linear=False), "abc", 0, quiet)
    assert not maps.gain.simulated_better
    assert "look-ahead stays the default" in map_lines("some", maps, recalls)[-1]


def test_what_a_trace_lacks_is_told() -> None:
    trace = made(80, linear=True)
    assert missing(trace) == ""
    assert "--trace-states" in missing(replace(trace, states=None))
    assert "no guesses of look-ahead" in missing(replace(trace, guesses=None))
