"""Nemotron 3: Mamba-2, few layers of attention, and experts without a gate (NemotronHForCausalLM).

A layer of the checkpoint is one thing: Mamba-2, attention, a dense MLP or experts, each behind a norm of its own. Here
one that mixes tokens and the block behind it are one layer, so that the next router can be asked ahead of its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import Fields
from moeinf.models.layers.absent import NoAttention, NoBlock, NoMixer
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import CommonAttention, Connections, DecoderFamily, Mixer, Spec
from moeinf.models.layers.attention_config import NormConfig, Shapes, linear_shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Shared
from moeinf.models.layers.moe_block import MoeBlock, PlainBlock, UngatedMLP
from moeinf.models.layers.moe_plan import UngatedExperts, ungated_experts_plan
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Weights
from moeinf.models.layers.recurrent.mamba2 import mamba_mixer
from moeinf.models.layers.recurrent.mamba_config import MambaConfig
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.widened import widened
from moeinf.types import Profiler, TensorPlan

MTP = r"mtp\..*"  # further layers that guess tokens ahead: kept, and not used
MIN_STEP = 0.001  # time_step_min of every published config, and its default
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEW_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}  # of transformers 5
_MIXERS = ("mamba", "attention")


def parse(f: Fields, in_one: tuple[str, str] | None = None) -> Spec:
    """in_one: names of all experts' matrices up and down, transposed, where a checkpoint may have them so."""
    f.fixed(mamba_hidden_act="silu", n_shared_experts=1, sliding_window=None)
    f.only("rms_norm_eps", f.get("layer_norm_epsilon"), None)  # not what the published code reads
    _refuse_longer_steps(f)
    kinds = _kinds(f)
    eps = f.number("layer_norm_epsilon", 1e-5, zero=True)
    # attention_bias and mamba_proj_bias mean nothing in transformers, which looks for no such tensors
    decoder = parse_decoder(
        f.replaced(num_hidden_layers=len(kinds)),  # which may be missing, or of another model
        norm_eps=eps,
        theta=1e4,
        rope=None,
        head_dim=f.count("head_dim", 128, minimum=2),
        bias=False,
        output_bias=False,
    )
    decoder = replace(
        decoder.named(
            norms=LayerNorms(attention="norm", block=None),
            prefix="backbone.",
            attention="mixer",
            embedding="embeddings",
            last_norm="norm_f",
        ),
        activation=activation_of(f, "mlp_hidden_act", "relu2"),
    )
    moe_layers = tuple(i for i, kind in enumerate(kinds) if kind == "moe")
    if not moe_layers:
        raise CheckpointError("config.json: hybrid_override_pattern leaves no layer with experts")
    moe = sigmoid_moe(f, len(kinds), moe_layers=moe_layers)
    mamba = MambaConfig(
        decoder.attention.hidden_size,
        f.count("mamba_num_heads", 128),
        f.count("mamba_head_dim", 64),
        f.count_of("n_groups", "mamba_n_groups"),
        f.count("ssm_state_size", 128),
        f.count_of("conv_kernel", "mamba_d_conv"),
        eps,
        f.flag("use_conv_bias", True),
        f.flag("use_bias", False),
    )
    blocks = widened(
        NemotronMoe,
        replace(
            moe, names=BlockNames(block="mixer."), shared=Shared(1, f.count("moe_shared_expert_intermediate_size"))
        ),
        kinds=kinds,
        latent_size=f.count("moe_latent_size", 0),
        in_one=in_one,
        biased=f.flag("mlp_bias", False),
    )
    of_kind: dict[str, Mixer] = {
        "mamba": replace(mamba_mixer(mamba), module="mixer"),
        "attention": CommonAttention(decoder.attention),
    }
    mixers = {i: of_kind.get(kind, NoMixer()) for i, kind in enumerate(kinds)}
    return Spec(decoder, blocks, mixers, Halves(kinds))


def _refuse_longer_steps(f: Fields) -> None:
    for name in ("time_step_min", "mamba_dt_min"):  # the second is an older name
        if f.number(name, MIN_STEP, zero=True) > MIN_STEP:
            raise UnsupportedModelError(
                f"{f.where}: {name} = {f.get(name)} is not supported (only up to {MIN_STEP}): published code takes it "
                "for a bound of initial values, and transformers for one of steps"
            )


