"""How DeepSeek-V4.1 sees: a ViT whose patches are merged three by three, between learnt rows that are no tokens'."""

from __future__ import annotations

from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.vision.framed import Frame, Framed, FramedTower
from moeinf.models.layers.vision.processors.centred_pictures import CentredPictures
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, TowerMlp, VitConfig, VitNames, tower_attention

_TOWER, _ALIGNER = "vision.", "aligner."
_EPS = 1e-6


def deepseek_vision(f: Fields, text: DecoderConfig) -> Vision | None:
    """f: config.json."""
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    patch, merge, hidden = v.count("patch_size", 14), v.count("downsample_ratio", 3), v.count("hidden_size", 1024)
    hidden_size = text.attention.hidden_size
    tower = VitConfig(
        tower_attention(hidden, v.count("num_attention_heads", 16), _EPS, "rms", names=("wqkv", "wo")),
        v.count("num_hidden_layers", maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3 * patch**2,), whole=False),
        TowerMlp(("mlp.w1", "mlp.w2"), v.count("intermediate_size", 2816), "silu", biased=False, fused=True),
        VitNames(_TOWER),
        theta=v.number("rope_theta", 1e4),
    )
    aligner = Projector(
        (
            NormConfig(f"{_TOWER}norm.weight", _EPS),
            "number by number",
            Dense(f"{_ALIGNER}w1", hidden_size, activation="gelu"),
            Dense(f"{_ALIGNER}w2", hidden_size),
        )
    )
    return Vision(
        FramedTower(tower, aligner, Frame("image_newline", ("image_start", "image_end"))),
        lambda settings, tokens: CentredPictures.parse(v, settings, patch, merge, tokens),
        f.count("image_token_id", 129264, maximum=text.vocab_size - 1),
        merge**2,
        layout=Framed(ends=True),
    )
