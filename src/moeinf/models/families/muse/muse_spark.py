"""Meta's Muse Spark Open (816B), which sees pictures (MuseSparkForConditionalGeneration in transformers).

What attention and blocks give has a norm, and a gate of each column weighs it against what was there. Experts compute
in a narrower space, and the output of each has a norm before it is weighed. Checkpoints hold a model of sound beside
it, which is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.families.muse.spark_layers import Behind, ResidualGate, SparkMixer, gate_name, normed, scaled_norm
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import Connections, DecoderFamily, Spec
from moeinf.models.layers.attention_config import NormConfig, Scores, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.moe import BlockSite, Latent, Moe, sparse_layers
from moeinf.models.layers.moe_block import DenseBlock, MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.models.layers.routers import SigmoidRouter, sigmoid_moe
from moeinf.models.layers.streams.stem import PlainStem
from moeinf.models.layers.vision.of_families.muse_vision import muse_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import TextIn
from moeinf.models.widened import widened
from moeinf.types import JsonObject, Profiler

_NORM = "post_feedforward_layernorm.weight"


def _parse(f: Fields) -> Spec:
    f.only("attention_bias", False, None)
    unsaid = all(f.get(name) is None for name in ("rope_parameters", "rope_scaling"))
    base = 500_000.0 if unsaid else 10_000.0  # as transformers fills it in
    head_dim = f.count("head_dim", 64, minimum=2)
    decoder = parse_decoder(f, norm_eps=1e-5, theta=base, norm="rms+1", head_dim=head_dim)
    n, scale = decoder.num_layers, f.number("output_multiplier", 0.1767766952966369)
    last = [(n - 1 - i) % 4 == 0 for i in range(n)]  # which see all and have no positions, where nothing is said
    kinds = f.kinds("layer_types", n, "sliding_attention", "full_attention")
    slides = [not all_seen for all_seen in last] if kinds is None else [kind == "sliding_attention" for kind in kinds]
    theta = f.within("rope_parameters").number("rope_theta", f.number("rope_theta", base))
    decoder = decoder.with_windows(slides, f.count("sliding_window", 2048)).without_positions(_unturned(f, last, theta))
    factor = f.number("qk_scale_factor", 5.4730064863875) * decoder.attention.head_dim**-0.5
    decoder = decoder.with_attention(lambda i, attention: replace(attention, scores=Scores(factor)))
    decoder = replace(decoder, logits=Logits(scale, f.number("final_logit_softcapping", 20.0)))
    behind = Behind(f.number("post_norm_eps", 1e-8), f.number("residual_gate_temperature", 0.3))
    layers = sparse_layers(f, n, first_dense=0)
    blocks = widened(
        SparkMoe,
        sigmoid_moe(f.replaced(n_shared_experts=0), n, router=SparkRouter, moe_layers=layers),
        behind=behind,
        latent_size=f.count("moe_hidden_size", 4096),
        multiplier=scale,
    )
    decoder = decoder.named(norms=LayerNorms(block="pre_feedforward_layernorm"), last_norm=None)
    mixers = {i: SparkMixer(decoder.attention_of(i), behind) for i in range(n)}
    return Spec(decoder, blocks, mixers, SparkConnections())


def _unturned(f: Fields, last: list[bool], theta: float) -> set[int]:
    """The layers without positions. A list of bases says which; the base of the others is that of all."""
    bases = f.get("layer_rope_theta")
    if bases is None:
        return {i for i, without in enumerate(last) if without}
    if not isinstance(bases, list) or len(bases) != len(last):
        raise CheckpointError(f"{f.where}: layer_rope_theta must be a list of a number for each of {len(last)} layers")
    if any(base not in (0, theta) for base in bases):
        raise UnsupportedModelError(
            f"{f.where}: layers whose layer_rope_theta is neither 0 nor rope_theta, {theta:g}, are not supported"
        )
    return {i for i, base in enumerate(bases) if base == 0}


class SparkRouter(SigmoidRouter):
    added = 1e-15

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        super().__init__(layers, moe, site)
        assert isinstance(moe, SparkMoe)
        self._multiplier = moe.multiplier

    def _scores(self, logits: Array) -> Array:
        return self._math.sigmoid(logits * self._multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMoe(Moe):
    fused_first = True

    behind: Behind
    latent_size: int  # that experts compute in
    multiplier: float  # of the router's logits

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden, narrow = Moe.shapes(self, decoder), decoder.attention.hidden_size, self.latent_size
        for i in range(decoder.num_layers):
            shapes |= {decoder.layer(i) + _NORM: (hidden,), gate_name(decoder, i, "feedforward"): (hidden,)}
        for i in self.moe_layers:
            prefix = decoder.layer(i) + self.names.block
            shapes |= {f"{prefix}pre_expert_proj.weight": (narrow, hidden)}
            shapes |= {f"{prefix}post_expert_proj.weight": (hidden, narrow)}
            shapes |= {f"{prefix}pre_expert_norm.weight": (narrow,), self._output_norm(prefix): (narrow,)}
        return shapes

    def _output_norm(self, block: str) -> str:
        return f"{block}experts.post_expert_norm.weight"

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        return replace(Moe.experts(self, decoder), hidden_size=self.latent_size)

    def latent(self, weights: Weights, decoder: DecoderConfig, site: BlockSite) -> Latent | None:
        """The weight of the norm of experts' outputs, which all experts have alike, comes behind their sum."""
        into, out_of = (weights.linear(f"{site.block}{name}_expert_proj.weight") for name in ("pre", "post"))
        norm = weights.norm(NormConfig(f"{site.block}pre_expert_norm.weight", decoder.attention.norm_eps, "rms+1"))
        scale = weights.vector(self._output_norm(site.block)) + 1
        return lambda hidden: norm(into(hidden)), lambda found: out_of(found * scale)

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights = layers.weights
        experts.norm_outputs(site.moe_layer, weights.vector(self._output_norm(site.block)) + 1, self.behind.eps)
        return MoeBlock(
            site.moe_layer,
            SparkRouter(layers, self, site),
            experts,
            profiler,
            latent=self.latent(weights, decoder, site),
            behind=scaled_norm(weights, decoder.layer(site.layer) + _NORM, self.behind.eps),
            joins=self._gate(weights, decoder, site.layer),
        )

    def dense(self, decoder: DecoderConfig, layers: Layers, site: BlockSite) -> Block:
        weights = layers.weights
        mlp = SharedExpert(weights, site.block, names=self.names.dense, activation=decoder.activation)
        behind = scaled_norm(weights, decoder.layer(site.layer) + _NORM, self.behind.eps)
        return DenseBlock(weights.norm(site.norm), mlp, behind, joins=self._gate(weights, decoder, site.layer))

    def _gate(self, weights: Weights, decoder: DecoderConfig, layer: int) -> ResidualGate:
        return ResidualGate(weights, gate_name(decoder, layer, "feedforward"), self.behind.temperature)


