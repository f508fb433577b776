"""Guessed tokens change no answer: it has the tokens that it has without them, whatever else is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.drafting import Drafting
from moeinf.engine.completion import Completion, Hooks, Request
from moeinf.engine.model import Model
from moeinf.engine.opening import ModelParts
from moeinf.errors import UsageError
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.logprobs import ChosenToken
from moeinf.sampling.speculation.drafts import Drafter, Guess
from moeinf.store.library import StoredModel

PROMPT = "The little dog ran to the tree and said that the little dog ran to the tree. " * 3
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.8, "seed": 3, "top_k": 20, "min_tokens": 30},
    {"temperature": 1.2, "seed": 4, "stop": ("the", "dog")},
    {"temperature": 0.0, "top_logprobs": 3},
)
FORM = {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}


class Known:
    """Guesses the answer that was made before, and every n-th token wrong."""

    kind: str | None = None

    def __init__(self, answer: Sequence[int], prompt: int, wrong: int) -> None:
        self._answer, self._prompt, self._wrong = answer, prompt, wrong

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        at = len(tokens) - self._prompt
        right = self._answer[at : at + most]
        return Guess([token + (self._wrong > 0 and (at + i) % self._wrong == 0) for i, token in enumerate(right)], "")

    def close(self) -> None:
        pass


def opened(stored: StoredModel, speculate: str, parallel: int = 1, **options: Any) -> Model:
    config = RuntimeConfig.of(device="cpu", threads=2, speculate=speculate, **options)
    return Model(stored, replace(config, parallel=parallel))


def answered(model: Model, settings: dict[str, Any], **more: Any) -> tuple[Completion, list[ChosenToken]]:
    told: list[ChosenToken] = []
    params = model.params(**{"num_predict": 40, **settings})
    return model.generate(PROMPT, params, raw=True, hooks=Hooks(on_token=told.append), **more), told


def same(one: Completion, other: Completion) -> bool:
    return (one.token_ids, one.text, one.finish_reason, one.stop) == (
        other.token_ids,
        other.text,
        other.finish_reason,
        other.stop,
    )


@pytest.mark.parametrize("wrong", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"expert_cache": "15%"}], ids=["resident", "streamed"])
def test_answers_are_the_same_whatever_is_guessed(demo: StoredModel, options: dict[str, Any], wrong: int) -> None:
    with opened(demo, "off", **options) as plain, opened(demo, "always", **options) as model:
        prompt, accepted = len(plain.encode(PROMPT)), 0
        for settings in SETTINGS:
            wanted, chances = answered(plain, settings)

            def known(sequence: CachedTokens, answer: Sequence[int] = wanted.token_ids) -> Drafter:
                return Known(answer, prompt, wrong)

            model.generator.drafting = Drafting(model.config.speculation, [known])
            found, told = answered(model, settings)
            assert same(found, wanted) and told == chances
            drafts = found.stats.drafts
            assert drafts.drafted > 0 and wanted.stats.drafts.drafted == 0
            accepted += drafts.accepted
            assert found.stats.generated_tokens == wanted.stats.generated_tokens
            assert len(found.stats.token_s) == len(wanted.stats.token_s)
        assert (accepted == 0) if wrong == 1 else accepted > 50
        model.tier.check_integrity()


def test_what_the_prompt_says_already_is_guessed_and_a_form_is_held(demo: StoredModel) -> None:
    settings = {"temperature": 0.0, "num_predict": 60}
    with opened(demo, "off") as plain, opened(demo, "always") as model:
        wanted, found = answered(plain, settings)[0], answered(model, settings)[0]
        assert same(found, wanted) and found.stats.drafts.accepted > 3
        assert model.generator.decoded_tokens == len(found.stats.token_s) == 59
        wanted, found = answered(plain, settings, format=FORM)[0], answered(model, settings, format=FORM)[0]
        assert same(found, wanted) and found.stats.drafts.drafted > 0


def test_an_answer_that_is_left_in_mid_step_keeps_what_was_read(demo: StoredModel) -> None:
    with opened(demo, "off") as plain, opened(demo, "always") as model:
        wanted = answered(plain, SETTINGS[0])[0]
        prompt = len(plain.encode(PROMPT))

        def known(sequence: CachedTokens) -> Drafter:
            return Known(wanted.token_ids, prompt, 0)

        model.generator.drafting = Drafting(model.config.speculation, [known])
        for length in range(3, 12):
            answered(model, {"temperature": 0.0, "num_predict": length})
            pieces = model.generator.answer(Request(PROMPT, model.params(**SETTINGS[0], num_predict=40), raw=True))
            with closing(pieces):
                for _ in range(length):
                    next(pieces)
            sequence = model.generator.sequences.last
            assert len(sequence.tokens) == sequence.cache.length
            assert sequence.tokens[prompt:] == wanted.token_ids[: len(sequence.tokens) - prompt]
        assert same(answered(model, SETTINGS[0])[0], wanted)


def test_answers_side_by_side_guess_too(demo: StoredModel) -> None:
    with opened(demo, "off") as plain:
        wanted = [answered(plain, settings)[0] for settings in SETTINGS]
    with opened(demo, "always", parallel=3) as model:
        asked = [Request(PROMPT, model.params(**{"num_predict": 40, **settings}), raw=True) for settings in SETTINGS]
        answers = [model.generator.begin(each) for each in asked[:3]]
        waiting = answers
        while waiting := [each for each in waiting if any(piece is None for piece in each.pieces)]:
            model.generator.step()
    for answer, one in zip(answers, wanted[:3], strict=True):
        assert same(answer.completion, one)
    assert sum(answer.completion.stats.drafts.drafted for answer in answers) > 0


def test_a_given_text_is_measured_without_guesses_unless_they_are_asked_for(demo: StoredModel) -> None:
    for mode, guesses in (("auto", False), ("always", True)):
        with opened(demo, mode) as model:
            prompt = model.encode(PROMPT)
            stats = model.replay(prompt, prompt[1:40])
            assert (stats.drafts.drafted > 0) == guesses and stats.generated_tokens == 40


def test_it_can_be_left_out_and_refuses_what_cannot_be(demo: StoredModel, tmp_path: Any) -> None:
    with opened(demo, "off") as model:
        assert answered(model, SETTINGS[0])[0].stats.drafts.drafted == 0
    with pytest.raises(UsageError, match="--speculate always: --trace records"):
        opened(demo, "always", trace=str(tmp_path / "trace"))
    with pytest.raises(UsageError, match="unknown --speculate 'maybe'; known: auto, off, always"):
        opened(demo, "maybe")
    with pytest.raises(UsageError, match="--draft-max must be from 1 to 7, not 8"):
        opened(demo, "auto", draft_max=8)


def test_a_small_model_guesses_and_changes_no_answer(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    with opened(demo, "off") as model:
        wanted = [answered(model, settings) for settings in SETTINGS]
    for cache in ("auto", "30%"):
        with opened(demo, "always", draft=demo.name, expert_cache=cache) as model:
            assert model.planned_bytes > model.plan.total_bytes + model.draft_bytes > 2 * model.plan.dense_bytes
            for settings, (answer, told) in zip(SETTINGS, wanted, strict=True):
                found, chosen = answered(model, settings)
                assert found.token_ids == answer.token_ids and chosen == told
                assert found.stats.drafts.drafted > 0
    with pytest.raises(UsageError, match="leave one out"):
        opened(demo, "off", draft=demo.name)
    with pytest.raises(UsageError, match=r"--draft .*--trace records"):
        opened(demo, "auto", draft=demo.name, trace=str(demo.path.parents[1] / "trace"))


def test_a_draft_model_is_closed_where_the_other_one_cannot_be_opened(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    closed, close = list[ModelParts](), ModelParts.close

    def counted(self: ModelParts) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(ModelParts, "close", counted)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        opened(demo, "auto", draft=demo.name, trace=str(tmp_path / "file"))
    assert [each.stored.name for each in closed] == [demo.name]
