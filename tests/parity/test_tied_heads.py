"""A head that is stored is used, whatever config.json says of it; one that is the embedding is not stored twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from moeinf.engine.stored.outline import outline_of
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.convert import convert_shard
from moeinf.pull.checkpoint.tensor_copies import Copies
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint, write_tokenizer
from tests.support.pairs.decoders import CONFIGS, PROMPT, logits
from tests.support.pairs.pulled import Tensors, built, change, objects, pulled, stored_names, written
from tests.support.pairs.translators import ANSWER, SOURCE, Pair
from tests.support.tiny_models import all_configs

FIRST = {config["model_type"]: config for config in reversed(CONFIGS.values())}  # one config of each family


def say(config: Any, outermost: bool, innermost: bool) -> None:
    """Whether the embedding is the head, in each object that may say it."""
    found = list(objects(config))
    for each in found:
        each["tie_word_embeddings"] = innermost if each is found[-1] else outermost
        if "tie_embedding" in each:
            each["tie_embedding"] = innermost


def untied(model_type: str, folder: Path) -> Any:
    config = FIRST[model_type]
    say(config, False, False)
    return written(config, folder)


@torch.inference_mode()
@pytest.mark.parametrize("model_type", FIRST)
def test_a_head_of_its_own_is_kept_and_used_under_flags_that_tie_it(model_type: str, tmp_path: Path) -> None:
    theirs = untied(model_type, tmp_path / "c")
    expected = theirs(torch.tensor([PROMPT])).logits[0]
    nested = len(list(objects(FIRST[model_type]))) > 1
    for said in ((True, True), *(((True, False), (False, True)) if nested else ())):  # outside, and inside
        change(tmp_path / "c", config=lambda config, said=said: say(config, *said))  # type: ignore[misc]
        stored, notes = pulled(tmp_path / "c")
        assert (logits(built(stored), [PROMPT]) - expected).abs().max() < 1e-4
        assert len([line for line in notes if "differs from" in line and "kept and used" in line]) == 1


def heads(folder: Path) -> tuple[str, str]:
    """The names of embedding and head, as the checkpoint has them."""
    names = safetensors.torch.load_file(folder / "model.safetensors").keys()
    embedding = [name for name in names if name.endswith(("embed_tokens.weight", "wte.weight", "embed.weight"))]
    head = [name for name in names if name.endswith(("lm_head.weight", "unembed.weight"))]
    return embedding[0], head[0]


@torch.inference_mode()
@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen3_5_moe", "aria", "kimi_k25", "deepseek_v3", "nemotron_h"])
def test_a_head_that_is_the_embedding_is_not_stored_twice(model_type: str, tmp_path: Path) -> None:
    untied(model_type, tmp_path / "c")
    names = heads(tmp_path / "c") if model_type != "nemotron_h" else ("backbone.embeddings.weight", "lm_head.weight")
    embedding, head = names

    def same(tensors: Tensors) -> Tensors:
        return tensors | {head: tensors[embedding]}

    change(tmp_path / "c", same, lambda config: say(config, True, True))
    stored, notes = pulled(tmp_path / "c")
    assert not any(name.endswith("lm_head.weight") for name in stored_names(stored))
    assert not any("differs from" in line for line in notes)
    before = logits(built(stored), [PROMPT])
    change(tmp_path / "c", lambda tensors: {name: each for name, each in tensors.items() if name != head})
    assert torch.equal(before, logits(built(pulled(tmp_path / "c")[0]), [PROMPT]))
    # Some programs keep the other of two names.
    change(
        tmp_path / "c", lambda tensors: {head if name == embedding else name: each for name, each in tensors.items()}
    )
    assert torch.equal(before, logits(built(pulled(tmp_path / "c")[0]), [PROMPT]))


HALF = torch.float16
DTYPES = [  # of embedding and head, by what part one element differs, whether the head then says something new
    (torch.bfloat16, torch.float32, 0.0, False),
    (torch.float32, torch.bfloat16, 0.0, False),
    (torch.float32, HALF, 0.0, False),
    (torch.bfloat16, torch.bfloat16, 0.5, True),
    (torch.bfloat16, torch.float32, 1e-6, True),
    (torch.float32, torch.float32, 1e-6, True),
    (torch.float32, torch.bfloat16, 0.1, True),
]


@pytest.mark.parametrize(("of_embedding", "of_head", "by", "own"), DTYPES)
@pytest.mark.parametrize("quant", ["keep", "q8_0"])
def test_a_head_of_another_type_is_the_same_where_it_says_nothing_new(
    of_embedding: torch.dtype, of_head: torch.dtype, by: float, own: bool, quant: str, tmp_path: Path
) -> None:
    tensors = random_tensors(CONFIG, seed=3)
    embedding = torch.randn(tensors["model.embed_tokens.weight"].shape).to(of_embedding)
    head = embedding.to(of_head, copy=True)
    head[-1, -1] += by * head[-1, -1].abs()  # in one element alone, the last
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    write_checkpoint(tmp_path / "c", tensors, CONFIG | {"tie_word_embeddings": True})
    stored, notes = pulled(tmp_path / "c", quant)
    assert any("kept and used" in line for line in notes) == own
    assert any("kept and used" in line for line in stored.manifest.formats.fallbacks) == own
    info = family_of(CONFIG | {"tie_word_embeddings": not own}).info("bf16")
    assert (stored.manifest.info.num_params, stored.manifest.info.active_params) == (
        info.num_params,
        info.active_params,
    )
    assert ("lm_head.weight" in stored_names(stored)) == own, "once, whatever the format"
    outline_of(stored)


def test_an_interrupted_pull_knows_what_it_has_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "c", random_tensors(), CONFIG | {"tie_word_embeddings": True})
    calls = list[object]()

    def stop_at_the_third(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return convert_shard(*args)

    monkeypatch.setattr("moeinf.pull.checkpoint.checkpoint_pull.convert_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        pulled(folder)
    monkeypatch.setattr(Copies, "own", None)  # is not asked again
    stored, _ = pulled(folder)
    assert "lm_head.weight" in stored_names(stored)


SPARES = [name for name, config in all_configs("SEQ2SEQ_CONFIGS").items() if name in ("nllb", "switch")]


@torch.inference_mode()
@pytest.mark.parametrize("own", ["lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
@pytest.mark.parametrize("name", SPARES)
def test_each_of_the_copies_of_a_shared_embedding_may_be_one_of_its_own(name: str, own: str, tmp_path: Path) -> None:
    pair = Pair(all_configs("SEQ2SEQ_CONFIGS")[name], tmp_path / "c")
    shared = next(each for each in pair.tensors if each.endswith("shared.weight"))
    own = own if own == "lm_head.weight" else shared.removesuffix("shared.weight") + own
    torch.manual_seed(1)
    other = torch.randn_like(pair.tensors[shared]) * 0.1
    change(tmp_path / "c", lambda tensors: tensors | {own: other})
    (tmp_path / "c" / "tokenizer_config.json").write_text("{}")
    write_tokenizer(tmp_path / "c")
    stored, notes = pulled(tmp_path / "c")
    module = pair.theirs.get_submodule(own.removesuffix(".weight"))
    module.weight = torch.nn.Parameter(other)
    ours = built(stored)
    cache = ours.new_cache(64)
    ours.encode(SOURCE, cache)
    found = torch.from_numpy(ours.forward(ANSWER, cache, last_only=False))
    expected = pair.theirs(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([ANSWER])).logits[0]
    assert (found - expected).abs().max() < 1e-4
    assert len([line for line in notes if own in line and "kept and used" in line]) == 1


NAMES = {  # what published code calls the embeddings that it has as one, and how programs keep that one
    "shared alone": ("shared",),
    "that of answers alone, as MADLAD": ("decoder.embed_tokens",),
    "that of sources alone": ("encoder.embed_tokens",),
    "both without shared": ("encoder.embed_tokens", "decoder.embed_tokens"),
    "each of them": ("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
}


@torch.inference_mode()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kept", NAMES)
@pytest.mark.parametrize(("name", "prefix"), [("switch", ""), ("nllb", "model.")])
def test_sources_and_answers_share_an_embedding_under_any_of_its_names_and_never_the_head(
    name: str, prefix: str, kept: str, tied: bool, tmp_path: Path
) -> None:
    pair = Pair(all_configs("SEQ2SEQ_CONFIGS")[name], tmp_path / "c")
    embedding = pair.tensors[f"{prefix}shared.weight"]
    torch.manual_seed(1)
    head = torch.randn_like(embedding) * 0.1

    def embeddings(tensors: Tensors) -> Tensors:
        rest = {each: tensor for each, tensor in tensors.items() if each != f"{prefix}shared.weight"}
        return rest | {f"{prefix}{each}.weight": embedding for each in NAMES[kept]} | {"lm_head.weight": head}

    change(tmp_path / "c", embeddings, lambda config: config.update(tie_word_embeddings=tied))
    (tmp_path / "c" / "tokenizer_config.json").write_text("{}")
    write_tokenizer(tmp_path / "c")
    stored, notes = pulled(tmp_path / "c")
    ours = built(stored)
    cache = ours.new_cache(64)
    ours.encode(SOURCE, cache)
    found = torch.from_numpy(ours.forward(ANSWER, cache, last_only=False))
    pair.theirs.lm_head.weight = torch.nn.Parameter(head)
    pair.theirs.config.tie_word_embeddings = tied
    expected = pair.theirs(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([ANSWER])).logits[0]
    assert (found - expected).abs().max() < 1e-4
    assert any("lm_head.weight differs" in line for line in notes) == tied
    assert f"{prefix}encoder.embed_tokens.weight" not in stored_names(stored)
