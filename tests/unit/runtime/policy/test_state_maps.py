"""Maps from states to routing: what they say, of which layers, and what becomes of their file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.predictors import check_predictor, make_predictor, maps_of
from moeinf.runtime.policy.state_maps import MOST_PARAMETERS, MapPredictor, StateMaps, map_shapes, unit_state
from moeinf.types import MoeShape
from tests.oracles.state_maps import slow_likelihoods
from tests.support.random_maps import BETTER, random_maps

SHAPE = MoeShape(5, 6, 2)
HIDDEN = 7
MAPS = random_maps(SHAPE, HIDDEN)


@pytest.mark.parametrize("tokens", [1, 4])
def test_likelihoods_are_those_of_the_definition(tokens: int) -> None:
    predictor, rng = MapPredictor(MAPS), np.random.default_rng(1)
    predictor.begin("prefill")
    for layer in range(SHAPE.num_layers):
        rows = (100 * rng.standard_normal((tokens, HIDDEN))).astype(np.float32)
        predictor.see(layer, unit_state(rows))
        wanted = slow_likelihoods(MAPS.weights, SHAPE, layer, rows)
        early = predictor.predict(layer - 1)
        assert early is not None
        np.testing.assert_allclose(early, wanted, rtol=1e-4)
        predictor.observe(layer, np.array([[0, 1]]))
        late = predictor.predict(layer)
        if layer + 1 == SHAPE.num_layers:
            assert late is None, "there is no layer behind the last"
        else:
            assert late is not None and (late == early[1:]).all()


def test_a_state_tells_of_no_other_layer_and_no_other_phase() -> None:
    predictor = MapPredictor(MAPS)
    assert predictor.predict(-1) is None and predictor.predict(0) is None
    predictor.see(2, np.ones((1, HIDDEN), np.float32))
    assert [layer for layer in range(-1, 5) if predictor.predict(layer) is not None] == [1, 2]
    predictor.begin("prefill")
    assert all(predictor.predict(layer) is None for layer in range(-1, 5))


def test_look_ahead_tells_of_the_next_layer_and_maps_of_those_behind() -> None:
    predictor = make_predictor("look-ahead+tuned", SHAPE, ActivationCollection(SHAPE), MAPS)
    assert predictor is not None
    maps = maps_of(predictor)
    assert maps is not None and predictor.name == "look-ahead+tuned"
    maps.see(1, np.ones((1, HIDDEN), np.float32))
    predictor.parts[0].expect(2, np.array([[3, 4]]), np.ones((1, 2), np.float32))  # type: ignore[attr-defined]
    predictor.observe(1, np.array([[0, 1]]))
    alone, joined = maps.predict(1), predictor.predict(1)
    assert alone is not None and joined is not None and joined.shape == alone.shape == (2, 6)
    assert joined[0].tolist() == [0, 0, 0, 1, 1, 0] and (joined[1] == alone[1]).all()
    assert maps_of(MapPredictor(MAPS)) is not None


@pytest.mark.parametrize("name", ["tuned", "tuned+eamc", "look-ahead+tuned"])
def test_its_names_are_known(name: str) -> None:
    check_predictor(name)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_are_enough(layers: int) -> None:
    shape = MoeShape(layers, 6, 2)
    predictor = MapPredictor(random_maps(shape, HIDDEN))
    for layer in range(layers):
        predictor.see(layer, np.ones((1, HIDDEN), np.float32))
        rows = predictor.predict(layer - 1)
        assert rows is not None and len(rows) == layers - layer


@pytest.mark.parametrize(
    ("shape", "hidden", "rank"),
    [(MoeShape(6, 32, 4), 128, 96), (MoeShape(48, 128, 8), 2048, 16), (MoeShape(94, 512, 8), 7168, 2)],
)
def test_maps_keep_to_their_size(shape: MoeShape, hidden: int, rank: int) -> None:
    shapes = map_shapes(shape, hidden)
    assert shapes["reduce"][2] == rank
    assert sum(int(np.prod(each)) for each in shapes.values()) <= MOST_PARAMETERS


@pytest.mark.parametrize(
    ("tuned", "better"), [((7.5, 18.0), True), ((7.0, 20.1), False), ((7.99, 19.99), False), ((8.0, 19.5), True)]
)
def test_they_are_on_where_they_win_on_average_and_lose_nowhere(tuned: tuple[float, float], better: bool) -> None:
    assert replace(BETTER, tuned=tuned).better is better
    assert not replace(BETTER, tuned=tuned, live_ms=()).better, "before it has run it is off"


def test_they_are_off_where_they_are_slower_on_the_machine_at_hand() -> None:
    slower = replace(BETTER, live_ms=(1.5, 1.6))
    assert slower.simulated_better and not slower.better
    assert slower.text.endswith("on 9 later requests, simulated; on this machine 1.50 ms a token became 1.60")


def test_a_file_comes_back_as_it_was_written() -> None:
    again = StateMaps.loads(MAPS.dumps(), "abc", SHAPE, HIDDEN)
    assert again.gain == MAPS.gain and again.shape == SHAPE
    assert all((again.weights[name] == each).all() for name, each in MAPS.weights.items())


def test_damage_and_other_models_are_refused_in_one_line() -> None:
    data = MAPS.dumps()
    nan = replace(MAPS, weights={**MAPS.weights, "bias": np.full_like(MAPS.weights["bias"], np.nan)}).dumps()
    wrong = [replace(MAPS, gain=replace(BETTER, **gain)).dumps() for gain in WRONG_GAINS]  # type: ignore[arg-type]
    places = np.random.default_rng(0).integers(1000, len(data) - 1500, 8).tolist()
    flipped = [data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :] for at in places]
    for spoiled in (b"", data[:-100], data[: len(data) // 2], nan, *wrong, *flipped):
        with pytest.raises(StoreError, match="the tuned predictor is damaged") as raised:
            StateMaps.loads(spoiled, "abc", SHAPE, HIDDEN)
        assert "\n" not in str(raised.value)
    with pytest.raises(StoreError, match="is damaged"):
        StateMaps.loads(data, "abc", SHAPE, HIDDEN + 1)
    for name, shape in (("abd", SHAPE), ("abc", replace(SHAPE, top_k=3)), ("abc", MoeShape(4, 6, 2))):
        with pytest.raises(StoreError, match="another model"):
            StateMaps.loads(data, name, shape, HIDDEN)


WRONG_GAINS = [
    {"live_ms": (1.0,)},
    {"predictor": "eamc"},
    {"default": (8.0,)},
    {"default": (0.0, 1.0)},
    {"tuned": (float("nan"), 1.0)},
]
