"""Solar Open: GLM-4.5's blocks in every layer, whole heads rotated (SolarOpenForCausalLM)."""

from __future__ import annotations

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.routers import sigmoid_moe


def _parse(f: Fields) -> Spec:
    f.fixed(
        scoring_func="sigmoid", topk_method="noaux_tc", use_qk_norm=False, first_k_dense_replace=0, moe_layer_freq=1
    )
    f.present("head_dim")
    decoder = parse_decoder(f, norm_eps=1e-5, theta=1e6, output_bias=False)
    layers = range(decoder.num_layers)
    return Spec(decoder, sigmoid_moe(f, len(layers), moe_layers=layers))


class Family(DecoderFamily):
    name = "solar_open"
    parse = staticmethod(_parse)
