"""How Nemotron 3 Omni sees: C-RADIO, a ViT with rows beside the patches (arXiv 2312.06709), and an MLP of squares."""

from __future__ import annotations

from moeinf.errors import UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.processors.bounded_grids import BoundedGrids
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision, Whole
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention

_TOWER, _BEHIND, _PROJECTOR = "vision_model.radio_model.model.", "vision_projector.vision_final_layernorm.", "mlp1."
_ARGS = ("model", "vit_huge_patch16_224")  # of whose sizes published checkpoints are


def nemotron_vision(f: Fields, hidden_size: int) -> Vision | None:
    """f: config.json, whose text_config is the language model's; hidden_size: of that."""
    if f.get("vision_config") is None:
        return None
    v, ratio = f.within("vision_config"), f.number("downsample_ratio", 0.5)
    args = v.within("args")
    args.only(*_ARGS, None)
    v.fixed(use_swiglu_ffn=False, num_channels=3)
    patch, hidden, merge = v.count("patch_size", 16), v.count("hidden_size", 1280), round(1 / ratio)
    for name in ("vision_hidden_size", "vit_hidden_size"):
        f.only(name, hidden, None)
    if merge * ratio != 1:
        raise UnsupportedModelError(f"{f.said('downsample_ratio')} {ratio} is not supported (only 1 / a whole number)")
    eps, biased = v.number("layer_norm_eps", 1e-6), v.flag("qkv_bias", True)
    names = VitNames(
        _TOWER,
        patches="patch_generator.embedder",
        class_token="patch_generator.cls_token.token",
        class_tokens=v.count("num_cls_tokens", 3) + v.count("num_registers", 7, minimum=0),
    )
    side = v.count("max_img_size", args.count("cpe_max_size", 2048)) // patch
    tower = VitConfig(
        tower_attention(hidden, v.count("num_attention_heads", 16), eps, biases=(biased, True), turned=False),
        v.count("num_hidden_layers", 32, maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3 * patch**2,)),
        TowerMlp(("mlp.fc1", "mlp.fc2"), int(hidden * v.number("mlp_ratio", 4.0)), activation_of(v, default="gelu")),
        names,
        LearntPositions(f"{_TOWER}patch_generator.pos_embed", side, "linear", cropped=True),
        biased_patches=False,
    )
    projector = Projector(
        (
            *((NormConfig(f"{_BEHIND}weight", eps, "layer"),) if _predicts(f) else ()),
            "patch by patch",
            NormConfig(f"{_PROJECTOR}0.weight", 1e-5),
            Dense(f"{_PROJECTOR}1", f.count("projector_hidden_size", 4096), biased=False, activation="relu2"),
            Dense(f"{_PROJECTOR}3", hidden_size, biased=False),
        )
    )
    return Vision(
        MergingTower(tower, projector),
        lambda settings, tokens: BoundedGrids.parse(settings, patch, merge, tokens),
        f.count("image_token_id", f.count("img_context_token_id", 18)),
        merge**2,
        layout=Whole(("<img>",), ("</img>",)),
    )


def _predicts(f: Fields) -> bool:
    """Whether there are layers that predict further tokens, beside which the tower has a norm of its own."""
    return f.within("text_config").count("num_nextn_predict_layers", 0, minimum=0) > 0
