"""What becomes of an ask once its model is known: it is refused, or made whole by what the model's name says."""

from __future__ import annotations

from dataclasses import replace

from moeinf.engine.stored.facts import facts_of
from moeinf.engine.stored.preset import preset_of
from moeinf.engine.vision.parts import without_pictures
from moeinf.sampling.params import SamplingParams
from moeinf.server.ask import Ask, Inputs
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.agent_noise import without_noise
from moeinf.server.prompt.forced_calls import forced_calls
from moeinf.server.prompt.prompt_preset import with_preset
from moeinf.store.library import StoredModel


def admitted(ask: Ask, stored: StoredModel) -> Ask:
    """The ask as the model is given it, before anybody waits. Reads small files, the first time.

    Raises Refusal, UsageError, StoreError, TextError.
    """
    facts = facts_of(stored)
    capabilities = {*facts.capabilities, *(["tools"] if facts.template_with_tools else [])}  # in some way or other
    for need in ask.needs:
        if (need.capability in capabilities) != need.wanted:
            raise Refusal(400, need.refusal)
    if ask.tools.forced is not None:
        ask = replace(ask, format=forced_calls(facts, ask.tools.offered, ask.tools.forced or None))
    ask = with_preset(ask, preset_of(stored))
    if isinstance(ask.prompt, Inputs):
        if facts.family.encoder_input is not None:
            raise Refusal(400, f"{ask.model} makes no embeddings, as an encoder-decoder model; ask another model")
        ask = replace(ask, prompt=replace(ask.prompt, pooling=facts.pooling))
    if ask.chat:
        if without_pictures(ask.chat)[1] and (why := facts.why_no_vision):
            raise Refusal(400, f"{why}; leave out images")
        ask = replace(ask, prompt=without_noise(ask.chat))
    SamplingParams(**ask.params)  # refuses what is out of range
    return ask
