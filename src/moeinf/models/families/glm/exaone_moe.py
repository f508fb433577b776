"""K-EXAONE: DeepSeek-V3's blocks; layers with a window have positions, those that see all tokens have none."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import BlockNames, sparse_layers
from moeinf.models.layers.routers import sigmoid_moe

_MTP = r"mtp\..*"  # a further layer that guesses tokens ahead: kept, and not used


def _parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc", attention_bias=False)
    f.present("num_experts", "sliding_window", "num_shared_experts", "routed_scaling_factor")
    decoder = windowed(f, parse_decoder(f, norm_eps=1e-5, theta=1e4, head_norms=HeadNorms()))
    first = f.count("first_k_dense_replace", 1, minimum=0, maximum=decoder.num_layers - 1)
    blocks = sigmoid_moe(
        f,
        decoder.num_layers,
        moe_layers=sparse_layers(f, decoder.num_layers, first_dense=first),
        shared="num_shared_experts",
    )
    return Spec(decoder, replace(blocks, names=BlockNames(bias="e_score_correction_bias")))


def windowed(f: Fields, decoder: DecoderConfig) -> DecoderConfig:
    window, layers = f.count("sliding_window", 0) or None, range(decoder.num_layers)
    kinds = f.kinds("layer_types", len(layers), "sliding_attention", "full_attention")
    if kinds is None:
        f.present("sliding_window_pattern")
        every = f.count("sliding_window_pattern", 0, minimum=0) if window else 1
        kinds = tuple("sliding_attention" if every == 0 or (i + 1) % every else "full_attention" for i in layers)
    slides = [kind == "sliding_attention" for kind in kinds]
    decoder = decoder.with_windows(slides, window)
    return decoder.without_positions({i for i in layers if window and not slides[i]})


class Family(DecoderFamily):
    name = "exaone_moe"
    parse = staticmethod(_parse)
    ahead = (_MTP,)
