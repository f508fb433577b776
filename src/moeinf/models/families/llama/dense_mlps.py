"""MLPs that every token uses, one in each layer: to all but the network each is a layer's only expert.

So they are stored, quantised, cached, read ahead and measured as experts are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import BlockNames, BlockSite, MlpForm, Moe, Scoring
from moeinf.models.layers.moe_plan import PARTS, Layout
from moeinf.models.layers.protocol import Layers
from moeinf.types import ExpertForm, ExpertPiece, MoeShape, TensorPlan

PLAIN = BlockNames()
FUSED = BlockNames(experts=None, fused=("gate_up_proj.weight", "down_proj.weight"))


class OnlyExpert:
    """Norm, and the one expert that there is, with weight 1."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights = layers.weights
        self._norm, self._math, self._routing = weights.norm(site.norm), weights.math, weights.routing

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden = self._norm(x)
        one = hidden[:, :1] * 0.0 + 1.0  # no number where the state is none, which is looked for in weights
        return hidden, self._routing(self._math.top_k(one, 1), one)


@dataclass(frozen=True, slots=True)
class DenseMlps(Moe):
    @property
    def gated(self) -> bool:
        return self.expert_form is None or self.expert_form.gated

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        hidden, behind = (decoder.attention.hidden_size,), self.names.behind
        return {} if behind is None else {f"{decoder.layer(i)}{behind}.weight": hidden for i in self.moe_layers}

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, hidden, inter = Moe.plan(self, decoder, dense), decoder.attention.hidden_size, self.moe_intermediate_size
        biases: Shapes = {"gate_bias": (inter,), "up_bias": (inter,), "down_bias": (hidden,)}
        parts: Shapes = {**plan.parts, **(biases if self.form.biased else {})}
        if not self.gated:
            parts = {part: shape for part, shape in parts.items() if not part.startswith("gate")}
        layout = Layout()
        for layer, i in enumerate(self.moe_layers):
            block = decoder.layer(i) + self.names.block
            if self.names.experts is None:
                both, down = self.names.fused
                pieces = (ExpertPiece(layer, 0, "gate", 0), ExpertPiece(layer, 0, "up", inter * hidden))
                layout[block + both] = ((2 * inter, hidden), pieces)
                layout[block + down] = ((hidden, inter), (ExpertPiece(layer, 0, "down", 0),))
                continue
            names = dict(zip(PARTS, self.names.experts, strict=True))
            for part, shape in parts.items():
                name = names[part.removesuffix("_bias")] + (".bias" if part.endswith("_bias") else ".weight")
                layout[block + name] = (shape, (ExpertPiece(layer, 0, part, 0),))
        return replace(plan, parts=parts, experts=(layout,))


def dense_mlps(
    f: Fields, decoder: DecoderConfig, names: BlockNames = PLAIN, *, biased: bool = False, gated: bool = True
) -> DenseMlps:
    """biased: each matrix has a bias. gated: whether there is a matrix beside up and down."""
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        f.only(name, None, 0, 1)
    moe, layers = MoeShape(decoder.num_layers, 1, 1), tuple(range(decoder.num_layers))
    size = f.count("intermediate_size")
    form = ExpertForm(decoder.activation, gated=gated, biased=biased)
    return DenseMlps(
        moe, layers, 0, size, OnlyExpert, Scoring(corrected=False), form=MlpForm(biased), names=names, expert_form=form
    )
