"""Answers that may differ within a budget: it holds, and nothing exact learns of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeinf.bench.bench_report import format_rows
from moeinf.bench.live_bench import Workload, run_bench
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.config.user_text import text_of
from moeinf.engine.approximate.calibration import PROMPT_TOKENS, tokens_of
from moeinf.engine.approximate.refusals import refuse_approximation
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.pull.pull import pull
from moeinf.runtime.approximate import Within
from moeinf.server.figures import figures
from moeinf.store.library import StoredModel
from moeinf.terminal.answer_stats import stats_lines
from moeinf.types import Float32Array
from tests.support.checkpoints import random_tensors, scaled, write_checkpoint
from tests.support.tiny_models import all_configs

ON = Machine(1 << 36, "test", 1)
PROMPT = "Once upon a time, in a village by the sea, there was a fisherman"


@pytest.fixture
def own(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """A model in a store of its own."""
    folder = shutil.copytree(demo.path, tmp_path / "models" / demo.id, ignore=shutil.ignore_patterns("*.npz", "*.lock"))
    return StoredModel(demo.name, demo.id, Path(folder))


def opened(stored: StoredModel, said: list[str] | None = None, **options: Any) -> Model:
    config = RuntimeConfig.of(**{"threads": 1, "device": "cpu", "expert_cache": "33%", **options})
    said = [] if said is None else said
    return Model(stored, config, Reporting(said.append, step=said.append), on=ON)


def greedy(model: Model, prompt: str = PROMPT, tokens: int = 32) -> list[int]:
    return model.generate(prompt, model.params(temperature=0.0, num_predict=tokens, stop=()), raw=True).token_ids


def logits_of(model: Model, tokens: Sequence[int]) -> list[Float32Array]:
    """What is decoded behind a prompt, step by step."""
    runner, prompt = model.runner, min(PROMPT_TOKENS, len(tokens) // 2)
    runner.cache.truncate(0)
    runner.step([NewTokens(tokens[:prompt], runner.cache, prompt)], lambda: None)
    rows = [runner.step([NewTokens([token], runner.cache)], lambda: None)[0].copy() for token in tokens[prompt:]]
    runner.cache.truncate(0)
    return rows


def divergence(exact: Float32Array, other: Float32Array) -> float:
    p, q = (np.exp(row.astype(np.float64) - row.max()) for row in (exact, other))
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


@pytest.mark.parametrize("budget", [0.005, 0.05])
def test_the_budget_holds_on_the_text_that_it_is_measured_on(own: StoredModel, budget: float) -> None:
    with opened(own) as exact:
        tokens = tokens_of(text_of("--approx-text", ""), exact.tokenizer, exact.plan.context)
        wanted = logits_of(exact, tokens)
        read = exact.stats.misses
    with opened(own, approx=budget) as model:
        assert model.runner.approx is not None
        within, misses = model.runner.approx.within, model.stats.misses
        found = logits_of(model, tokens)
        kl = np.mean([divergence(*pair) for pair in zip(wanted, found, strict=True)])
        assert 0 < within.most_lost < 1 and within.measured <= budget
        assert 0 < kl < 1.5 * budget, "another cache is found than by the measurement, but none that much worse"
        assert model.runner.approx.instead + model.runner.approx.left_out > 0
        assert model.stats.misses - misses < read, "nothing was saved"


def test_no_budget_gives_the_exact_answer_and_so_does_none_that_suffices(own: StoredModel) -> None:
    with opened(own) as exact:
        wanted, rows = greedy(exact), logits_of(exact, range(3, 60))
    for budget in (0, 1e-9):
        with opened(own, approx=budget) as model:
            assert model.runner.approx is not None and model.runner.approx.within.measured == 0
            assert greedy(model) == wanted
            assert all(np.array_equal(*pair) for pair in zip(rows, logits_of(model, range(3, 60)), strict=True))


def test_prompts_are_exact_whatever_the_budget(own: StoredModel) -> None:
    with opened(own) as exact, opened(own, approx=0.5) as model:
        for length in (1, 2, 40):
            ids = list(range(3, 3 + length))
            rows = [
                each.runner.step([NewTokens(ids, each.runner.cache, length)], lambda: None).copy()
                for each in (exact, model)
            ]
            assert np.array_equal(*rows)
            for each in (exact, model):
                each.runner.cache.truncate(0)


def test_what_was_measured_is_remembered_by_text_and_budget(own: StoredModel, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The cat sat on the mat, and the dog looked at the cat. " * 20)
    for options, measures in (
        ({"approx": 0.02}, True),
        ({"approx": 0.02}, False),
        ({"approx": 0.05}, True),
        ({"approx": 0.02, "approx_text": str(text)}, True),
        ({"approx": 0.02, "expert_cache": "60%"}, True),
        ({"approx": 0.02, "approx_text": str(text)}, False),
    ):
        said = list[str]()
        with opened(own, said, **options) as model:
            assert any("measuring" in line for line in said) == measures
            assert model.runner.approx is not None and str(model.runner.approx.within) in said[-1]
    (own.path / "approx.json").write_text("[1")
    said.clear()
    with opened(own, said, approx=0.02):
        assert any("measuring" in line for line in said), "a damaged file is measured anew"
    assert json.loads((own.path / "approx.json").read_text())


def test_nothing_exact_learns_of_it(own: StoredModel) -> None:
    """Neither the hit rates that forecasts go by, nor the routing that warm starts do, nor kept prefixes."""
    options: dict[str, Any] = {"prefix_disk": "64MiB", "prefix_memory": "64MiB"}
    with opened(own) as exact:
        wanted = greedy(exact, PROMPT * 6, 40)
        further = greedy(exact, PROMPT * 6 + exact.tokenizer.decode(wanted) + " And then", 24)
    before = {path.name for path in own.path.iterdir()}
    (own.path / "hits.json").unlink(missing_ok=True)
    (own.path / "eamc.npz").unlink(missing_ok=True)
    with opened(own, approx=0.3, **options) as model:
        other = greedy(model, PROMPT * 6, 40)
        assert other != wanted, "the budget is too small for this test"
    assert {"hits.json", "eamc.npz"}.isdisjoint(path.name for path in own.path.iterdir()) and before
    with opened(own, **options) as exact:
        text = PROMPT * 6 + exact.tokenizer.decode(wanted) + " And then"
        assert greedy(exact, PROMPT * 6, 40) == wanted
        assert exact.last is not None and exact.last.stats.cached_from == ""
        assert greedy(exact, text, 24) == further
    with opened(own, approx=0.3, **options) as model:
        greedy(model, PROMPT * 6, 4)
        assert model.last is not None and model.last.stats.cached_from == "disk", "its own are found again"


def test_every_figure_says_so(own: StoredModel) -> None:
    with opened(own, approx=0.05) as model:
        greedy(model)
        assert model.last is not None and model.runner.approx is not None
        stats, told = model.last.stats, str(model.runner.approx.within)
        assert told.startswith("approx KL <= 0.05 (measured 0.0")
        assert any(line.startswith("eval rate:") and line.endswith(told) for line in stats_lines(stats, model))
        assert figures(stats)["approx"] == told
    assert figures(GenerationStats())["approx"] == ""
    rows = run_bench(own, model.config, Workload(num_prompt=8, num_decode=8, repeats=1))
    assert {row["approx"] for row in rows} == {told}
    table = format_rows(rows, "table")
    decoded = next(line for line in table.splitlines() if line.startswith("decode 8:"))
    assert decoded.endswith(f"%; {told}") and f"{told} · " in table.replace("\n  ", " ")
    assert told in format_rows(rows, "md")


def test_a_model_that_can_give_up_nothing_is_exact_and_says_so(tmp_path: Path) -> None:
    """A token has a single expert, and the router names no other."""
    config = all_configs()["zaya"]
    source = write_checkpoint(tmp_path / "source", scaled(random_tensors(config, layout=-1), 0.1), config)
    stored, said = pull(str(source), PullOptions(), home=tmp_path / "home"), list[str]()
    with opened(stored, said, approx=0.5, expert_cache="40%") as model:
        assert model.runner.approx is not None and model.runner.approx.within.most_lost == 0
    assert said[-1] == "approx KL <= 0.5 (measured 0): no expert can be given up within it; answers are exact"


def test_answers_side_by_side_are_approximate_too(own: StoredModel) -> None:
    with opened(own, approx=0.3) as model:
        assert model.runner.approx is not None
    config = replace(RuntimeConfig.of(threads=1, device="cpu", expert_cache="33%", approx=0.3), parallel=2)
    with Model(own, config, on=ON) as model:
        runner, caches = model.runner, [model.runner.network.new_cache(64) for _ in range(2)]
        for number, cache in enumerate(caches):
            runner.step([NewTokens(range(3 + number, 30), cache, 27)], lambda: None)
        before = runner.approx.instead + runner.approx.left_out  # type: ignore[union-attr]
        for token in range(30, 60):
            runner.step([NewTokens([token], cache) for cache in caches], lambda: None)
        assert runner.approx.instead + runner.approx.left_out > before  # type: ignore[union-attr]
        model.tier.check_integrity()


@pytest.mark.parametrize(
    "family", ["qwen3_moe", "mixtral", "olmoe", "deepseek_v2 lite", "deepseek_v3", "gpt_oss", "dbrx"]
)
def test_routers_name_others_without_choosing_differently(family: str, tmp_path: Path) -> None:
    config, drawn = all_configs()[family], np.random.default_rng(3).integers(3, 97, 60).tolist()
    weights = scaled(random_tensors(config, layout=-1), 0.1)
    source = write_checkpoint(tmp_path / "source", weights, config | {"torch_dtype": "bfloat16"})
    stored, tokens = pull(str(source), PullOptions(), home=tmp_path / "home"), drawn
    with opened(stored, expert_cache="40%") as exact:
        wanted = logits_of(exact, tokens)
    with opened(stored, expert_cache="40%", approx=0) as model:
        assert all(np.array_equal(*pair) for pair in zip(wanted, logits_of(model, tokens), strict=True))
        approx = model.runner.approx
        assert approx is not None
        approx.within = Within(1.0, 0.0, 0.6)
        assert all(np.isfinite(row).all() for row in logits_of(model, tokens))
        assert (approx.instead > 0) == (family != "dbrx"), "dbrx has a router of its own"
        assert approx.instead + approx.left_out > 0
        model.tier.check_integrity()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": "folder"}, "--approx: --trace records what routers choose; leave it out"),
        ({"speculate": "always"}, "--speculate always: --approx reads fewer experts"),
        ({"workers": "localhost:1"}, "--approx: workers hold experts"),
        ({"approx_text": "nowhere.txt"}, "--approx-text nowhere.txt cannot be read: No such file"),
    ],
)
def test_what_it_does_not_go_with_is_refused_in_one_line(own: StoredModel, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        opened(own, approx=0.05, **options)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_a_text_that_is_too_short_is_refused(own: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Hello.")
    with pytest.raises(UsageError, match="tokens are too few to measure on"):
        opened(own, approx=0.05, approx_text=str(tmp_path / "short.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfd" * 90)
    with pytest.raises(UsageError, match=r"bytes.txt is no UTF-8 text"):
        opened(own, approx=0.05, approx_text=str(tmp_path / "bytes.txt"))


def test_where_every_expert_fits_answers_are_exact_and_nothing_is_measured(own: StoredModel) -> None:
    said = list[str]()
    with opened(own, said, approx=0.05, expert_cache="100%") as model:
        assert said == ["approx KL <= 0.05 (measured 0): every expert fits; answers are exact"]
        assert model.runner.approx is not None and model.runner.approx.within.most_lost == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"approx": -0.1}, "--approx must be from 0 to 10 nats a token, such as 0.01, not -0.1"),
        ({"approx": 11}, "--approx must be from 0 to 10 nats a token"),
        ({"approx": float("nan")}, "--approx must be from 0 to 10 nats a token"),
        ({"approx": "much"}, "approx must be a number, not 'much'"),
        ({"approx": True}, "approx must be a number, not True"),
        ({"approx_text": "own.txt"}, "--approx-text is measured on for --approx KL"),
    ],
)
def test_values_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        RuntimeConfig.of(**options)
    assert str(refused.value).startswith(said)


def test_a_gpu_and_models_without_a_choice_are_refused() -> None:
    """Without opening any: of what a model is and where it would run."""
    config = RuntimeConfig.of(approx=0.1)

    def weights(*, dense: bool = False, encoder: object = None) -> Any:
        manifest = SimpleNamespace(moe=SimpleNamespace(dense=dense))
        return SimpleNamespace(
            manifest=manifest, stored=SimpleNamespace(name="own"), family=SimpleNamespace(encoder_input=encoder)
        )

    refuse_approximation(weights(), config, on_gpu=False, replayed=False)
    refuse_approximation(weights(dense=True), RuntimeConfig(), on_gpu=True, replayed=True)
    for given, facts, said in (
        (weights(dense=True), (False, False), "own has one MLP in each layer"),
        (weights(encoder=object()), (False, False), "own is an encoder-decoder model"),
        (weights(), (True, False), "add --device cpu"),
        (weights(), (False, True), "--routing takes the place of the routers"),
    ):
        with pytest.raises(UsageError, match=said):
            refuse_approximation(given, config, on_gpu=facts[0], replayed=facts[1])
