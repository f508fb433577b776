"""The arithmetic of image processors against transformers': sizes, patches, grids."""

from __future__ import annotations

import ast
import io
import json
import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from moeinf.errors import UnsupportedModelError, UsageError
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    OF_CLIP,
    ImageProcessor,
    LongestEdge,
    MergedPatches,
    PaddedPatches,
    PooledPatches,
    settings_of,
)
from moeinf.models.layers.vision.processors.bounded_grids import BoundedGrids
from moeinf.models.layers.vision.processors.centred_pictures import CentredPictures
from moeinf.models.layers.vision.processors.cropped_pictures import CroppedPictures
from moeinf.models.layers.vision.processors.cut_pictures import CutPictures
from moeinf.models.layers.vision.processors.filled_pictures import FilledPictures
from moeinf.models.layers.vision.processors.shaped_pictures import ShapedPictures
from moeinf.models.layers.vision.processors.stretched_tiles import StretchedTiles
from moeinf.models.layers.vision.processors.tiled_pictures import TiledPictures
from moeinf.pictures.decode import decode
from moeinf.types import PictureStep
from tests.oracles.deepseek_v41_vision import patches_of
from tests.support.tiny_models import all_configs

SIZES = [(30, 50), (480, 640), (33, 700), (900, 40), (256, 256), (64, 65), (1, 150), (3000, 2000)]  # height, width


