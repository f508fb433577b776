"""Sets how far the answers of an open model may differ: as was measured before, or as is measured now."""

from __future__ import annotations

import hashlib

from moeinf.config import RuntimeConfig
from moeinf.config.user_text import text_of
from moeinf.engine.approximate.approx_file import Measured, load, save
from moeinf.engine.approximate.calibration import calibrated, tokens_of
from moeinf.engine.build_context import BuildContext
from moeinf.engine.memory.footprint import kept_format
from moeinf.engine.runner import ModelRunner
from moeinf.runtime.approximate import ApproximateExperts
from moeinf.text.tokenizer import Tokenizer


def approximate(context: BuildContext, runner: ModelRunner, experts: ApproximateExperts, tokenizer: Tokenizer) -> None:
    """Lets tokens do without experts, as --approx allows. Raises UsageError for a text that cannot be measured on."""
    config, stored, notify = context.host.config, context.weights.stored, context.reporting.notify
    budget = config.experts.approx
    assert budget is not None, "answers are to be exact"
    text = text_of("--approx-text", config.experts.approx_text)
    if budget == 0 or runner.tier.has_room_for_all:
        notify(f"{experts.within}: {'nothing may differ' if budget == 0 else 'every expert fits'}; answers are exact")
        return
    moe, deciders = context.moe, context.deciders
    how = (deciders.policy, deciders.predictor, kept_format(stored.manifest.info, config))
    measured = Measured(budget, text, runner.tier.num_experts / moe.total_experts, how)
    before = load(stored, measured)
    if before is not None:
        experts.within = before
    else:
        tokens = tokens_of(text, tokenizer, runner.plan.context)
        found = calibrated(runner, experts, tokens, budget, context.reporting.step)
        save(stored, measured, found)
    within = experts.within
    notify(
        f"{within}: a token may do without experts of {within.most_lost:.0%} of its weight in a layer; the same prompt "
        "may get another answer the next time"
        if within.most_lost
        else f"{within}: no expert can be given up within it; answers are exact"
    )


def key_of(config: RuntimeConfig) -> str:
    """What tells approximate keys and values from exact ones, and from those of another budget or text."""
    text = hashlib.sha256(text_of("--approx-text", config.experts.approx_text).encode()).hexdigest()
    return f"{config.experts.approx} {text}"
