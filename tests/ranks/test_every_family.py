"""Every family and format on two ranks: bit for bit what one machine computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array
from tests.support.answers_beside import logits_beside
from tests.support.checkpoints import in_mxfp4, random_tensors, write_checkpoint
from tests.support.pairs.stored_translators import write_tokenizer
from tests.support.ranks.workers import Workers
from tests.support.tiny_models import all_configs

DECODERS, TRANSLATORS = all_configs(), all_configs("SEQ2SEQ_CONFIGS")
TEXT = "w5 w17 w33 w88 w41 w60"


def opened(stored: StoredModel, **options: Any) -> Model:
    size = stored.manifest.moe.top_k * stored.manifest.layout.stride_bytes
    return Model(stored, RuntimeConfig.of(threads=1, expert_cache=f"{size}B", **options))


def logits(model: Model) -> Float32Array:
    """Of a prompt in two parts, and of single tokens behind it."""
    runner, ids = model.runner, np.random.default_rng(5).integers(3, 90, 50).tolist()
    rows = [
        runner.network.forward(ids[first:last], runner.cache, of_tokens=40, last_only=False)
        for first, last in ((0, 9), (9, 40))
    ]
    rows += [runner.network.forward([token], runner.cache) for token in ids[40:]]
    model.tier.check_integrity()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", DECODERS, ids=lambda name: name.replace(" ", "-"))
def test_logits_are_those_of_one_machine(workers: Workers, tmp_path: Path, name: str) -> None:
    config = DECODERS[name]
    tensors = random_tensors(config) | (in_mxfp4(config) if config["model_type"] == "gpt_oss" else {})
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    stored = pull(str(checkpoint), PullOptions(name="tiny"), home=tmp_path / "home")
    with opened(stored) as model:
        wanted = logits(model), logits_beside(model)
    with opened(stored, **workers.options(workers.start(stored))) as model:
        assert np.array_equal(logits(model), wanted[0])
        assert np.array_equal(logits_beside(model), wanted[1])


@pytest.mark.parametrize("name", TRANSLATORS, ids=lambda name: name.replace(" ", "-"))
def test_answers_of_encoders_and_decoders_are_those_of_one_machine(workers: Workers, tmp_path: Path, name: str) -> None:
    config = TRANSLATORS[name]
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_tensors(config), config, num_shards=0)
    write_tokenizer(checkpoint, config["eos_token_id"])
    stored = pull(str(checkpoint), PullOptions(name="tiny"), home=tmp_path / "home")
    languages = {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"} if config["model_type"] == "nllb-moe" else {}
    answers = []
    for ranks in ({}, workers.options(workers.start(stored))):
        with opened(stored, num_beams=3, **languages, **ranks) as model:
            answers.append(model.generate(TEXT, model.params(num_predict=24)).token_ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("quant", ["keep", "q8_0", "q4_0", "q4_k", "iq4_nl", "mxfp4"])
def test_every_format_gives_the_tokens_of_one_machine(workers: Workers, tmp_path: Path, quant: str) -> None:
    stored = pull("demo", PullOptions(quant=quant), home=tmp_path)
    answers = []
    for ranks in ({}, workers.options(*(workers.start(stored, expert_cache="20%") for _ in range(3)))):
        with opened(stored, **ranks) as model:
            params = model.params(temperature=0.0, num_predict=40, stop=())
            answers.append(model.generate("Once upon a time, in a village by the sea", params).token_ids)
    assert answers[0] == answers[1]
