"""GLM-4.5 and 4.6: grouped-query attention, half of each head rotated; DeepSeek-V3's routing (arXiv 2508.06471)."""

from __future__ import annotations

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.routers import sigmoid_moe


def _parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc")
    decoder = parse_decoder(
        f,
        norm_eps=1e-5,
        theta=1e4,
        partial=0.5,
        output_bias=False,
        head_norms=HeadNorms() if f.flag("use_qk_norm", False) else None,
    )
    blocks = sigmoid_moe(f, decoder.num_layers, num_future_layers=1)
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "glm4_moe"
    parse = staticmethod(_parse)
