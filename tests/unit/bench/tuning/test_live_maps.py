"""The time that maps take where the model runs: both by turns, warm requests alone."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.bench.tuning import live_maps
from moeinf.bench.tuning.live_maps import WORK, timed_live, token_seconds
from moeinf.engine.stored.tuned_file import MAPS_FILE, path_of, save_maps
from moeinf.store.library import StoredModel
from tests.support.random_maps import BETTER, random_maps


def test_medians_of_both_are_kept(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def seconds(stored: StoredModel, predictor: str) -> list[float]:
        asked.append(predictor)
        return [0.5, 0.001, 0.002] if predictor == "tuned" else [0.003, 0.003, 0.1]

    monkeypatch.setattr(live_maps, "token_seconds", seconds)
    maps: Any = timed_live(demo, random_maps(demo.manifest.moe, 128), lambda what, done, whole: None)
    assert asked == ["look-ahead", "tuned", "tuned", "look-ahead"]
    assert maps.gain.live_ms == (3.0, 2.0) and maps.gain.tuned == BETTER.tuned


def test_every_token_of_a_warm_request_is_timed(demo: StoredModel) -> None:
    save_maps(demo, random_maps(demo.manifest.moe, demo.manifest.info.hidden_size, model_id=demo.id))
    try:
        times = token_seconds(demo, "tuned")
    finally:
        path_of(demo, MAPS_FILE).unlink()
    assert len(times) == WORK.repeats * WORK.num_decode and min(times) > 0
