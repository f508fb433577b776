"""Nemotron 3: Mamba-2, few layers of attention, and experts without a gate (NemotronHForCausalLM).

A layer of the checkpoint is one thing: Mamba-2, attention, a dense MLP or experts, each behind a norm of its own. Here
one that mixes tokens and the block behind it are one layer, so that the next router can be asked ahead of its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import Fields
from moeinf.models.layers.absent import NoAttention, NoBlock
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes, attention_workspace
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe
from moeinf.models.layers.moe_block import MoeBlock, PlainBlock, UngatedMLP
from moeinf.models.layers.moe_plan import UngatedExperts, ungated_experts_plan
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers
from moeinf.models.layers.recurrent.mamba2 import Mamba2Part
from moeinf.models.layers.recurrent.mamba_config import MambaConfig, mamba_shapes, mamba_workspace
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.types import JsonObject, Profiler, TensorPlan, Workspace

MTP = r"mtp\..*"  # further layers that guess tokens ahead: kept, and not used
MIN_STEP = 0.001  # time_step_min of every published config, and its default
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEW_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}  # of transformers 5
_MIXERS = ("mamba", "attention")


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    mamba: MambaConfig
    moe: Moe
    kinds: tuple[str, ...]  # of the layers of the checkpoint: mamba, attention, mlp or moe
    latent_size: int  # that experts compute in; 0: the model's own

    @staticmethod
    def parse(f: Fields) -> Config:
        for name, *allowed in (
            ("mamba_hidden_act", "silu"),
            ("mlp_bias", False),
            ("use_bias", False),
            ("n_shared_experts", 1),
            ("sliding_window", None),
            ("rms_norm_eps", f.get("layer_norm_epsilon")),  # not what the published code reads
        ):
            f.only(name, *allowed, None)
        _refuse_longer_steps(f)
        kinds = _kinds(f)
        eps = f.number("layer_norm_epsilon", 1e-5, zero=True)
        # attention_bias and mamba_proj_bias mean nothing in transformers, which looks for no such tensors
        decoder = parse_decoder(
            _with_layers(f, len(kinds)),
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
                embedding="embeddings",
                last_norm="norm_f",
            ),
            activation=activation_of(f, "mlp_hidden_act", "relu2"),
        )
        moe_layers = tuple(i for i, kind in enumerate(kinds) if kind == "moe")
        if not moe_layers:
            raise CheckpointError("config.json: hybrid_override_pattern leaves no layer with experts")
        moe = Moe.parse(f, len(kinds), router=SigmoidRouter, normalise=True, corrected=True, moe_layers=moe_layers)
        mamba = MambaConfig(
            decoder.attention.hidden_size,
            f.count("mamba_num_heads", 128),
            f.count("mamba_head_dim", 64),
            f.count_of("n_groups", "mamba_n_groups"),
            f.count("ssm_state_size", 128),
            f.count_of("conv_kernel", "mamba_d_conv"),
            eps,
            f.flag("use_conv_bias", True),
        )
        shared = replace(moe.shared, size=f.count("moe_shared_expert_intermediate_size"))
        moe = replace(moe, names=BlockNames(block="mixer."), shared=shared)
        return Config(decoder, mamba, moe, kinds, f.count("moe_latent_size", 0))

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

    def layer(self, number: int) -> str:
        return f"{self.decoder.prefix}layers.{number}."

    def block_norm(self, number: int) -> NormConfig:
        return NormConfig(f"{self.layer(number)}norm.weight", self.decoder.attention.norm_eps)


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


def _with_layers(f: Fields, count: int) -> Fields:
    """num_hidden_layers may be missing, or of another model: the kinds of layers count."""
    return f.with_values(num_hidden_layers=count)


class Family(DecoderFamily):
    name = "nemotron_h"
    divisible = False
    num_shared_experts = 1
    ahead = (MTP,)
    renamed: ClassVar[Mapping[str, str]] = {r"^model\.": "backbone."}
    transposed: ClassVar[tuple[str, str] | None] = None  # as UngatedExperts has it

    def __init__(self, config: JsonObject) -> None:
        self.take_config(Config.parse(Fields(config)))

    def take_config(self, c: Config) -> None:
        self._config = c
        self.decoder, self.moe = c.decoder, c.moe.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        attention, blocks = list[Attention](), list[Block]()
        for number, (mixer, block) in enumerate(self._config.halves):
            attention.append(NoAttention() if mixer is None else self._mixer(layers, mixer, number))
            blocks.append(NoBlock() if block is None else self._block(layers, block, experts, profiler))
        return Decoder(self.decoder, layers, blocks, experts, profiler, attention)

    def _mixer(self, layers: Layers, number: int, state: int) -> Attention:
        c = self._config
        site = AttentionSite(state, f"{c.layer(number)}mixer.", c.block_norm(number).name)
        if c.kinds[number] == "mamba":
            return layers.make(Mamba2Part(c.mamba, site))
        return layers.make(AttentionPart(c.decoder.attention, site))

    def _block(self, layers: Layers, number: int, experts: Experts, profiler: Profiler) -> Block:
        c, weights, prefix = self._config, layers.weights, f"{self._config.layer(number)}mixer."
        norm = c.block_norm(number)
        if c.kinds[number] == "mlp":
            return PlainBlock(weights.norm(norm), UngatedMLP(weights, prefix, c.decoder.activation))
        into, back = f"{prefix}fc1_latent_proj.weight", f"{prefix}fc2_latent_proj.weight"
        latent = (weights.linear(into), weights.linear(back)) if c.latent_size else None
        return MoeBlock(
            c.moe.moe_layers.index(number),
            SigmoidRouter(layers, c.moe, BlockSite(number, c.moe.moe_layers.index(number), prefix, norm)),
            experts,
            profiler,
            shared=UngatedMLP(weights, f"{prefix}shared_experts.", c.decoder.activation),
            latent=latent,
        )

    def _layers(self, *kinds: str) -> Sequence[int]:
        return [i for i, kind in enumerate(self._config.kinds) if kind in kinds]

    def attention_shapes(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for i in self._layers(*_MIXERS):
            prefix = f"{c.layer(i)}mixer."
            shapes |= (
                mamba_shapes(c.mamba, prefix)
                if c.kinds[i] == "mamba"
                else attention_shapes(c.decoder.attention, prefix)
            )
        return shapes

    def block_shapes(self) -> Shapes:
        c, shapes, hidden = self._config, Shapes(), self.decoder.attention.hidden_size
        for i in self._layers("mlp"):
            shapes |= _plain_shapes(hidden, c.moe.intermediate_size, f"{c.layer(i)}mixer.")
        for number, i in enumerate(c.moe.moe_layers):
            prefix, count = f"{c.layer(i)}mixer.", c.moe.moe.experts_of(number)
            shapes |= {f"{prefix}gate.weight": (count, hidden), f"{prefix}gate.e_score_correction_bias": (count,)}
            shapes |= _plain_shapes(hidden, c.moe.shared.size, f"{prefix}shared_experts.")
            if c.latent_size:
                shapes[f"{prefix}fc1_latent_proj.weight"] = (c.latent_size, hidden)
                shapes[f"{prefix}fc2_latent_proj.weight"] = (hidden, c.latent_size)
        return shapes

    def plan(self) -> TensorPlan:
        c = self._config
        blocks = [f"{c.layer(i)}mixer." for i in c.moe.moe_layers]
        width = c.latent_size or self.decoder.attention.hidden_size
        experts = UngatedExperts(
            blocks, width, c.moe.moe_intermediate_size, self.decoder.activation, transposed=self.transposed
        )
        return ungated_experts_plan(self.decoder, self.moe, self.dense, experts)

    @property
    def attention_workspace(self) -> Workspace:
        return attention_workspace(self.decoder.attention) | mamba_workspace(self._config.mamba)

    @property
    def cache_numbers(self) -> int:
        a = self.decoder.attention
        return 2 * len(self._layers("attention")) * a.num_kv_heads * a.head_dim

    @property
    def state_bytes(self) -> int:
        return len(self._layers("mamba")) * self._config.mamba.state_bytes


def _plain_shapes(hidden: int, intermediate: int, prefix: str) -> Shapes:
    return {f"{prefix}up_proj.weight": (intermediate, hidden), f"{prefix}down_proj.weight": (hidden, intermediate)}
