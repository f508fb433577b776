"""Qwen3: Qwen2 with norms of each head's queries and keys in the place of biases (arXiv 2505.09388)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.families.qwen.qwen2 import with_windows_above
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "qwen3"

    @staticmethod
    def parse(f: Fields) -> Spec:
        head_dim = f.count("head_dim", 128, minimum=2)
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_dim=head_dim, head_norms=HeadNorms())
        decoder = with_windows_above(f, decoder)
        return Spec(decoder, dense_mlps(f, decoder))
