"""DeepSeek-V4.1 as it is published: FP8 in tiles of 32 x 32, tables with a scale for parts of rows, kinds of tokens."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.torch
import torch

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.errors import CheckpointError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.layers.streams.engram import EngramColumns, EngramConfig
from moeinf.pull.checkpoint import convert
from moeinf.pull.checkpoint.moves import Range
from moeinf.pull.pull import pull
from moeinf.store.verify import verify
from tests.oracles import coded_weights as oracle
from tests.oracles.deepseek_v41 import DeepseekV41Reference
from tests.support.checkpoints import TOKENIZER, Checkpoint, random_tensors, write_checkpoint
from tests.support.configs.deepseek_v41 import DEEPSEEK_V41

WORDS = ["a", "b", "A", "Á", "ﬁ", "fi", "b ", " B", " ", "  ", "\t", "", "Fi", "c"]  # some written alike
KINDS = [0, 1, 0, 0, 2, 2, 1, 1, 3, 3, 3, 4, 2, 5]
TEXT = DEEPSEEK_V41["text_config"] | {
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "engram_head_dim": 64,
    "engram_compressed_vocab_size": 6,
    "engram_pad_token_id": 1,
    "engram_token_map": None,
}
PUBLISHED: dict[str, Any] = DEEPSEEK_V41 | {
    "text_config": TEXT,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "scale_fmt": "ue8m0",
        "weight_block_size": [32, 32],
        "expert_dtype": "fp4",
    },
}
IDS = [5, 2, 3, 8, 11, 2, 6, 9, 0, 1, 4, 4, 13]


def shipped_and_meant() -> tuple[Checkpoint, Checkpoint]:
    plan, generator = family_of(PUBLISHED).tensors, torch.Generator().manual_seed(3)
    shipped, meant = Checkpoint(), Checkpoint()
    for name, tensor in random_tensors(PUBLISHED).items():
        scales = name.removesuffix("weight") + "scale"
        if name in plan.experts[0]:
            found, meant[name] = oracle.mxfp4(tensor.shape[0], tensor.shape[1], generator, deepseek=True)
            shipped |= {name: found["weight"], scales: found["weight_scale"]}
        elif name in plan.matrices and "compressor" not in name:
            high, wide = (1 if ".embed." in name else 32), 32
            counts = [-(-tensor.shape[0] // high), -(-tensor.shape[1] // wide)]
            factors = torch.randint(110, 122, counts, dtype=torch.uint8, generator=generator)
            codes = tensor.to(torch.float8_e4m3fn)
            shipped |= {name: codes, scales: factors.view(torch.float8_e8m0fnu)}
            each = factors.repeat_interleave(high, 0).repeat_interleave(wide, 1)[: len(tensor), : tensor.shape[1]]
            meant[name] = codes.float() * 2.0 ** (each.float() - 127)
        else:
            shipped[name.replace("lm_head", "head")] = meant[name] = tensor
    return shipped, meant


def beside() -> Checkpoint:
    """What the checkpoint has that the language model has not."""
    return {
        "vision.blocks.0.attn.wqkv.weight": torch.ones(3, 2),
        "aligner.proj.weight": torch.ones(2),
        "image_start": torch.ones(2),
        "layers.0.ffn.gate.bias_vl": torch.ones(8),
    }


def tokenizer() -> bytes:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    return json.dumps(TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": vocabulary}}).encode()


def test_it_is_read_as_published_and_computes_what_the_reference_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, meant = shipped_and_meant()
    ahead = {"mtp.0.attn.wq_a.weight": torch.ones(3), "mtp.2.markov_head.embed.weight": torch.ones(2)}
    source = write_checkpoint(tmp_path / "c", shipped | ahead | beside(), PUBLISHED)
    (source / "tokenizer.json").write_bytes(tokenizer())
    read, real = list[int](), convert._Shard._read_other

    def counting(shard: Any, place: Range) -> memoryview:
        read.append(place.num_bytes)
        return real(shard, place)

    monkeypatch.setattr(convert._Shard, "_read_other", counting)
    model = pull(str(source), home=tmp_path / "home", portions=convert.Portions(segment_bytes=1 << 12))
    assert verify(model) == [] and model.manifest.formats.fallbacks == ()
    scales = [shipped[f"layers.{i}.engram.embed.scale"].numel() for i in (1, 4)]
    assert max(read) < min(scales), "no table's scales are read as a whole for a few of its rows"
    dense = safetensors.torch.load_file(model.path / model.dense_path.name)
    assert dense.keys() == family_of(PUBLISHED).tensors.dense.keys()
    for name, tensor in dense.items():
        assert torch.equal(tensor.float(), meant[name].float()), name
    entry = model.manifest.ahead
    assert entry is not None and safetensors.torch.load_file(model.path / entry.file).keys() == ahead.keys()
    config = json.loads((model.path / "config.json").read_bytes())
    assert config["text_config"]["engram_token_map"] == KINDS
    theirs = DeepseekV41Reference(
        PUBLISHED | {"text_config": TEXT | {"engram_token_map": KINDS + [0] * (97 - len(KINDS))}}
    )
    theirs.load_state_dict({name.replace("lm_head", "head"): tensor.float() for name, tensor in meant.items()})
    with closing(Model(model, RuntimeConfig.of(device="cpu", threads=1, context=64))) as ours, torch.inference_mode():
        found = ours.runner.forward(IDS, lambda: None)[-1]
        wanted = theirs(torch.tensor([IDS])).logits[0, -1].numpy()
    assert np.abs(found - wanted).max() < 0.03 * wanted.std()


def test_a_tokenizer_that_the_tables_were_not_made_with_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "c", shipped_and_meant()[0], PUBLISHED)
    with pytest.raises(CheckpointError, match=r"engram_token_map must be .* the tokenizer is not the one"):
        pull(str(source), home=tmp_path / "home")


def test_without_the_kinds_of_tokens_nothing_is_made_of_the_tables() -> None:
    config = EngramConfig.of(Fields(TEXT), 97, 7)
    assert config is not None
    with pytest.raises(CheckpointError, match="has no engram_token_map"):
        EngramColumns(cast(Any, NativeLayers(Kernels(1), {}, "f32")), config, [], 0)
