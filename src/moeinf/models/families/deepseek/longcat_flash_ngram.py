"""LongCat-Flash-Lite: LongCat-Flash, whose tokens are embedded with the n-grams that they end (arXiv 2601.21204)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moeinf.errors import CheckpointError
from moeinf.models.families.deepseek import longcat_flash
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.streams.ngrams import MOST_ROWS, NgramConfig
from moeinf.models.layers.streams.summed_ngrams import NgramEmbedding


def _parse(f: Fields) -> Spec:
    f.fixed(ngram_exclude_sp_token=False, ngram_fix_normalize_factor=False)
    spec = longcat_flash.Family.parse(f)
    d, hidden = spec.decoder, spec.decoder.attention.hidden_size
    size, splits = (f.count_of(f"emb_{name}", f"oe_{name}", maximum=64) for name in ("neighbor_num", "split_num"))
    first = f.count("ngram_vocab_size_ratio", maximum=MOST_ROWS // d.vocab_size) * d.vocab_size
    rows = tuple(first + 2 * i + 1 for i in range((size - 1) * splits))
    if not rows or hidden % len(rows):
        raise CheckpointError(
            f"{f.where}: hidden_size {hidden} is no multiple of the {len(rows)} tables of n-grams (emb_neighbor_num "
            f"{size}, emb_split_num {splits})"
        )
    ngrams = NgramConfig(
        size,
        splits,
        hidden,
        padded_to=1,
        parts=1,
        end_id=f.count("eos_token_id", minimum=0),
        layers=(0,),
        primes=(rows,),
        multipliers=((d.vocab_size,),),
    )
    connections = NgramEmbedding(ngrams)
    return replace(spec, connections=connections, amended=partial(connections.amended, d))


class Family(longcat_flash.Family):
    name = "longcat_flash_ngram"
    parse = staticmethod(_parse)
