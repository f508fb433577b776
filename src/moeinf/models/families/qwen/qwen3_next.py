"""Qwen3-Next: gated DeltaNet in most layers, gated attention in the others, 512 small experts and a shared one.

Attention is qwen3_moe's with an output gate (arXiv 2505.06708), norms that store their weight less one, and a quarter
of each head turned; DeltaNet is delta_net.py's.
"""

from __future__ import annotations

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Gate, HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.delta_net import delta_mixer

MTP = r"mtp\..*"  # a further layer that guesses tokens ahead, which models/mtp.py computes


def parse_next(f: Fields, *, stacked: bool) -> Spec:
    """stacked: how DeltaNet's projections are stored."""
    f.only("use_sliding_window", False, None)
    f.present("head_dim")
    decoder = parse_decoder(
        f, norm_eps=1e-6, theta=1e4, partial=0.25, head_norms=HeadNorms(), gate=Gate(), norm="rms+1"
    )
    a, every = decoder.attention, f.count("full_attention_interval", 4)
    kinds = f.kinds("layer_types", decoder.num_layers, "linear_attention", "full_attention") or tuple(
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(decoder.num_layers)
    )
    delta = delta_mixer(DeltaConfig.parse(f, a.hidden_size, a.norm_eps, stacked=stacked))
    layers = (i for i, kind in enumerate(kinds) if kind == "linear_attention")
    return Spec(decoder, qwen_moe(f, decoder.num_layers, norm_topk_prob=True), dict.fromkeys(layers, delta))


class Family(DecoderFamily):
    name = "qwen3_next"
    ahead = (MTP,)
    matrices = ("_proj_qkvz.weight", "_proj_qkv.weight", "_proj_z.weight")

    @staticmethod
    def parse(f: Fields) -> Spec:  # stacked_projections: moeinf's own, of a GGUF file, where they lie apart
        return parse_next(f, stacked=f.flag("stacked_projections", True))
