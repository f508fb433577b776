"""How long a context a server gives a model at most."""

from __future__ import annotations

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.plan import wanted_context
from moeinf.engine.stored.facts import facts_of
from moeinf.engine.stored.fits_beside import LEAST_EXPERTS, planned
from moeinf.engine.stored.outline import outline_of
from moeinf.engine.stored.preset import preset_of
from moeinf.errors import MoeinfError
from moeinf.gpu.cuda import find_cuda
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel


def longest_context(stored: StoredModel, config: RuntimeConfig, alone: Machine) -> int:
    """The one that was asked for, or that goes with the model's name; else the longest that leaves memory for half of
    the experts that there would be room for without. On a GPU, and of an encoder-decoder, that which the model is
    opened with. Never more than the model's.

    alone: the machine without models. Reads small files. Raises StoreError.
    """
    info, config = stored.manifest.info, preset_of(stored).configured(config)
    if config.memory.context is not None:
        return min(config.memory.context, info.context_length)
    if facts_of(stored).family.encoder_input is not None or _on_gpu(config):
        return wanted_context(info, config)
    try:
        outline = outline_of(stored)
        best = planned(stored, outline, config, alone)
    except MoeinfError:  # whoever opens it is told why it cannot be
        return wanted_context(info, config)
    context = info.context_length
    while context > best.context:
        try:
            plan = planned(stored, outline, config.changed(context=context), alone)
        except MoeinfError:
            plan = None
        if plan is not None and plan.held_experts >= LEAST_EXPERTS * best.held_experts:
            return context
        context //= 2
    return best.context


def _on_gpu(config: RuntimeConfig) -> bool:
    compute = config.compute
    return compute.where != "cpu" and find_cuda(compute.devices[0], lambda line: None) is not None