def png(height: int, width: int) -> tuple[Any, bytes]:
    coarse = np.random.default_rng(height).integers(0, 256, (-(-height // 7), -(-width // 7), 3)).astype(np.uint8)
    image = PIL.Image.fromarray(coarse.repeat(7, 0).repeat(7, 1)[:height, :width])
    into = io.BytesIO()
    image.save(into, "PNG", compress_level=1)
    return image, into.getvalue()


def prepared(form: ImageProcessor, data: bytes) -> tuple[np.ndarray, tuple[int, int]]:
    [[pixels]] = decode(data, "it", form.views)
    patches = form.patches(pixels)
    return patches.values, patches.grid


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("least", "most"), [(1, 60), (64, 300), (64, 16384)])
def test_merged_patches_are_those_of_the_reference(size: tuple[int, int], least: int, most: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image, data = png(*size)
    bounds = {"shortest_edge": least * 1024, "longest_edge": most * 1024}
    settings: dict[str, Any] = {"image_mean": [0.5, 0.4, 0.5], "image_std": [0.5, 0.3, 0.5], "size": bounds}
    processor = Qwen2VLImageProcessorPil(patch_size=16, **settings)
    theirs = processor([image], return_tensors="pt")
    form = MergedPatches.parse(Fields(settings), 16, 2, 2, None)
    assert form.most_tokens == min(most, 1024)
    if (theirs["image_grid_thw"][0].prod() // 4).item() > 1024:
        return  # beyond what moeinf gives a picture of itself
    values, grid = prepared(form, data)
    assert [1, *grid] == theirs["image_grid_thw"][0].tolist()
    assert (torch.from_numpy(values) - theirs["pixel_values"]).abs().max() < 1e-6


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("least", "most"), [(2, 60), (64, 900)])
def test_merged_patches_of_a_film_are_those_of_the_reference(size: tuple[int, int], least: int, most: int) -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    image, data = png(*size)
    settings = {"size": {"shortest_edge": least * 1568, "longest_edge": most * 1568}}
    theirs = Glm4vImageProcessorPil(**settings)([image], return_tensors="pt")
    seen = family_of(all_configs()["glm4v_moe"]).vision
    assert seen is not None
    form = seen.form(Fields(settings), None)
    assert form.most_tokens == most
    values, grid = prepared(form, data)
    assert [1, *grid] == theirs["image_grid_thw"][0].tolist()
    assert (torch.from_numpy(values) - theirs["pixel_values"]).abs().max() < 1e-6


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bounds", [(1, 90), (64, 800), None])
def test_patches_of_hunyuan_are_those_of_the_reference(size: tuple[int, int], bounds: tuple[int, int] | None) -> None:
    from transformers.models.hy_v4_vl.image_processing_pil_hy_v4_vl import HYV4VLImageProcessorPil

    image, data = png(*size)
    edges = dict(zip(("shortest_edge", "longest_edge"), (1024 * each for each in bounds or ()), strict=False))
    settings: dict[str, Any] = {"size": edges} if edges else {}
    theirs = HYV4VLImageProcessorPil(**settings)([image], return_tensors="pt")
    seen = family_of(all_configs("SEEING")["hy_v4_vl"] | {"vision_config": {"out_hidden_size": 64}}).vision
    assert seen is not None
    form = seen.form(Fields(settings | {"resample": 1}), None)
    if theirs["image_grid_thw"][0].prod() > 4096:
        return  # beyond what moeinf gives a picture of itself
    values, grid = prepared(form, data)
    assert [1, *grid] == theirs["image_grid_thw"][0].tolist()
    in_rows = theirs["pixel_values"].reshape(grid[0] // 2, 2, grid[1] // 2, 2, -1).transpose(1, 2).flatten(0, 3)
    assert (torch.from_numpy(values) - in_rows).abs().max() < 1e-6


@pytest.mark.parametrize("size", [*SIZES, (28, 28), (112, 112), (113, 112)], ids=str)
@pytest.mark.parametrize(("least", "most"), [(16, 900), (40, 41), (1, 6)])
def test_filled_pictures_are_those_of_the_reference(size: tuple[int, int], least: int, most: int) -> None:
    from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil

    image, data = png(*size)
    settings = {"min_image_tokens": least, "max_image_tokens": most}
    theirs = Glm5NextImageProcessorPil(**settings)([image], return_tensors="pt")
    form = FilledPictures.parse(Fields(settings), 14, 2, 2, None)
    values, grid = prepared(form, data)
    assert [1, *grid] == theirs["image_grid_thw"][0].tolist()
    assert math.prod(grid) <= 4 * form.most_tokens
    assert (torch.from_numpy(values) - theirs["pixel_values"]).abs().max() < 1e-6


_CENTRED = [(295936, 1024, None), (1, 60, None), (1, 14, None), (9000, 90, 3)]


@pytest.mark.parametrize("size", [*SIZES, (14, 14), (700, 715), (1000, 6)], ids=str)
@pytest.mark.parametrize(("least", "most", "widest"), _CENTRED)
def test_centred_pictures_are_those_of_the_published_code(
    size: tuple[int, int], least: int, most: int, widest: int | None
) -> None:
    image, data = png(*size)
    vision = {"patch_size": 14, "downsample_ratio": 3, "min_pixels": least, "max_image_tokens": most}
    vision["max_wh_ratio"] = widest  # type: ignore[assignment]
    theirs, grid = patches_of(image, vision)
    form = CentredPictures.parse(Fields(vision), Fields({}), 14, 3, None)
    patches = form.patches(decode(data, "it", form.views)[0][0])
    assert patches.grid == grid
    rows, cols = (-(-side // 3) for side in grid)
    assert rows * (cols + 1) + 2 <= form.most_tokens == most
    assert (torch.from_numpy(patches.values) - theirs.flatten(1)).abs().max() < 1e-6


def test_a_picture_of_too_few_centred_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="--picture-tokens 3 is too few: a picture of this model has at least 4"):
        CentredPictures.parse(Fields({}), Fields({}), 14, 3, 3)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("longest", [200, 896])
def test_patches_within_a_longest_edge_are_those_of_the_reference(size: tuple[int, int], longest: int) -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    image, data = png(*size)
    settings: dict[str, Any] = {"size": {"longest_edge": longest}, "image_mean": [0.5, 0.4, 0.5]}
    theirs = PixtralImageProcessorPil(patch_size=28, **settings)([image], return_tensors="pt")
    form = LongestEdge.parse(Fields(settings), 14, 2, None)
    values, grid = prepared(form, data)
    assert [[14 * each for each in grid]] == theirs["image_sizes"].tolist()
    assert math.prod(grid) <= 4 * form.most_tokens
    cut = theirs["pixel_values"][0].reshape(3, grid[0] // 2, 2, 14, grid[1] // 2, 2, 14).permute(1, 4, 2, 5, 0, 3, 6)
    assert (torch.from_numpy(values) - cut.reshape(len(values), -1)).abs().max() < 1e-6


def navit_resize() -> Callable[..., tuple[tuple[int, int], tuple[int, int]]]:
    """transformers' function, out of a file that cannot be imported without torchvision."""
    assert transformers.__file__ is not None
    path = Path(transformers.__file__).parent / "models" / "kimi_k25" / "image_processing_kimi_k25.py"
    parts = ast.parse(path.read_text()).body
    [source] = [each for each in parts if getattr(each, "name", "") == navit_resize.__name__]
    found: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([source], []), str(path), "exec"), found)
    return found[navit_resize.__name__]  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [*SIZES, (28, 28), (29, 57)], ids=str)
@pytest.mark.parametrize(("patches", "side"), [(16384, 512), (900, 512), (16384, 20)])
def test_padded_patches_are_those_of_the_reference(size: tuple[int, int], patches: int, side: int) -> None:
    resized, filled = navit_resize()(*size, 14, 2, patches, side)
    if math.prod(filled) // 784 > min(1024, patches // 4):
        return  # beyond what moeinf gives a picture
    image, data = png(*size)
    published = {"media_proc_cfg": {"in_patch_limit": patches, "patch_limit_on_one_side": side, "patch_size": 14}}
    saved = {"max_patches": patches, "size": {"max_height": side, "max_width": side}, "merge_size": 2}
    for settings in (published, saved):
        values, grid = prepared(PaddedPatches.parse(Fields(settings), 14, 2, None), data)
        assert grid == (filled[0] // 14, filled[1] // 14)
    pixels = np.zeros((*filled, 3), np.float32)
    pixels[: resized[0], : resized[1]] = np.asarray(image.resize(resized[::-1], PIL.Image.Resampling.BICUBIC))
    theirs = [
        pixels[28 * row + 14 * i :, 28 * col + 14 * j :][:14, :14].transpose(2, 0, 1).reshape(-1) / 127.5 - 1
        for row in range(grid[0] // 2)
        for col in range(grid[1] // 2)
        for i in range(2)
        for j in range(2)
    ]
    assert np.abs(values - np.stack(theirs)).max() < 1e-6


def test_what_fills_a_picture_up_counts_as_its_tokens() -> None:
    form = PaddedPatches.parse(Fields({}), 14, 2, 6)
    for size in ((300, 300), (29, 5000), (5000, 29), (57, 85), (14, 14)):
        [[[_, filled]]] = form.views(*size)
        assert 1 <= filled.height * filled.width // 784 <= 6


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tokens", [70, 280])
def test_pooled_patches_are_those_of_the_reference(size: tuple[int, int], tokens: int) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    image, data = png(*size)
    theirs = Gemma4ImageProcessorPil(max_soft_tokens=tokens)([image], return_tensors="pt")
    values, grid = prepared(PooledPatches.parse(Fields({"max_soft_tokens": tokens}), 16, 3, None), data)
    count = grid[0] * grid[1]
    assert count == 9 * int(theirs["num_soft_tokens_per_image"][0])
    places = theirs["image_position_ids"][0, :count]
    assert places.tolist() == [[col, row] for row in range(grid[0]) for col in range(grid[1])]
    assert (torch.from_numpy(values) - theirs["pixel_values"][0, :count]).abs().max() < 1e-6


def arithmetic_of(family: str) -> Any:
    """transformers' module, whose arithmetic of sizes needs no torchvision, though its import does."""
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # finds out before there is a module of this name
    names = [
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional",
    ]
    modules = {name: ModuleType(name) for name in names}
    modules[names[2]].functional = modules[names[3]]  # type: ignore[attr-defined]
    modules[names[3]].InterpolationMode = object  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:  # what is imported on the way stays: parts of torch cannot be imported twice
        return import_module(f"transformers.models.{family}.image_processing_{family}")
    finally:
        for name in names:
            del sys.modules[name]


LARGE = [*SIZES, (336, 336), (337, 336), (1344, 336), (700, 700), (1000, 1700), (5, 1200), (671, 999), (4000, 3100)]


def test_windows_are_those_of_the_reference() -> None:
    plan = arithmetic_of("step3p7").Step3p7ImageProcessor
    form = CroppedPictures.parse(Fields({"resample": 2}), 14, 56, 169 + 60 * 81)
    theirs: Any = SimpleNamespace(_is_extreme_aspect=plan._is_extreme_aspect, max_image_size=3024)
    for height, width in (*LARGE, (20, 100), (2000, 400), (728, 400)):
        whole, crop, side, cols, rows, pads = plan._plan_patches(theirs, width, height, 728, 504)
        *windows, [last] = form.views(height, width)
        assert [len(row) for row in windows] == [cols] * rows
        front = [PictureStep("pad", max(height, width), max(height, width))] if pads else []
        size = PictureStep("bilinear", whole[1], whole[0])
        assert last == (*front, size, PictureStep("bilinear", 728, 728))
        for row, views in enumerate(windows):
            for col, view in enumerate(views):
                cut = PictureStep("cut", min(side, crop[1]), min(side, crop[0]), row * side, col * side)
                resized = PictureStep("bilinear", crop[1], crop[0])
                assert view == (*front, resized, cut, PictureStep("bilinear", 504, 504))


def test_windows_are_bounded_by_tokens() -> None:
    with pytest.raises(UsageError, match=r"--picture-tokens 168 is too few: .* at least 169"):
        CroppedPictures.parse(Fields({}), 14, 56, 168)
    for tokens, most in ((169, 0), (169 + 81, 1), (None, 10)):
        form = CroppedPictures.parse(Fields({}), 14, 56, tokens)
        assert form.most_windows == most and form.most_tokens == 169 + 81 * most
        for size in LARGE:
            assert sum(map(len, form.views(*size))) <= 1 + most


@pytest.mark.parametrize("most", [1, 6, 16])
def test_tiles_are_those_of_the_reference(most: int) -> None:
    from transformers.image_utils import SizeDict

    of_tiles = arithmetic_of("llama4")
    form = TiledPictures.parse(Fields({"max_patches": most, "resample": 2}), 14, 2, 336, (most + 1) * 144)
    known = torch.tensor(of_tiles.find_supported_resolutions(most, SizeDict(height=336, width=336)))
    for height, width in LARGE:
        canvas = of_tiles.get_best_fit((height, width), known).tolist()
        bounds = [min(max(side, 336), of_canvas) for side, of_canvas in zip((height, width), canvas, strict=True)]
        size = [max(1, each) for each in of_tiles.get_max_res_without_distortion((height, width), bounds)]
        views = form.views(height, width)
        resized, padded = views[0][0][:2]
        assert [resized.height, resized.width] == size and [padded.height, padded.width] == canvas
        tiles = views if views == ((views[0][0],),) else views[:-1]
        assert [len(tiles), len(tiles[0])] == [each // 336 for each in canvas]
        assert len(views) == len(tiles) + (len(tiles) * len(tiles[0]) > 1)
        assert form.most_tokens >= 144 * sum(map(len, views))


def test_pixels_of_tiles_are_rounded_as_in_the_reference() -> None:
    image, data = png(300, 700)
    form = TiledPictures.parse(Fields({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.3, 0.2]}), 14, 2, 336, None)
    views = decode(data, "it", form.views)
    assert [len(row) for row in views] == [3, 1]
    whole = np.asarray(image.resize((336, 336), PIL.Image.Resampling.BILINEAR))
    mean, std = (torch.tensor(each, dtype=torch.bfloat16) for each in (form.mean, form.std))
    theirs = (torch.from_numpy(whole).bfloat16() * (1 / 255) - mean) / std
    assert torch.equal(torch.from_numpy(form.colours(views[1][0])), theirs.float())
    canvas = np.zeros((336, 1008, 3), np.uint8)
    canvas[:300, :700] = np.asarray(image)
    assert np.array_equal(np.concatenate(views[0], 1), canvas)
    patches = form.patches(views[0][1])
    assert patches.grid == (24, 24) and patches.values.shape == (576, 588)
    second = form.colours(views[0][1])[:14, 14:28].transpose(2, 0, 1)
    assert np.array_equal(patches.values[1], second.reshape(-1))


@pytest.mark.parametrize("size", [*SIZES, (40, 80), (79, 81), (600, 1500)], ids=str)
@pytest.mark.parametrize(("factor", "longest"), [(1.0, None), (2.0, 700), (1.3, None), (0.25, 2048)])
def test_cut_pictures_are_those_of_the_reference(size: tuple[int, int], factor: float, longest: int | None) -> None:
    image, data = png(*size)
    settings = {"rescale_image_frac": factor, "rescale_image_max_upscaled_long_edge": longest}
    form = CutPictures.parse(Fields(settings), 40, None)
    edge = max(size) * factor
    edge = edge if longest is None else min(edge, max(longest, max(size)))
    height, width = (max(1, math.floor(side * (edge / max(size)) + 0.5)) for side in size)
    patches = form.patches(decode(data, "it", form.views)[0][0])
    assert math.prod(patches.grid) == len(patches.values) <= form.most_tokens == 1024
    cut = arithmetic_of("inkling").divide_to_patches(np.zeros((3, height, width)), 40)
    if len(cut) > 1024:
        return  # beyond what moeinf gives a picture of itself
    assert len(cut) == len(patches.values) and patches.grid[1] == width // 40 + 1
    raw = np.full((40 * patches.grid[0], 40 * patches.grid[1], 3), -1, np.float32)
    raw[:height, :width] = np.asarray(image.resize((width, height), PIL.Image.Resampling.LANCZOS))
    mean, std = (np.array(each, np.float32) for each in OF_CLIP)
    theirs = ((raw / 255 - mean) / std).reshape(patches.grid[0], 40, -1, 40, 3).swapaxes(1, 2)
    assert np.abs(patches.values.reshape(theirs.shape) - theirs).max() < 1e-5


def test_a_picture_of_too_few_cut_tokens_and_other_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="--picture-tokens 1 is too few: a picture of this model may have 2"):
        CutPictures.parse(Fields({}), 40, 1)
    assert CutPictures.parse(Fields({}), 40, None).factor == 2
    for settings in ({"resample": 3}, {"size": {"height": 32}}, {"do_normalize": False}):
        with pytest.raises(UnsupportedModelError, match=next(iter(settings))):
            CutPictures.parse(Fields(settings), 40, None)


@pytest.mark.parametrize("size", [*SIZES, (16, 16), (17, 33), (600, 1500)], ids=str)
@pytest.mark.parametrize(("least", "most"), [(1024, 13312), (1, 240), (64, 64), (40, 300)])
def test_grids_within_bounds_are_those_of_the_reference(size: tuple[int, int], least: int, most: int) -> None:
    of_grids = arithmetic_of("nemotron_h_omni")
    form = BoundedGrids.parse(Fields({"min_num_patches": least, "max_num_patches": most}), 16, 2, None)
    rows, cols = of_grids.get_patch_grid_size(*size, 16, 2, least, min(most, 4096))
    if rows * cols <= 4 * form.most_tokens:
        assert form.size(*size) == (16 * rows, 16 * cols)
    assert math.prod(form.size(*size)) <= 1024 * form.most_tokens


def test_a_narrow_picture_has_no_more_patches_than_the_bound() -> None:
    form = BoundedGrids.parse(Fields({}), 16, 2, 6)
    for size in ((10, 2000), (2000, 10), (16, 16), (3000, 2900)):
        rows, cols = (side // 16 for side in form.size(*size))
        assert 4 <= rows * cols <= 24 and rows % 2 == cols % 2 == 0


def test_a_published_mean_of_nothing_is_followed() -> None:
    form = BoundedGrids.parse(Fields({"norm_mean": [0.0] * 3, "norm_std": [1.0] * 3}), 16, 2, None)
    assert form.patches(np.full((32, 32, 3), 51, np.uint8)).values == pytest.approx(0.2)


@pytest.mark.parametrize("most", [1, 7, 60, 1024])
def test_grids_like_the_picture_are_those_of_the_reference(most: int) -> None:
    of_shapes, random = arithmetic_of("muse_glimmer"), np.random.default_rng(5)
    form = ShapedPictures.parse(Fields({"max_image_tokens": most}), 14, 2, 2, None)
    squares = [(side, side) for side in range(1, 120, 7)]  # of which two grids are as near
    for height, width in (*SIZES, *squares, *random.integers(20, 3000, (300, 2)).tolist()):
        found, theirs = form.size(height, width), of_shapes.smart_resize(height, width, 28, most)
        if math.prod(theirs) <= most * 28**2:
            assert found == theirs, (height, width)
        else:  # the reference goes beyond the bound
            assert math.prod(found) == most * 28**2 and min(found) == min(theirs) == 28


def test_patches_of_frames_follow_the_filter_of_pillow() -> None:
    image, data = png(300, 170)
    form = ShapedPictures.parse(Fields({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.3, 0.2]}), 14, 2, 2, 30)
    values, grid = prepared(form, data)
    height, width = form.size(300, 170)
    assert grid == (height // 14, width // 14) and values.shape == (math.prod(grid), 2 * 3 * 14**2)
    pixels = np.asarray(image.resize((width, height), PIL.Image.Resampling.LANCZOS)) / 255
    theirs = ((pixels - form.mean) / form.std)[14:28, :14].transpose(2, 0, 1).reshape(-1)  # of the second row
    assert np.abs(values[2] - np.tile(theirs, 2)).max() < 1e-6


def test_settings_of_grids_like_the_picture_bound_them_or_are_refused() -> None:
    assert ShapedPictures.parse(Fields({}), 14, 2, 2, None).most_tokens == 1024
    assert ShapedPictures.parse(Fields({}), 14, 2, 2, 4096).most_tokens == 4096
    with pytest.raises(UsageError, match=r"4 x 900 pixels is too narrow"):
        ShapedPictures.parse(Fields({}), 14, 2, 2, None).size(900, 4)
    for settings in ({"resample": 3}, {"patch_size": 16}, {"temporal_patch_size": 1}, {"do_normalize": False}):
        with pytest.raises(UnsupportedModelError, match=next(iter(settings))):
            ShapedPictures.parse(Fields(settings), 14, 2, 2, None)


@pytest.mark.parametrize("most", [1, 6, 12])
def test_stretched_tiles_are_those_of_the_reference(most: int) -> None:
    of_tiles = arithmetic_of("cohere2_vision")
    form = StretchedTiles.parse(Fields({"max_patches": most, "patch_size": 16}), 16, 2, 512, 13 * 256)
    for height, width in (*LARGE, (100, 30), (512, 512), (513, 512), (2000, 2000), (999, 1001)):
        cols, rows = of_tiles.get_optimal_tiled_canvas((height, width), (512, 512), 1, most)
        *tiles, whole = form.views(height, width)
        assert whole == ((PictureStep("bicubic", 512, 512),),)
        if rows * cols == 1:
            assert not tiles
            continue
        assert [len(tiles), *map(len, tiles)] == [rows, *[cols] * rows]
        canvas = PictureStep("bicubic", 512 * rows, 512 * cols)
        for row, col in ((0, 0), (rows - 1, cols - 1)):
            assert tiles[row][col] == (canvas, PictureStep("cut", 512, 512, 512 * row, 512 * col))
        assert form.most_tokens >= 256 * (rows * cols + 1)


def test_settings_of_stretched_tiles_bound_them_or_are_refused() -> None:
    assert StretchedTiles.parse(Fields({}), 16, 2, 512, None).most_tiles == 3
    assert StretchedTiles.parse(Fields({"crop_to_patches": False}), 16, 2, 512, 9999).most_tokens == 256
    with pytest.raises(UsageError, match=r"--picture-tokens 255 is too few: .* at least 256"):
        StretchedTiles.parse(Fields({}), 16, 2, 512, 255)
    for settings in ({"patch_size": 14}, {"size": {"height": 364}}, {"min_patches": 2}, {"do_normalize": False}):
        with pytest.raises(UnsupportedModelError, match=next(iter(settings))):
            StretchedTiles.parse(Fields(settings), 16, 2, 512, None)


def test_fewer_tokens_than_a_tile_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--picture-tokens 143 is too few: .* at least 144"):
        TiledPictures.parse(Fields({}), 14, 2, 336, 143)
    assert TiledPictures.parse(Fields({}), 14, 2, 336, 144).most_tokens == 144
    assert TiledPictures.parse(Fields({}), 14, 2, 336, None).most_tiles == 6


def test_the_user_bounds_the_tokens_of_a_picture() -> None:
    small = MergedPatches.parse(Fields({}), 16, 2, 2, 50)
    assert small.most_tokens == 50 and np.prod(small.size(3000, 2000)) <= 50 * 1024
    large = MergedPatches.parse(Fields({}), 16, 2, 2, 9000)
    assert 2000 < np.prod(large.size(3000, 2000)) // 1024 < 9000
    edge = LongestEdge.parse(Fields({}), 14, 2, 50)
    assert edge.most_tokens == 49 and np.prod(edge.size(3000, 2000)) <= 49 * 28 * 28
    assert LongestEdge.parse(Fields({"size": {"longest_edge": 1540}}), 14, 2, None).longest == 32 * 28
    pooled = PooledPatches.parse(Fields({}), 16, 3, 70)
    assert pooled.most_tokens == 70 and np.prod(pooled.size(3000, 2000)) <= 70 * 48 * 48


def test_a_picture_that_is_too_narrow_is_refused() -> None:
    for form in (
        MergedPatches.parse(Fields({}), 16, 2, 2, None),
        PooledPatches.parse(Fields({}), 16, 3, None),
        LongestEdge.parse(Fields({}), 14, 2, None),
    ):
        with pytest.raises(UsageError, match=r"4 x 900 pixels is too narrow"):
            form.size(900, 4)


def test_settings_that_are_not_followed_are_refused() -> None:
    for settings in ({"do_resize": False}, {"resample": 2}, {"patch_size": 14}, {"rescale_factor": 1.0}):
        with pytest.raises(UnsupportedModelError, match=next(iter(settings))):
            MergedPatches.parse(Fields(settings), 16, 2, 2, None)


@pytest.mark.parametrize(
    ("own", "whole"),
    [
        ({"patch_size": 3}, {"image_processor": {"patch_size": 4}}),
        ({"patch_size": 3}, {"image_processor": None}),
        ({"patch_size": 3}, {"processor_class": "X"}),
        ({"patch_size": 3}, None),
        (None, {"image_processor": {"patch_size": 4}}),
    ],
)
def test_settings_come_from_the_file_that_transformers_takes(own: Any, whole: Any, tmp_path: Path) -> None:
    files = {"preprocessor_config.json": own, "processor_config.json": whole}
    for name, content in files.items():
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    theirs, _ = transformers.BaseImageProcessor.get_image_processor_dict(tmp_path)
    assert settings_of(files).get("patch_size") == theirs["patch_size"]


def test_settings_may_be_in_no_file() -> None:
    assert settings_of({}).get("patch_size") is None
