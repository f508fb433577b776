"""A model of transformers that sees, and ours over the same weights."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.engine.vision.encoder import known
from moeinf.engine.vision.tower_sizes import grids_of
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers, of_any_device
from moeinf.models.layers.soft_tokens import SOFT_IDS, SoftTokens
from moeinf.models.layers.vision.image_processor import (
    OF_CLIP,
    Colours,
    ImageProcessor,
    Patches,
    WholePictures,
    normalised,
)
from moeinf.models.layers.vision.processors.cropped_pictures import CroppedPictures
from moeinf.models.layers.vision.processors.tiled_pictures import TiledPictures
from moeinf.models.layers.vision.vision import Grid, Mark, Vision, with_ids, written
from moeinf.pictures.decode import decode
from moeinf.pull.checkpoint.tensor_names import plan_name
from moeinf.types import Float32Array, Profiler
from tests.oracles.deepseek_v41_vision import DeepseekV41Seeing, patches_of
from tests.oracles.kimi_k3_vision import KimiK3Seeing
from tests.oracles.mimo_vision import MimoSeeing
from tests.support.emulated_device import EmulatedDevice
from tests.support.pairs.experts import read_by, resident_experts, stored
from tests.support.pairs.on_device import on_device
from tests.support.tiny_models import reference

Prompt = Sequence[int | np.ndarray]  # token ids and pictures [height, width, 3], uint8


def _merged(config: Mapping[str, Any], tokens: int, mean: Colours = ((0.5,) * 3, (0.5,) * 3)) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    vision = config["vision_config"]
    merge = vision.get("spatial_merge_size", 2)
    unit = vision["patch_size"] * merge
    return Qwen2VLImageProcessorPil(
        patch_size=vision["patch_size"],
        merge_size=merge,
        temporal_patch_size=vision.get("temporal_patch_size", 2),
        size={"shortest_edge": unit * unit, "longest_edge": tokens * unit * unit},
        image_mean=list(mean[0]),
        image_std=list(mean[1]),
    )


def _merged_of_clip(config: Mapping[str, Any], tokens: int) -> Any:
    return _merged(config, tokens, OF_CLIP)


def _pooled(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    vision = config["vision_config"]
    return Gemma4ImageProcessorPil(
        patch_size=vision["patch_size"], pooling_kernel_size=vision["pooling_kernel_size"], max_soft_tokens=tokens
    )


def _by_longest_edge(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    return PixtralImageProcessorPil(patch_size=config["vision_config"]["patch_size"] * config["spatial_merge_size"])


class _Tiled:
    """In the place of Llama 4's image processor, which needs torchvision: the tiles that ours has made."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        form = seen_by(config).form(Fields({}), tokens)
        assert isinstance(form, TiledPictures)
        self._form = form

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        tiles = [view for image in images for row in shown(self._form, image) for view in row]
        return {"pixel_values": torch.from_numpy(np.stack([self._form.colours(each) for each in tiles])).movedim(3, 1)}


class _OneByOne:
    """Kimi K2.5's image processor, of which transformers' needs torchvision, spelled out: patch by patch, in rows."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        self._patch = config["vision_config"]["patch_size"]

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        side, found, grids = self._patch, list[np.ndarray](), list[list[int]]()
        for image in images:
            values = (image.astype(np.float32) / 255 - 0.5) / 0.5
            rows, cols = image.shape[0] // side, image.shape[1] // side
            grids.append([1, rows, cols])
            found += [
                values[side * row : side * (row + 1), side * col : side * (col + 1)].transpose(2, 0, 1)
                for row in range(rows)
                for col in range(cols)
            ]
        return {"pixel_values": torch.from_numpy(np.stack(found)), "image_grid_thw": torch.tensor(grids)}


class _Stretched:
    """In the place of Command A's image processor, which needs torchvision: the tiles that ours has made."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        self._form = seen_by(config).form(Fields(_STRETCHED), tokens)

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        tiles = [view for image in images for row in shown(self._form, image) for view in row]
        values = [normalised(each, *OF_CLIP) for each in tiles]
        return {"pixel_values": torch.from_numpy(np.stack(values)).movedim(3, 1)}


_STRETCHED = {"size": {"height": 16, "width": 16}, "patch_size": 2}
_CROPPED = {"size": {"height": 64, "width": 64}, "patch_size": 32, "max_image_size": 320}


