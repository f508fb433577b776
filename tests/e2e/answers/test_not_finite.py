"""Weights that are no numbers end the request in one line, whatever reads ahead; nothing is sampled from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.errors import NotFiniteError
from moeinf.runtime.routing_check import RoutingCheck
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array

PROMPT = "The king said, that he would go to the sea"


@pytest.mark.parametrize(
    "options",
    [
        {"expert_cache": "20%"},
        {"expert_cache": "20%", "prefetch": False},
        {"expert_cache": "20%", "predictor": "cross-layer"},
        {},
    ],
    ids=str,
)
def test_an_output_that_is_no_number_is_an_error_that_names_the_experts_in_use(
    demo: StoredModel, options: dict[str, Any]
) -> None:
    """As when memory fails behind the check of a read."""
    with Model(demo, RuntimeConfig.of(device="cpu", threads=1, **options)) as model:
        sound = model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text
        runner: Any = model.runner
        experts = runner.network._experts
        compute = experts.kernel

        class Spoiled:
            def __getattr__(self, name: str) -> Any:
                return getattr(compute, name)

            def finish(self, out: Float32Array) -> None:
                compute.finish(out)
                if len(out) == 1:  # while it decodes: reading ahead then goes by priorities
                    out[:] = np.nan

        experts.kernel = Spoiled()
        with pytest.raises(
            NotFiniteError,
            match=r"the router of expert layer 1 gives no numbers \(in use before it: "
            r"experts \d+.* of layer 0\).*`moeinf verify demo:latest`",
        ):
            model.generate(PROMPT, model.params(num_predict=4))
        experts.kernel = compute
        assert model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text == sound


def test_logits_that_are_no_numbers_are_not_sampled_and_not_built_upon(demo: StoredModel) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", threads=1, expert_cache="20%")) as model:
        sound = model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text
        runner: Any = model.runner
        ends = runner.network.ends
        runner.network.ends = ends._replace(head=lambda x: ends.head(x) * np.float32(np.nan))
        for temperature in (0.0, 1.0):
            with pytest.raises(NotFiniteError, match=r"non-finite logits.*moeinf verify"):
                model.generate(PROMPT, model.params(temperature=temperature, num_predict=4))
        runner.network.ends = ends
        assert model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text == sound
        assert model.last is not None and model.last.stats.cached_tokens == 0


def test_the_check_names_layer_and_experts_and_forgets_them() -> None:
    check, ids = RoutingCheck("m"), np.arange(40).reshape(20, 2)
    for bad in (np.nan, np.inf, -np.inf):
        check(4, ids, np.ones((20, 2), np.float32))
        weights = np.ones((20, 2), np.float32)
        weights[19, 1] = bad
        with pytest.raises(
            NotFiniteError,
            match=r"layer 5 gives no numbers \(in use before it: experts 0, 1, .*15 and "
            r"24 more of layer 4\)",
        ):
            check(5, ids, weights)
        with pytest.raises(NotFiniteError, match=r"m: the router of expert layer 0 gives no numbers; weights"):
            check(0, ids, weights)
        check(5, ids, np.ones((20, 2), np.float32))
        with pytest.raises(NotFiniteError, match=r"layer 0 gives no numbers; weights"):  # 5 was the token's before
            check(0, ids, weights)
