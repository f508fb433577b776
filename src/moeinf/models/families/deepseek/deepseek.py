"""DeepSeek's first mixture: shared experts and softmax routing beside plain attention (DeepseekForCausalLM).

Follows modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base.
"""

from __future__ import annotations

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.routers import GroupedSoftmaxRouter


def _parse(f: Fields) -> Spec:
    f.fixed(scoring_func="softmax", routed_scaling_factor=1.0, n_group=1, topk_group=1)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
    router = GroupedSoftmaxRouter
    return Spec(decoder, Moe.parse(f, decoder.num_layers, router=router, normalise=False, corrected=False))


class Family(DecoderFamily):
    name = "deepseek"
    parse = staticmethod(_parse)
