"""Models that are asked again after a request was given up. Each keeps something else from request to request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import Hooks
from moeinf.engine.model import Model
from moeinf.engine.stored.tuned_file import save_tuned
from moeinf.pull.pull import ensure, pull
from moeinf.runtime.io import pages
from moeinf.runtime.policy.tuned import Gain, TunedNetwork, weight_shapes
from moeinf.store.library import StoredModel
from tests.support.checkpoints import random_tensors, scaled, write_checkpoint
from tests.support.tiny_models import all_configs

Answer = list[tuple[int, float]]  # ids, and the logarithms of their probabilities
SHORT = "Once upon a time there was a dog", " and a ball"
LONG = "Once upon a time there was a dog. The dog and the ball went to the house. " * 5, " and they were happy"
WORDS = " ".join("ab"[i * 7 % 5 % 2] for i in range(90)), " b b a b"  # of the tiny checkpoints


@dataclass(frozen=True)
class Subject:
    """A model, and a prompt that it has twice: as it is, and with more behind it."""

    stored: Callable[[Path], StoredModel]
    prompt: tuple[str, str]
    options: dict[str, Any]
    raw: bool = False
    format: Any = None
    given: dict[str, Any] = field(default_factory=dict)  # sampling options

    def open(self, home: Path) -> Asked:
        return Asked(self, Model(self.stored(home), RuntimeConfig.of(device="cpu", threads=1, **self.options)))


class Asked:
    """An open model."""

    def __init__(self, subject: Subject, model: Model) -> None:
        self.subject, self.model = subject, model
        begin, end = subject.prompt
        self.prompts = begin, begin + end
        self.wanted = {prompt: self._afresh(prompt) for prompt in self.prompts}

    def ask(self, prompt: str) -> Answer:
        found: Answer = []
        hooks = Hooks(on_token=lambda token: found.append((token.token_id, token.logprob)))
        subject, model = self.subject, self.model
        endless = dict.fromkeys(model.tokenizer.eos_ids, -1000.0)
        given = {"temperature": 0, "num_predict": 3, "top_logprobs": 1, "logit_bias": endless, **subject.given}
        answer = model.generate(prompt, model.params(**given), raw=subject.raw, format=subject.format, hooks=hooks)
        return found or [(token, 0.0) for token in answer.token_ids]

    def _afresh(self, prompt: str) -> Answer:
        self.model.generator.sequences.last.forget()
        return self.ask(prompt)

    def check(self, which: int) -> None:
        """Both prompts have the answers that they had, the one of this number first, and nothing is held."""
        for prompt in (self.prompts[which], self.prompts[1 - which]):
            found = self.ask(prompt)
            assert close(found, self.wanted[prompt]), f"{found} in place of {self.wanted[prompt]}"
        model, tier = self.model, self.model.tier
        tier.check_integrity()
        tier._loader.drain(np.arange(tier.shape.num_keys))
        tier.check_integrity()
        sequence = model.generator.sequences.last
        assert model.encoder_decoder or len(sequence.tokens) == sequence.cache.length
        memory = getattr(sequence.prefixes, "_memory", None)
        if memory is not None:
            blocks = memory._blocks.values()
            assert memory.used_bytes == sum(block.num_bytes for block in blocks) <= memory.budget_bytes
            assert {id(block) for block in blocks} == {id(b) for each in memory._children.values() for b in each}

    def close(self) -> None:
        self.model.close()


def close(found: Answer, wanted: Answer) -> bool:
    """Whether they are one answer, but for rounding: a prompt of which a part was kept is cut elsewhere."""
    ids = [token for token, _ in found] == [token for token, _ in wanted]
    return ids and np.allclose([each for _, each in found], [each for _, each in wanted], atol=2e-3)


def demo(home: Path) -> StoredModel:
    return ensure("demo", home=home)


def tuned_demo(home: Path) -> StoredModel:
    """With a network that nobody has trained."""
    stored = ensure("demo", home=home)
    shape, rng = stored.manifest.moe, np.random.default_rng(0)
    shapes = weight_shapes(shape)
    weights = {name: (0.01 * rng.standard_normal(each)).astype(np.float32) for name, each in shapes.items()}
    save_tuned(stored, TunedNetwork(stored.id, shape, weights, Gain((50,), (50.0,), (60.0,), 9, 900)))
    return stored


def tiny(name: str) -> Callable[[Path], StoredModel]:
    """A model of random weights."""

    def stored(home: Path) -> StoredModel:
        config = all_configs()[name]
        folder = write_checkpoint(home / "checkpoint", scaled(random_tensors(config), 0.3), config)
        return pull(str(folder), PullOptions(name="tiny"), home=home / "store")

    return stored


def translator(home: Path) -> StoredModel:
    from tests.support.configs.nllb_moe import NLLB
    from tests.support.pairs.stored_translators import Stored

    return Stored(NLLB, home, {"decoder_start_token_id": 2, "eos_token_id": 2, "num_beams": 3, "max_length": 14}).stored


STREAMED: dict[str, Any] = {"expert_cache": "12%", "prefix_memory": "0"}
HELD: dict[str, Any] = {"expert_cache": "50%", "prefix_memory": "0", "context": 256, "prefill_chunk": 32}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SEARCHED: dict[str, Any] = {"top_logprobs": None, "logit_bias": None}  # beams are not told of one by one
LANGUAGES = {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn", "expert_cache": "30%"}
DRAWN: dict[str, Any] = {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.2, "frequency_penalty": 0.3, "stop": ["zz"]}

SUBJECTS = {
    "native": Subject(demo, SHORT, STREAMED),
    "pure": Subject(demo, SHORT, {**STREAMED, "reader": "pure"}),
    "no prefetch": Subject(demo, SHORT, {**STREAMED, "prefetch": False, "reader": "pure"}),
    "tuned": Subject(tuned_demo, SHORT, {**STREAMED, "policy": "tuned", "predictor": "eamc"}),
    "paper": Subject(demo, SHORT, {**STREAMED, "policy": "paper"}),
    "prefixes": Subject(demo, LONG, {**STREAMED, "prefix_memory": "8MB", "prefix_disk": "50MB"}),
    "resident": Subject(demo, SHORT, {"expert_cache": "100%", "prefix_memory": "0"}),
    "drawn": Subject(demo, SHORT, STREAMED, given=DRAWN),
    "schema": Subject(demo, SHORT, STREAMED, format=SCHEMA, given={"num_predict": 6, "logit_bias": None}),
    "recurrent": Subject(tiny("qwen3_next"), WORDS, HELD, raw=True),
    "recurrent prefixes": Subject(tiny("qwen3_next"), WORDS, {**HELD, "prefix_memory": "8MB"}, raw=True),
    "translator": Subject(translator, ("w5 w17 w33", " w9"), LANGUAGES, given=SEARCHED),
}


def take_pages_ahead(patch: pytest.MonkeyPatch) -> None:
    """As for a model of more than 16 MB: the native submit then calls Python."""
    defaults: Any = pages.PagesAhead.__init__.__kwdefaults__
    patch.setattr(pages, "LEAST_BYTES", 0)
    patch.setitem(defaults, "ahead_bytes", 8192)