def _kinds(f: Fields) -> tuple[str, ...]:
    """A list says them, or a string with a letter for each."""
    name = next((name for name in ("layers_block_type", "layer_types") if f.get(name) is not None), None)
    if name is not None:
        listed = f.get(name)
        length = len(listed) if isinstance(listed, list) else 0
        if not length:
            raise CheckpointError(f"{f.said(name)} is {listed!r:.100}; it must name the layers")
        kinds = f.kinds(name, length, *_PATTERN.values(), *_NEW_NAMES)
        return tuple(_NEW_NAMES.get(kind, kind) for kind in kinds or ())
    pattern = f.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        raise CheckpointError(
            f"{f.where}: hybrid_override_pattern is {pattern!r:.100}; it or layers_block_type must name the layers"
        )
    if not set(pattern) <= _PATTERN.keys():
        raise UnsupportedModelError(
            f"{f.where}: hybrid_override_pattern = {pattern!r:.100} is not supported (only {' '.join(_PATTERN)})"
        )
    return tuple(_PATTERN[letter] for letter in pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronMoe(Moe):
    """Of each layer of the checkpoint."""

    kinds: tuple[str, ...]  # mamba, attention, mlp or moe
    latent_size: int  # that experts compute in; 0: the model's own
    in_one: tuple[str, str] | None  # as UngatedExperts.transposed
    biased: bool  # every matrix but those of routed experts

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden = Shapes(), decoder.attention.hidden_size
        for i, kind in enumerate(self.kinds):
            if kind == "mlp":
                shapes |= self._plain_shapes(hidden, self.intermediate_size, f"{decoder.layer(i)}mixer.")
        for number, i in enumerate(self.moe_layers):
            prefix, count = f"{decoder.layer(i)}mixer.", self.moe.experts_of(number)
            shapes |= {f"{prefix}gate.weight": (count, hidden), f"{prefix}gate.e_score_correction_bias": (count,)}
            shapes |= self._plain_shapes(hidden, self.shared.size, f"{prefix}shared_experts.")
            if self.latent_size:
                shapes |= linear_shapes(f"{prefix}fc1_latent_proj", self.latent_size, hidden, biased=self.biased)
                shapes |= linear_shapes(f"{prefix}fc2_latent_proj", hidden, self.latent_size, biased=self.biased)
        return shapes

    def _plain_shapes(self, hidden: int, intermediate: int, prefix: str) -> Shapes:
        up = linear_shapes(f"{prefix}up_proj", intermediate, hidden, biased=self.biased)
        return up | linear_shapes(f"{prefix}down_proj", hidden, intermediate, biased=self.biased)

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        blocks = [f"{decoder.layer(i)}mixer." for i in self.moe_layers]
        width = self.latent_size or decoder.attention.hidden_size
        experts = UngatedExperts(blocks, width, self.moe_intermediate_size, decoder.activation, transposed=self.in_one)
        return ungated_experts_plan(decoder, self.moe, dense, experts)

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        made, weights = list[Block](), layers.weights
        for i, kind in enumerate(self.kinds):
            prefix = f"{decoder.layer(i)}mixer."
            norm = NormConfig(f"{decoder.layer(i)}norm.weight", decoder.attention.norm_eps)
            if kind == "mlp":
                made.append(PlainBlock(weights.norm(norm), self._plain(weights, prefix, decoder)))
            elif kind == "moe":
                site = BlockSite(i, self.moe_layers.index(i), prefix, norm)
                made.append(self.routed(decoder, layers, experts, profiler, site))
            else:
                made.append(NoBlock())
        return made

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights, prefix = layers.weights, site.block
        into, back = f"{prefix}fc1_latent_proj.", f"{prefix}fc2_latent_proj."
        return MoeBlock(
            site.moe_layer,
            self.router(layers, self, site),
            experts,
            profiler,
            shared=self._plain(weights, f"{prefix}shared_experts.", decoder),
            latent=(self._linear(weights, into), self._linear(weights, back)) if self.latent_size else None,
        )

    def _plain(self, weights: Weights, prefix: str, decoder: DecoderConfig) -> UngatedMLP:
        return UngatedMLP(weights, prefix, decoder.activation, biased=self.biased)

    def _linear(self, weights: Weights, prefix: str) -> Callable[[Hidden], Hidden]:
        return weights.linear(f"{prefix}weight", f"{prefix}bias" if self.biased else None)


@dataclass(frozen=True, slots=True)
class Halves(Connections):
    """A layer that mixes tokens and the block behind it run as one."""

    kinds: tuple[str, ...]  # of the layers of the checkpoint

    @property
    def halves(self) -> list[tuple[int | None, int | None]]:
        """Of each layer as it runs: the layer of the checkpoint that mixes its tokens, and its block."""
        found: list[tuple[int | None, int | None]] = []
        for i, kind in enumerate(self.kinds):
            if kind in _MIXERS:
                found.append((i, None))
            elif found and found[-1][1] is None:
                found[-1] = (found[-1][0], i)
            else:
                found.append((None, i))
        return found

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention, blocks = spec.decoder, list[Attention](), list[Block]()
        made = spec.blocks.make(d, layers, experts, profiler)
        for number, (mixing, block) in enumerate(self.halves):
            mixer = None if mixing is None else spec.mixers[mixing]
            if mixing is not None and isinstance(mixer, Recurrent | CommonAttention):
                attention.append(mixer.of_site(layers, replace(d.attention_site(mixing), layer=number)))
            else:
                attention.append(NoAttention())
            blocks.append(NoBlock() if block is None else made[block])
        return Decoder(d, layers, blocks, experts, profiler, attention)


class Family(DecoderFamily):
    name = "nemotron_h"
    divisible = False
    parse = staticmethod(parse)
    ahead = (MTP,)
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ((r"^model\.", "backbone."),)
