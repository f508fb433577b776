"""Granite MoE with windows and attention sinks, and layers without positions (GraniteMoeSWAForCausalLM)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.mixtral import granitemoe, granitemoeshared
from moeinf.models.families.mixtral.granitemoe import parse_granite
from moeinf.models.families.mixtral.granitemoeshared import SharingMoe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import sliding_layers
from moeinf.models.layers.rope import rope_fields

_NAMES = replace(granitemoe.NAMES, gate="router.weight", fused=("experts.gate_up_proj", "experts.down_proj"))


def _parse(f: Fields) -> Spec:
    decoder, moe = parse_granite(f, _NAMES)
    layers, window = range(decoder.num_layers), f.count("sliding_window", 0 if "sliding_window" in f else 128) or None
    slides = sliding_layers(f, len(layers), lambda i: i % 4 != 0)
    decoder = replace(decoder, attention=decoder.attention.scored(sinks="sinks"))
    decoder = decoder.with_windows(slides, window)
    decoder = decoder.without_positions(_without_positions(f, len(layers)))
    return Spec(decoder, SharingMoe.beside(moe, f.count("shared_intermediate_size", 0, minimum=0)))


def _without_positions(f: Fields, num_layers: int) -> frozenset[int]:
    """layer_rope_theta has the base of each layer, 0 for none; bases that differ are not computed."""
    thetas = f.get("layer_rope_theta")
    if thetas is None:
        return frozenset()
    theta = rope_fields(f).number("rope_theta", f.number("rope_theta", 1e4))
    if not isinstance(thetas, list) or len(thetas) != num_layers or any(each not in (0, theta) for each in thetas):
        raise UnsupportedModelError(
            f"config.json: layer_rope_theta = {thetas!r:.100} is not supported (only 0 or {theta})"
        )
    return frozenset(i for i, each in enumerate(thetas) if each == 0)


class Family(DecoderFamily):
    name = "granitemoe_swa"
    parse = staticmethod(_parse)
    matrices = granitemoeshared.Family.matrices
