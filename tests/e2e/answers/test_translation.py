"""Encoder-decoder models from a checkpoint to text: pulled, streamed, searched, and told their languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import Hooks
from moeinf.engine.model import Model
from moeinf.errors import ContextLengthError, UsageError
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.sampling.params import SamplingParams
from moeinf.store.library import StoredModel
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.conversation_loop import Conversation
from tests.support.configs.nllb_moe import NLLB
from tests.support.configs.switch_transformers import SWITCH
from tests.support.pairs.stored_translators import GAP, LANGUAGES, TEXT, Stored

IDS = [5, 17, 33, 88, 41, 60]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(SWITCH, tmp_path_factory.mktemp("switch"), {"decoder_start_token_id": 0, "eos_token_id": 1})


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(
        NLLB,
        tmp_path_factory.mktemp("nllb"),
        {"decoder_start_token_id": 2, "eos_token_id": 2, "num_beams": 3, "max_length": 14, "early_stopping": True},
    )


@pytest.fixture(scope="module")
def opened(switch: Stored) -> Iterator[Model]:
    with Model(switch.stored, RuntimeConfig.of(threads=1)) as model:
        yield model


def test_an_answer_is_that_of_the_reference_and_greedy_unless_asked_otherwise(switch: Stored, opened: Model) -> None:
    answer = opened.generate(TEXT, opened.params(num_predict=NUM_TOKENS))
    theirs = switch.theirs([*IDS, 1], max_new_tokens=NUM_TOKENS)
    assert answer.token_ids == [token for token in theirs if token != 1]
    assert answer.text.split() == [f"w{token}" for token in answer.token_ids if token > 2]
    assert answer.stats.prompt_tokens == len(IDS) + 1 and answer.stats.prompt_s > 0


@pytest.mark.parametrize(
    "options",
    [
        {"expert_cache": "5%"},
        {"expert_cache": "30%", "prefetch": False},
        {"expert_cache": "30%", "predictor": "eamc", "policy": "paper"},
    ],
    ids=str,
)
def test_the_tokens_are_the_same_for_every_cache(switch: Stored, opened: Model, options: dict[str, Any]) -> None:
    expected = opened.generate(TEXT, opened.params(num_predict=NUM_TOKENS)).token_ids
    with Model(switch.stored, RuntimeConfig.of(threads=1, **options)) as small:
        assert small.plan.num_slots < small.manifest.moe.total_experts
        for _ in range(2):
            assert small.generate(TEXT, small.params(num_predict=NUM_TOKENS)).token_ids == expected
        small.tier.check_integrity()


@pytest.mark.parametrize("quant", ["q8_0", "mxfp4"])
def test_a_quantised_translator_answers_the_same_for_every_cache(nllb: Stored, tmp_path: Path, quant: str) -> None:
    """Its head is the embedding, stored twice; the biases of its experts stay as they are."""
    stored = pull(str(nllb.checkpoint), PullOptions(name="tiny", quant=quant), home=tmp_path)
    assert isinstance(stored, StoredModel)
    formats = {spec.name: spec.dtype for spec in stored.manifest.layout.tensors}
    assert formats == {"up": quant, "down": quant, "up_bias": "f32", "down_bias": "f32"}
    answers = []
    for cache in ("10%", "auto"):
        config = RuntimeConfig.of(threads=1, src_lang="eng_Latn", tgt_lang="fra_Latn", expert_cache=cache)
        with Model(stored, config) as model:
            answers.append(model.generate(TEXT, model.params()).token_ids)
    assert answers[0] == answers[1] != []


def test_every_prompt_is_a_source_of_its_own(opened: Model) -> None:
    first = opened.generate(TEXT, opened.params(num_predict=6)).token_ids
    other = opened.generate("w9 w9 w3", opened.params(num_predict=6))
    assert other.stats.cached_tokens == 0
    assert (
        opened.generate([{"role": "user", "content": "w9 w9 w3"}], opened.params(num_predict=6)).token_ids
        == other.token_ids
    )
    assert opened.generate(TEXT, opened.params(num_predict=6)).token_ids == first


def test_encoder_prefill_and_decode_are_kept_apart(switch: Stored) -> None:
    path = switch.stored.path / "eamc.npz"
    path.unlink(missing_ok=True)
    with Model(switch.stored, RuntimeConfig.of(threads=1)) as model:
        model.generate(TEXT, model.params(num_predict=4))
    rows = ActivationCollection.loads(path.read_bytes(), switch.stored.manifest.moe).rows
    used = [[bool(layer.any()) for layer in matrix] for matrix in rows[:3]]
    assert used == [[True, True, False, False], [False, False, True, True], [False, False, True, True]]
    assert (rows[1] > 0).sum() == 2, "one token begins the answer"


def test_the_marks_of_gaps_are_tokens_in_a_source_and_text_in_an_answer(opened: Model) -> None:
    assert opened.encode(f"w5 {GAP} w6") == [5, 94, 6, 1]
    answer = opened.generate(TEXT, opened.params(num_predict=2, temperature=1.0, logit_bias={94: 1000.0}))
    assert answer.text == f"{GAP} {GAP}"


def test_a_chat_answers_each_text_on_its_own(opened: Model) -> None:
    chat = Conversation(opened, {"num_predict": 6}, ChatOptions(quiet=True))
    pieces: list[str] = []
    answers = [chat.ask(text, pieces.append) for text in (TEXT, "w9 w9 w3", TEXT)]
    assert answers[0].token_ids == answers[2].token_ids
    assert answers[1].token_ids == opened.generate("w9 w9 w3", opened.params(num_predict=6)).token_ids
    assert "".join(pieces) == "".join(answer.text for answer in answers)


def test_an_interrupted_source_leaves_a_sound_model(opened: Model) -> None:
    before = opened.generate(TEXT, opened.params(num_predict=6)).token_ids
    calls = iter(range(1000))
    answer = opened.generate("w4 w4", opened.params(), hooks=Hooks(lambda: next(calls) > 1))
    assert answer.token_ids == [] and answer.finish_reason == "interrupted"
    opened.tier.check_integrity()
    assert opened.generate(TEXT, opened.params(num_predict=6)).token_ids == before


def test_source_and_answer_have_a_context_each(switch: Stored) -> None:
    with Model(switch.stored, RuntimeConfig.of(threads=1, context=9)) as model:
        answer = model.generate(TEXT, model.params(num_predict=-1, stop=("nothing",)))
        assert len(answer.token_ids) == 9 or answer.finish_reason == "stop"
        with pytest.raises(ContextLengthError, match="has 10 tokens, the context 9"):
            model.stream("w3 " * 9)
        with pytest.raises(UsageError, match="empty"):
            model.stream("")
        assert model.replay(IDS, IDS).generated_tokens == len(IDS) + 1


def test_a_translation_is_searched_as_the_checkpoint_asks(nllb: Stored) -> None:
    config = RuntimeConfig.of(threads=1, src_lang="eng_Latn", tgt_lang="fra_Latn", expert_cache="40%")
    with Model(nllb.stored, config) as m:
        assert m.encode(TEXT) == [LANGUAGES["eng_Latn"], *IDS, 2]
        answer = m.generate(TEXT, m.params())
        theirs = nllb.theirs(
            m.encode(TEXT), num_beams=3, max_length=14, early_stopping=True, forced_bos_token_id=LANGUAGES["fra_Latn"]
        )
        assert theirs[0] == LANGUAGES["fra_Latn"] and [*answer.token_ids, 2][: len(theirs) - 1] == theirs[1:]
        assert m.generate(TEXT, m.params()).token_ids == answer.token_ids, "a second search begins anew"
        with pytest.raises(UsageError, match=r"top_k: a beam search draws nothing.*--num-beams 1"):
            m.params(top_k=3)
        with pytest.raises(UsageError, match="top_logprobs: a beam search reports no probabilities"):
            m.stream(TEXT, SamplingParams(top_logprobs=0))
        with pytest.raises(UsageError, match="format: an encoder-decoder model writes no JSON"):
            m.stream(TEXT, format="json")
        m.tier.check_integrity()


def test_an_interrupted_search_gives_what_is_likeliest_so_far(nllb: Stored) -> None:
    with Model(nllb.stored, RuntimeConfig.of(threads=1, src_lang="eng_Latn", tgt_lang="fra_Latn")) as model:
        whole = model.generate(TEXT, model.params(stop=("nothing",)))
        calls = iter(range(1000))
        cut = model.generate(
            TEXT, model.params(), hooks=Hooks(lambda: next(calls) > 14)
        )  # 4 layers of the source first
        assert cut.finish_reason == "interrupted" and 0 < len(cut.token_ids) < 12
        assert model.generate(TEXT, model.params()).token_ids == whole.token_ids


def test_one_beam_is_a_greedy_answer(nllb: Stored) -> None:
    config = RuntimeConfig.of(threads=1, src_lang="eng_Latn", tgt_lang="fra_Latn", num_beams=1)
    with Model(nllb.stored, config) as model:
        answer = model.generate(TEXT, model.params())
        theirs = nllb.theirs(model.encode(TEXT), max_length=14, num_beams=1, forced_bos_token_id=LANGUAGES["fra_Latn"])
        assert [*answer.token_ids, 2][: len(theirs) - 1] == theirs[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --src-lang"),
        ({"src_lang": "eng_Latn"}, "give --tgt-lang"),
        ({"src_lang": "eng_Latn", "tgt_lang": "w5"}, "--tgt-lang 'w5' is no language"),
        ({"src_lang": "klingon", "tgt_lang": "fra_Latn"}, "--src-lang 'klingon' is no language"),
    ],
    ids=str,
)
def test_what_a_translator_cannot_do_is_said(nllb: Stored, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Model(nllb.stored, RuntimeConfig.of(threads=1, **options))


def test_options_of_a_translator_are_refused_by_other_models(switch: Stored, demo: StoredModel) -> None:
    with pytest.raises(UsageError, match="--tgt-lang: this model is told the languages in the text"):
        Model(switch.stored, RuntimeConfig.of(tgt_lang="fra_Latn"))
    for options in ({"src_lang": "eng_Latn"}, {"num_beams": 4}):
        with pytest.raises(UsageError, match="is for encoder-decoder models"):
            Model(demo, RuntimeConfig.of(**options))


def test_the_command_answers_piped_text(
    switch: Stored, monkeypatch: pytest.MonkeyPatch, opened: Model, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from moeinf.cli import run_command

    monkeypatch.setenv("MOEINF_HOME", str(switch.stored.path.parents[1]))
    monkeypatch.setattr("sys.stdin", None)
    expected = opened.generate(TEXT, opened.params(num_predict=6)).text
    assert run_command(["run", "tiny", TEXT, "-n", "6", "-t", "1"]) == 0
    captured = capfd.readouterr()
    assert captured.out == expected + "\n" and "base model" not in captured.err
    assert run_command(["run", "tiny", TEXT, "-n", "6", "-t", "1", "--num-beams", "2"]) == 0
    assert run_command(["run", "tiny", TEXT, "--tgt-lang", "fra_Latn"]) == 2


def test_what_cannot_be_measured_is_refused_before_anything_is_read(
    switch: Stored, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from moeinf.cli import run_command

    source = str(switch.checkpoint)
    monkeypatch.setenv("MOEINF_HOME", str(switch.stored.path.parents[1]))
    assert run_command(["compare", "tiny", "tiny"]) == 2
    assert "tiny:latest reads a source before it writes; compare models that only write" in capfd.readouterr().err
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "new"))
    for words in (["--quant", "q4_0", "--calibrate", "built-in"], ["--size", "1GB"]):
        assert run_command(["pull", source, *words]) == 2
        assert "reads a source before it writes; fit models that only write" in capfd.readouterr().err
    assert not (tmp_path / "new" / "models").exists(), "nothing was stored"
