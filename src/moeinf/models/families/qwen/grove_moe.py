"""GroveMoE: Qwen3-MoE, where experts that lie beside each other also share a small one (arXiv 2508.07785).

transformers has no GroveMoE. This follows the code published with it (modeling_qwen3_moe.py of inclusionAI/GroveMoE,
GroveMoeSparseMoeBlock), in which a token's expert e with the weight w gives w (E_e(x) + 0.05 A_g(x)), g = e // 2. As
both are MLPs of the same x, that is one MLP, with the rows of both: each expert is stored with the small one of its
group behind it, so that one read brings both. No field of the published config.json has the three numbers of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.qwen.qwen3_moe import Family as Qwen3Moe
from moeinf.models.families.qwen.small_experts import SmallExpertsApart
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import MLP_NAMES, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.moe_plan import PARTS, Layout
from moeinf.types import ExpertPiece, TensorPlan


def _parse(f: Fields) -> Spec:
    f.only("norm_topk_prob", True, None)  # the published code does it whatever the field says
    spec = Qwen3Moe.parse(f.replaced(norm_topk_prob=True))
    own, decoder = spec.blocks, spec.decoder
    assert isinstance(own, Moe)
    group, small = f.count("num_experts_per_group", 2), f.count("parallel_expert_intermediate_size", 128)
    times, large = f.number("expert_group_scale", 0.05), own.moe_intermediate_size
    if own.moe.counts or own.moe.num_experts % group:
        raise UnsupportedModelError(f"config.json: num_experts is no whole number of groups of {group} in each layer")
    values = {each.name: getattr(own, each.name) for each in fields(own)}
    if f.flag("small_experts_apart", False):  # in a GGUF file
        return replace(spec, blocks=SmallExpertsApart(**values, small=small, group=group, times=times))
    values["moe_intermediate_size"] = large + small
    again = own.moe.total_experts // group * (group - 1)  # small experts that are stored once more
    filling = again * 3 * small * decoder.attention.hidden_size
    return replace(spec, blocks=GroveMoe(**values, large=large, group=group, times=times), filling=filling)


@dataclass(frozen=True, slots=True)
class GroveMoe(Moe):
    """The size of its experts is that of both together."""

    large: int = 0  # the size of an expert without the small one
    group: int = 1  # how many experts share one
    times: float = 1.0  # what the small one gives is multiplied by

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        return replace(Moe.plan(self, decoder, dense), experts=[self._layout(decoder)])

    def _layout(self, decoder: DecoderConfig) -> Layout:
        hidden, small, layout = decoder.attention.hidden_size, self.moe_intermediate_size - self.large, Layout()
        for number, layer in enumerate(self.moe_layers):
            block = decoder.layer(layer) + self.names.block
            for part, name in zip(PARTS, MLP_NAMES, strict=True):
                down = part == "down"
                whole, share = ((hidden, n) if down else (n, hidden) for n in (self.large, small))
                at, times = ((0, self.large), self.times) if down else ((self.large, 0), 1.0)
                for e in range(self.moe.num_experts):
                    own = ExpertPiece(number, e, part, 0, filled=whole, at=(0, 0))
                    layout[f"{block}experts.{e}.{name}.weight"] = whole, (own,)
                for e in range(0, self.moe.num_experts, self.group):
                    members = range(e, e + self.group)
                    pieces = tuple(ExpertPiece(number, m, part, 0, None, share, at, times) for m in members)
                    layout[f"{block}chunk_experts.{e // self.group}.{name}.weight"] = share, pieces
        return layout


class Family(DecoderFamily):
    name = "grove_moe"
    parse = staticmethod(_parse)
    ignored = (r".*\.mlp\.expert_bias",)  # which the published code does not use