class _Cropped:
    """In the place of Step 3.7's image processor, which needs torchvision: the views that ours has made."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        form = seen_by(config).form(Fields(_CROPPED), tokens)
        assert isinstance(form, CroppedPictures)
        self._form = form

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Any]:
        seen = [shown(self._form, image) for image in images]
        windows = [view for rows in seen for row in rows[:-1] for view in row]
        found: dict[str, Any] = {"pixel_values": self._stacked([rows[-1][0] for rows in seen])}
        if windows:
            found["pixel_values_local"] = self._stacked(windows)
        return found | {"num_local_patches": [sum(map(len, rows[:-1])) for rows in seen]}

    def _stacked(self, views: Sequence[np.ndarray]) -> Tensor:
        form = self._form
        return torch.from_numpy(np.stack([normalised(each, form.mean, form.std) for each in views])).movedim(3, 1)


def _of_windows(model: Any, given: Mapping[str, Any]) -> Tensor:
    options = {name: each for name, each in given.items() if name != "input_ids"}
    found: Tensor = model.model.get_image_features(**options).pooler_output[0]
    return found


def _in_one(model: Any, given: Mapping[str, Any]) -> Tensor:
    """The rows of the only picture."""
    options = {name: each for name, each in given.items() if name.startswith("image_")}
    features = model.model.get_image_features(given["pixel_values"], **options)
    return torch.cat([features.pooler_output[0], *(each[0] for each in features.get("deepstack_features") or ())], 1)


def _of_tiles(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.multi_modal_projector(model.get_image_features(given["pixel_values"]).last_hidden_state)
    return found.flatten(0, 1)


def _of_stretched(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.get_image_features(given["pixel_values"]).pooler_output
    return found.flatten(0, 1)


@dataclass(frozen=True)
class Reference:
    """What a family is compared with."""

    name: str  # of transformers' classes
    processor: Callable[[Mapping[str, Any], int], Any]  # config, the most tokens; one that needs no torchvision
    token: str = "image_token_id"  # the field of config.json with what stands for each soft token
    rows: Callable[[Any, Mapping[str, Any]], Tensor] = _in_one  # of the only picture, by model and inputs
    settings: Mapping[str, Any] = field(default_factory=dict)  # of our image processor
    around: tuple[str, str] | None = None  # the fields with what stands in front of soft tokens, and behind them

    def part(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """That of a checkpoint's config.json which is the config of transformers' model."""
        return config

    def publish(self, folder: Path) -> None:
        """Gives what that model has saved the form of checkpoints."""

    def model(self, config: Mapping[str, Any]) -> Any:
        import transformers

        values = {key: value for key, value in config.items() if key != "model_type"}
        made = getattr(transformers, f"{self.name}Config")(**values)
        return getattr(transformers, f"{self.name}ForConditionalGeneration")(made).float().eval()


def _of_film(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    vision = config["vision_config"]
    merge, frames = vision.get("spatial_merge_size", 2), vision.get("temporal_patch_size", 2)
    area = frames * (vision["patch_size"] * merge) ** 2
    return Glm4vImageProcessorPil(
        patch_size=vision["patch_size"],
        merge_size=merge,
        temporal_patch_size=frames,
        size={"shortest_edge": area, "longest_edge": tokens * area},
    )


class _MiniMax(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        import transformers

        values = {key: value for key, value in config.items() if key != "model_type"}
        made = transformers.MiniMaxM3VLConfig(**values)
        return transformers.MiniMaxM3SparseForConditionalGeneration(made).float().eval()


class _Llama4(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        """As of 5.24 the whole model looks for what its language model does not give: image_outputs."""
        made = super().model(config)
        forward = made.language_model.forward

        def given(*values: Any, **options: Any) -> Any:
            found = forward(*values, **options)
            found.image_outputs = None
            return found

        made.language_model.forward = given
        return made


class _Omni(Reference):
    """The part that writes, saved under the names and with the config.json of the whole."""

    def part(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        thinker: Mapping[str, Any] = config["thinker_config"]
        return thinker

    def publish(self, folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        whole = {f"thinker.{name}": tensor for name, tensor in tensors.items()}
        safetensors.torch.save_file(whole, folder / "model.safetensors")
        config = {"model_type": "qwen3_omni_moe", "thinker_config": json.loads((folder / "config.json").read_text())}
        (folder / "config.json").write_text(json.dumps(config))


class _KimiK3(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        return KimiK3Seeing(dict(config)).float().eval()


class _Glm5v(Reference):
    """Kimi K2.5's of transformers with the language model of GLM-5, under the names of these checkpoints."""

    def model(self, config: Mapping[str, Any]) -> Any:
        vision = {name.removeprefix("init_"): value for name, value in config["vision_config"].items()}
        own = {"vision_config": vision, "image_token_id": config["media_placeholder_token_id"]}
        return super().model({**config, **own, "projection_hidden_size": vision["hidden_size"]})

    def publish(self, folder: Path) -> None:
        tensors, names = safetensors.torch.load_file(folder / "model.safetensors"), list[str]()
        for name in tensors:
            for pattern, to in _OF_GLM5V:
                name = re.sub(pattern, to, name)
            names.append(name)
        published = dict(zip(names, tensors.values(), strict=True))
        safetensors.torch.save_file(published, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        vision = {re.sub("^pos_emb_", "init_pos_emb_", name): each for name, each in config["vision_config"].items()}
        own = {"model_type": "glm5v", "vision_config": vision, self.token: config.pop("image_token_id")}
        (folder / "config.json").write_text(json.dumps(config | own))


_OF_GLM5V = (  # from names of transformers' Kimi K2.5
    (r"^language_model\.", ""),
    (r"^model\.(blocks|mm_projector)\.", lambda found: "model.layers." if found[1] == "blocks" else "mm_projector."),
    (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    (r"^mm_projector\.proj\.0\.", "mm_projector.linear_1."),
    (r"^mm_projector\.proj\.2\.", "mm_projector.linear_2."),
)


class _DeepseekV41(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        return DeepseekV41Seeing(dict(config)).float().eval()


class _Mimo(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        return MimoSeeing(dict(config), reference(dict(config))).float().eval()


class _Nemotron(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        from transformers import NemotronH_Omni_Reasoning_V3, NemotronH_Omni_Reasoning_V3_Config

        values = {key: value for key, value in config.items() if key != "model_type"}
        return NemotronH_Omni_Reasoning_V3(NemotronH_Omni_Reasoning_V3_Config(**values)).float().eval()


class _Gridded:
    """In the place of Nemotron's image processor, which needs torchvision: patch by patch, in rows."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        self._patch = config["vision_config"]["patch_size"]

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        patches, side = list[Tensor](), self._patch
        for image in images:
            values = torch.from_numpy(normalised(image, *OF_CLIP))
            patches.append(values.unfold(0, side, side).unfold(1, side, side).flatten(0, 1).flatten(1))
        grids = [[image.shape[0] // side, image.shape[1] // side] for image in images]
        return {"pixel_values": torch.cat(patches), "image_grid_hw": torch.tensor(grids)}


def _of_nemotron(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.get_image_features(given["pixel_values"], given["image_grid_hw"]).pooler_output[0]
    return found


class _Inkling(Reference):
    def model(self, config: Mapping[str, Any]) -> Any:
        made = super().model(config)
        for name, parameter in made.named_parameters():
            if name.endswith(("global_scale", "conv1d.weight")):
                torch.nn.init.uniform_(parameter, 0.3, 1.2)
        return made


class _Cut:
    """In the place of Inkling's image processor, which needs torchvision: its patches, spelled out."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        self._side = config["vision_config"]["patch_size"]
        self._form = seen_by(config).form(Fields(_CUT), tokens)

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        found, side = list[np.ndarray](), self._side
        mean, std = (np.array(each, np.float32) for each in OF_CLIP)
        for image in images:
            [[seen]] = shown(self._form, image)
            raw = np.full((-(-len(seen) // side) * side, (seen.shape[1] - 1) // side * side + side, 3), -1, np.float32)
            raw[: len(seen), : seen.shape[1] - 1] = seen[:, :-1]
            values = (raw / 255 - mean) / std
            for row in range(0, len(raw), side):
                found += [values[row : row + side, col : col + side] for col in range(0, raw.shape[1], side)]
        return {"pixel_values": torch.from_numpy(np.stack(found))[:, None].repeat(1, 2, 1, 1, 1)}


_CUT = {"rescale_image_frac": 1.0}


def _of_inkling(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.model.get_image_features(given["pixel_values"]).pooler_output
    return found.flatten(0, 1)


class _InRows:
    """In the place of Muse Spark's image processor, which needs torchvision: patch by patch, in rows."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        vision = config["vision_config"]
        self._patch, self._frames = vision["patch_size"], vision["patch_temporal"]

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Tensor]:
        patches, side = list[Tensor](), self._patch
        for image in images:
            values = torch.from_numpy(normalised(image, (0.5,) * 3, (0.5,) * 3))
            cut = values.unfold(0, side, side).unfold(1, side, side).flatten(0, 1)
            patches.append(cut[:, None].expand(-1, self._frames, -1, -1, -1).flatten(1))
        grids = [[1, image.shape[0] // side, image.shape[1] // side] for image in images]
        return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def _before_the_norm(model: Any, given: Mapping[str, Any]) -> Tensor:
    """What Muse Spark's norm of pictures is given, which ours has with that of the embedding."""
    seen = model.model.vision_tower(given["pixel_values"], given["image_grid_thw"]).last_hidden_state
    found: Tensor = model.model.vision_projection(model.model.vision_adapter(seen))
    return found


class _Centred:
    """The patches of pictures as the oracle has them."""

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        self._vision = dict(config["vision_config"], max_image_tokens=tokens)

    def __call__(self, images: Sequence[np.ndarray], **options: Any) -> dict[str, Any]:
        seen = [patches_of(PIL.Image.fromarray(image), self._vision) for image in images]
        return {"pixel_values": [patches for patches, _ in seen], "grids": [grid for _, grid in seen]}


def _of_deepseek(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.rows(given["pixel_values"], given["grids"])
    return found


def _of_kimi_k3(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model.rows(given["pixel_values"], given["image_grid_thw"])
    return found


def _ernie(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.ernie4_5_vl_moe.image_processing_pil_ernie4_5_vl_moe import Ernie4_5_VLMoeImageProcessorPil

    vision = config["vision_config"]
    unit = vision["patch_size"] * vision.get("spatial_merge_size", 2)
    return Ernie4_5_VLMoeImageProcessorPil(
        patch_size=vision["patch_size"], size={"shortest_edge": unit * unit, "longest_edge": tokens * unit * unit}
    )


def _hunyuan(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.hy_v4_vl.image_processing_pil_hy_v4_vl import HYV4VLImageProcessorPil

    vision = config["vision_config"]
    return HYV4VLImageProcessorPil(patch_size=vision["patch_size"], merge_size=vision.get("spatial_merge_size", 2))


def _filled(config: Mapping[str, Any], tokens: int) -> Any:
    from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil

    vision = config["vision_config"]
    return Glm5NextImageProcessorPil(patch_size=vision["patch_size"], merge_size=vision.get("spatial_merge_size", 2))


REFERENCES: Mapping[str, Reference] = {
    "cohere2_vision": Reference("Cohere2Vision", _Stretched, rows=_of_stretched, settings=_STRETCHED),
    "deepseek_v41": _DeepseekV41("", _Centred, rows=_of_deepseek),
    "ernie4_5_vl_moe": Reference("Ernie4_5_VLMoe", _ernie),
    "gemma4": Reference("Gemma4", _pooled),
    "glm4v_moe": Reference("Glm4vMoe", _of_film),
    "glm5_next": Reference("Glm5Next", _filled, settings={"min_image_tokens": 1}),
    "glm5v": _Glm5v("Kimi_K25", _OneByOne, "media_placeholder_token_id"),
    "hy_v4_vl": Reference("HYV4VL", _hunyuan),
    "inkling_mm_model": _Inkling("Inkling", _Cut, rows=_of_inkling, settings=_CUT),
    "kimi_k25": Reference("Kimi_K25", _OneByOne),
    "kimi_k3": _KimiK3("", _OneByOne, "media_placeholder_token_id", _of_kimi_k3),
    "llama4": _Llama4("Llama4", _Tiled, "image_token_index", _of_tiles),
    "mimo_v2": _Mimo("", _merged_of_clip, rows=_of_kimi_k3),
    "minimax_m3_vl": _MiniMax("MiniMaxM3VL", _merged_of_clip, "image_token_index"),
    "mistral3": Reference("Mistral3", _by_longest_edge, "image_token_index"),
    "muse_spark": Reference("MuseSpark", _InRows, rows=_before_the_norm),
    "nemotron_h_omni": _Nemotron("", _Gridded, rows=_of_nemotron),
    "step3p7": Reference("Step3p7", _Cropped, rows=_of_windows, settings=_CROPPED),
    "qwen3_5_moe": Reference("Qwen3_5Moe", _merged),
    "qwen3_omni_moe": _Omni("Qwen3OmniMoeThinker", _merged, around=("vision_start_token_id", "vision_end_token_id")),
    "qwen3_vl_moe": Reference("Qwen3VLMoe", _merged),
    "qwen4_exp": Reference("Qwen4Exp", _merged),
}


class SeeingPair:
    """Both, of a config with a vision tower; pictures are prepared by the image processor of each."""

    def __init__(self, config: dict[str, Any], folder: Path, tokens: int) -> None:
        """tokens: the most that a picture may have."""
        torch.manual_seed(11)
        self.reference = REFERENCES[config["model_type"]]
        self.theirs: Any = self.reference.model(self.reference.part(config))
        self._randomise()
        self.theirs.save_pretrained(folder)
        self.reference.publish(folder)
        self.config = saved = json.loads((folder / "config.json").read_text())
        self.of_theirs = self.reference.part(saved)
        family = family_of(saved)
        assert isinstance(family, DecoderFamily) and family.vision is not None, family.no_vision
        self.family, self.vision, self.tokens = family, family.vision, tokens
        saved_as = safetensors.torch.load_file(folder / "model.safetensors")
        tensors = {plan_name(key, family.tensors): tensor for key, tensor in saved_as.items()}
        self.kernels = Kernels(2)
        self.tensors = {key: stored(tensor) for key, tensor in tensors.items() if key in family.seen_by}
        self.text = read_by(family.tensors, {key: each for key, each in tensors.items() if key not in family.seen_by})
        of_text = {key: tensor for key, tensor in tensors.items() if key in family.tensors.dense}
        experts = resident_experts(family.tensors, tensors, self.kernels)
        layers = NativeLayers(self.kernels, {key: stored(tensor) for key, tensor in of_text.items()}, "f32")
        self.ours = family.build(layers, experts, Profiler())
        self.form: ImageProcessor = self.vision.form(Fields(dict(self.reference.settings)), tokens)
        marks = dict[str, int]()  # of which config.json has no ids
        self.layout = with_ids(self.vision.layout, lambda mark: marks.setdefault(mark, 70 + len(marks)))

    def _randomise(self) -> None:
        """Away from zeros and ones, so that each tensor matters."""
        with torch.no_grad():
            for name, each in (*self.theirs.named_parameters(), *self.theirs.named_buffers()):
                if (
                    "norm" in name
                    or "ln_q" in name
                    or name.endswith(("bias", "std_scale", "layer_scalar", "router.scale"))
                ):
                    each.copy_(torch.rand_like(each) * 0.4 + (0 if name.endswith("bias") else 0.8))
                elif ("position_embedding" in name or "pos_embed" in name) and "time" not in name:
                    each.copy_(torch.randn_like(each))

    def part(self, prefix: str) -> Layers:
        found = {name: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
        assert found, prefix
        layers = NativeLayers(self.kernels, self.vision.tower.prepared(found), "f32")
        return of_any_device(layers, Experts())[0]

    def views(self, picture: np.ndarray) -> list[list[np.ndarray]]:
        """The pixels of each; a picture that is shown as a whole has its size already."""
        return shown(self.form, picture)

    def rows(self, picture: np.ndarray) -> Float32Array:
        """Of its soft tokens."""
        return self.vision.tower.rows(self.part, self.patches(picture))

    def patches(self, picture: np.ndarray) -> list[Patches]:
        return [self.form.patches(each) for row in self.views(picture) for each in row]

    def items(self, picture: np.ndarray) -> Sequence[Grid | Mark]:
        """What stands for it in a prompt."""
        size = (picture.shape[0], picture.shape[1])
        items = written(
            self.layout.items(grids_of(self.views(picture), self.form)),
            size,
            lambda text: [letter % 60 for letter in text.encode()],
        )
        if self.reference.around is None:
            return items
        before, behind = (self.of_theirs[each] for each in self.reference.around)
        return [before, *items, behind]

    def laid_out(self, prompt: Prompt) -> tuple[list[int], list[SoftTokens]]:
        """Token ids, below 0 for pictures, and these in their pieces."""
        ids, pictures = list[int](), list[SoftTokens]()
        for given in prompt:
            rows = None if isinstance(given, int) else self.rows(given)
            for item in [given] if isinstance(given, int) else self.items(given):
                if not isinstance(item, tuple):
                    ids.append(known(item))
                    continue
                assert rows is not None
                count = item[0] * item[1]
                pictures.append(SoftTokens(len(ids), item, lambda piece=rows[:count]: piece))  # type: ignore[misc]
                ids += [SOFT_IDS] * count
                rows = rows[count:]
        return ids, pictures

    def borders(self, prompt: Prompt) -> list[int]:
        """The places between which soft tokens follow one another."""
        return [place for piece in self.laid_out(prompt)[1] for place in (piece.start, piece.end)]

    def on_device(self) -> tuple[Decoder, EmulatedDevice]:
        """Our language model on an emulated device."""
        text: Any = SimpleNamespace(config=self.config, plan=self.family.tensors, tensors=self.text)
        return on_device(text)

    def logits(self, prompt: Prompt, cuts: Sequence[int] = (), model: Decoder | None = None) -> Tensor:
        """Of each token, computed in chunks that end at the cuts. model: ours, elsewhere than on the CPU."""
        ids, pictures = self.laid_out(prompt)
        model = model or self.ours
        cache = model.new_cache(256)
        cache.pictures = pictures
        borders = [0, *cuts, len(ids)]
        passes = [ids[a:b] for a, b in pairwise(borders)]
        found = [model.forward(each, cache, of_tokens=len(ids), last_only=False) for each in passes]
        return torch.from_numpy(np.concatenate(found))

    def new_cache(self, pictures: Sequence[SoftTokens]) -> Cache:
        cache = self.ours.new_cache(256)
        cache.pictures = pictures
        return cache

    def their_inputs(self, prompt: Prompt) -> dict[str, Any]:
        """What transformers' model is given: its image processor has prepared the pictures."""
        images = [item for item in prompt if not isinstance(item, int)]
        token = self.of_theirs[self.reference.token]
        ids = [token if each < 0 else each for each in self.laid_out(prompt)[0]]
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if self.reference.around is not None:  # without a mask positions are those of text
            given["attention_mask"] = torch.ones(1, len(ids), dtype=torch.int64)
        if "mm_token_type_ids" in signature(self.theirs.forward).parameters:
            given["mm_token_type_ids"] = torch.tensor([[int(each == token) for each in ids]])
        if "moe_mm_token_type_ids" in signature(self.theirs.forward).parameters:  # as ERNIE's processor makes them
            around = {self.config[f"image_{place}_token_id"] for place in ("start", "end")} | {token}
            given["moe_mm_token_type_ids"] = torch.tensor([[int(each in around) for each in ids]])
        if not images:
            return given
        processor = self.reference.processor(self.of_theirs, self.tokens)
        prepared = processor(images, return_tensors="pt", do_resize=False)  # they have their sizes already
        return given | {name: value for name, value in prepared.items() if not name.startswith("num_soft")}


def seen_by(config: Mapping[str, Any]) -> Vision:
    vision = family_of(dict(config)).vision
    assert vision is not None
    return vision


def shown(form: ImageProcessor, picture: np.ndarray) -> list[list[np.ndarray]]:
    """The pixels of the views; a picture that is shown as a whole has its size already."""
    if isinstance(form, WholePictures):
        return [[picture]]
    into = io.BytesIO()
    PIL.Image.fromarray(picture).save(into, "PNG")
    return decode(into.getvalue(), "it", form.views)


class Experts:
    """None: a tower is dense."""

    wants_expectations = False

    def run(self, layer: int, hidden: object, routing: object, out: object) -> None:
        raise AssertionError("a tower has no experts")

    def expect(self, layer: int, guess: object) -> None: ...

    def norm_outputs(self, layer: int, scale: object, eps: float) -> None: ...
