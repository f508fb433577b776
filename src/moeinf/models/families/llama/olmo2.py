"""OLMo 2: norms behind attention and MLP, and of all queries and keys together (arXiv 2501.00656)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.families.mixtral.flex_olmo import NAMES, NORMS
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "olmo2"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = parse_decoder(f, norm_eps=1e-5, theta=1e4, head_norms=HeadNorms("full")).named(norms=NORMS)
        return Spec(decoder, dense_mlps(f, decoder, NAMES))