class SparkStem(PlainStem):
    """The embedding has a norm without weights, and what a tower gives in its place has the same one; that of the last
    layer is of another kind than those in front."""

    def __init__(self, layers: Layers, decoder: DecoderConfig) -> None:
        super().__init__(layers.embedding(decoder.embedding))
        self._math, self._eps = layers.weights.math, decoder.attention.norm_eps
        self._last: Callable[[Hidden], Hidden] = layers.weights.norm(_last_norm(decoder))

    def begin(self, x: Array) -> Hidden:
        return normed(self._math, x, self._eps)

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return self._last(pick(x))


def _last_norm(decoder: DecoderConfig) -> NormConfig:
    return NormConfig(f"{decoder.prefix}norm.weight", decoder.attention.norm_eps)


@dataclass(frozen=True, slots=True)
class SparkConnections(Connections):
    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return {_last_norm(decoder).name: (decoder.attention.hidden_size,)}

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention = spec.decoder, spec.attention(layers)
        blocks = spec.blocks.make(d, layers, experts, profiler)
        return Decoder(d, layers, blocks, experts, profiler, attention, SparkStem(layers, d))


class Family(DecoderFamily):
    name = "muse_spark"
    divisible = False  # a stem of its own
    parse = staticmethod(_parse)
    ignored = (r"model\.(vision_tower|vision_adapter|vision_projection|audio_tower)\..*",)
    text = TextIn()

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: muse_vision(config, self.decoder.attention.hidden_size))
