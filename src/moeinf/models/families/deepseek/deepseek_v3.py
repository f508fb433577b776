"""DeepSeek-V3 and R1: latent attention; sigmoid routing with a correction bias within groups (arXiv 2412.19437)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.families.deepseek.deepseek_v2 import Config
from moeinf.models.fields import Fields
from moeinf.models.layers.deepseek_moe import DeepseekMoe, MakeRouter, SigmoidRouter
from moeinf.models.layers.latent.mla import parse_latent


def parse(f: Fields) -> Config:
    f.only("scoring_func", "sigmoid", None)
    f.only("topk_method", "noaux_tc", None)
    f.present("n_group", "routed_scaling_factor")
    decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True))
    blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=True, corrected=True, num_future_layers=1)
    return Config(decoder, latent, blocks)


class Family(deepseek_v2.Family):
    name = "deepseek_v3"
    parse = staticmethod(parse)

    @property
    def router(self) -> MakeRouter:
        return SigmoidRouter
