"""Aria, the language model of it: softmax over the chosen experts, beside some that all tokens share (AriaText).

Experts were published transposed. Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from moeinf.models.families.ernie.ernie4_5_moe import SoftmaxRouter
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, MlpForm, Moe, Scoring, Shared
from moeinf.models.layers.rope import whole_heads
from moeinf.models.text_part import TextIn
from moeinf.types import ExpertForm

_IMAGES = r"(vision_tower|multi_modal_projector)\..*"


def _parse(f: Fields) -> Spec:
    f.present("moe_num_experts", "moe_topk", "moe_num_shared_experts")
    whole_heads(f)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
    num_layers, size = decoder.num_layers, f.count("intermediate_size")
    moe = routed_shape(f, ("moe_num_experts",), f.count("moe_topk"), num_layers)
    shared = f.count("moe_num_shared_experts", 0, minimum=0)
    names = BlockNames(gate="router.weight", experts=None, fused=("experts.fc1.weight", "experts.fc2.weight"))
    blocks = Moe(
        moe,
        tuple(range(num_layers)),
        size,
        size,
        SoftmaxRouter,
        scoring=Scoring(corrected=False),
        shared=Shared(shared),
        form=MlpForm(f.flag("mlp_bias", False)),
        names=names,
        transposed=True,
        expert_form=ExpertForm("silu"),  # whatever shared experts have
    )
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "aria"
    ignored = (_IMAGES,)
    parse = staticmethod(_parse)
    text = TextIn("language_model.model.", "language_model.")
