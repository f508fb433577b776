"""How Hunyuan 4 VL sees: a ViT with learnt positions, and convolutions; each row of tokens ends with a learnt one."""

from __future__ import annotations

from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.vision.framed import Frame, Framed, FramedTower
from moeinf.models.layers.vision.image_processor import OF_CLIP, Defaults, MergedPatches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER, _MERGER = "vit.", "vit.perceive."
_DEFAULTS = Defaults(512 * 512, 2048 * 2048, *OF_CLIP)
_NAMES = VitNames(
    _TOWER, "layers.", "self_attn.", ("input_layernorm", "post_attention_layernorm"), "embeddings.patch_embedding"
)


def hunyuan_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    v.fixed(num_channels=3, interpolate_mode="bilinear", out_hidden_size=hidden_size)
    patch, merge, hidden = v.count("patch_size", 16), v.count("spatial_merge_size", 2), v.count("hidden_size", 1536)
    heads, eps = v.count("num_attention_heads", 16), v.number("rms_norm_eps", v.number("layer_norm_eps", 1e-5))
    v.only("num_key_value_heads", heads, None)
    activation = activation_of(v, default="gelu")
    tower = VitConfig(
        tower_attention(hidden, heads, eps, names=(None, "o_proj"), turned=False),
        v.count("num_hidden_layers", 40, maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3, patch, patch)),
        TowerMlp(("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), v.count("intermediate_size", 6144), activation),
        _NAMES,
        LearntPositions(
            f"{_TOWER}embeddings.position_embedding.weight",
            v.count("max_image_size", 2048) // patch,
            "linear",
            front=1,
            beyond=0.1,
        ),
    )
    merger = Projector(
        (
            NormConfig(f"{_MERGER}norm.weight", eps),
            "number by number",
            Dense(f"{_MERGER}proj.0", hidden * merge**2, activation=activation, kernel=(merge, merge)),
            Dense(f"{_MERGER}proj.2", hidden_size, kernel=(1, 1)),
        )
    )

    def form(settings: Fields, tokens: int | None) -> MergedPatches:
        settings = settings.replaced(resample=None)  # which published code does not read
        return MergedPatches.parse(settings, patch, merge, 1, tokens, _DEFAULTS)

    return Vision(
        FramedTower(tower, merger, Frame(f"{_MERGER}image_newline")),
        form,
        f.count("image_token_id", 120120),
        merge**2,
        layout=Framed(ends=False),
    )
