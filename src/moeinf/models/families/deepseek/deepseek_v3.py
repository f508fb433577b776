"""DeepSeek-V3 and R1: latent attention; sigmoid routing with a correction bias within groups (arXiv 2412.19437)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.routers import sigmoid_moe


def parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc")
    f.present("n_group", "routed_scaling_factor")
    decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True))
    blocks = sigmoid_moe(f, decoder.num_layers, num_future_layers=1)
    return latent_spec(decoder, latent, blocks)


class Family(deepseek_v2.Family):
    name = "deepseek_v3"
    parse = staticmethod(parse)
