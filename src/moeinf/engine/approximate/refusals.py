"""What --approx cannot be combined with."""

from __future__ import annotations

from moeinf.config import RuntimeConfig
from moeinf.engine.stored_weights import Weights
from moeinf.errors import UsageError


def refuse_approximation(weights: Weights, config: RuntimeConfig, *, on_gpu: bool, replayed: bool) -> None:
    """Raises UsageError where answers were asked to be approximate that cannot be."""
    if config.experts.approx is None:
        return
    moe, name = weights.manifest.moe, weights.stored.name
    refused = {
        f"{name} has one MLP in each layer, and no expert to do without": moe.dense,
        f"{name} is an encoder-decoder model": weights.family.encoder_input is not None,
        "kernels of a GPU choose experts by themselves; add --device cpu": on_gpu,
        "workers hold experts that this machine knows nothing of; leave out --workers": bool(config.compute.workers),
        "--trace records what routers choose; leave it out": bool(config.recording.trace),
        "--routing takes the place of the routers; leave it out": replayed,
    }
    for why, applies in refused.items():
        if applies:
            raise UsageError(f"--approx: {why}{'' if ';' in why else '; leave --approx out'}")
