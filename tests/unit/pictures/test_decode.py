"""Picture files of all sorts, good and bad, through the process that decodes them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from moeinf.errors import StarvedError, UsageError
from moeinf.pictures import decode as module
from moeinf.pictures.decode import decode
from moeinf.types import PictureStep, PictureViews

NOISE = np.random.default_rng(3).integers(0, 256, (30, 50, 3)).astype(np.uint8)


def file_of(image: Any, format: str = "PNG", **options: Any) -> bytes:
    into = io.BytesIO()
    image.save(into, format, **options)
    return into.getvalue()


def noise(mode: str = "RGB") -> Any:
    return PIL.Image.fromarray(NOISE).convert(mode)


def as_it_is(height: int, width: int) -> PictureViews:
    return (((PictureStep("bicubic", height, width),),),)


def decoded(data: bytes, shown: Any = as_it_is) -> Any:
    """The pixels of the only view."""
    [[pixels]] = decode(data, "it", shown)
    return pixels


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that stands for many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_a_png_gives_its_pixels() -> None:
    for mode in ("RGB", "L", "P", "1"):
        image = noise(mode)
        assert np.array_equal(decoded(file_of(image)), np.asarray(image.convert("RGB"))), mode


def test_a_jpeg_gives_the_pixels_of_pillow() -> None:
    for mode in ("RGB", "L", "CMYK"):
        data = file_of(noise(mode), "JPEG")
        assert np.array_equal(decoded(data), np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_picture_is_resized_as_pillow_does() -> None:
    seen = []

    def shown(height: int, width: int) -> PictureViews:
        seen.append((height, width))
        return (((PictureStep("bicubic", 16, 64),),),)

    wanted = noise().resize((64, 16), PIL.Image.Resampling.BICUBIC)
    assert np.array_equal(decoded(file_of(noise()), shown), np.asarray(wanted)) and seen == [(30, 50)]


def test_each_view_goes_its_own_steps() -> None:
    common = (PictureStep("bilinear", 20, 30), PictureStep("pad", 24, 40))
    cuts = [PictureStep("cut", 12, 20, top, left) for top in (0, 12) for left in (0, 20)]
    tiles = [(*common, cut) for cut in cuts]
    whole = (PictureStep("bicubic", 8, 8),)
    again = (*tiles[0], PictureStep("bilinear", 6, 10))
    found = decode(file_of(noise()), "it", lambda height, width: (tuple(tiles[:2]), tuple(tiles[2:]), (whole, again)))
    assert [len(row) for row in found] == [2, 2, 2]
    canvas = np.zeros((24, 40, 3), np.uint8)
    canvas[:20, :30] = np.asarray(noise().resize((30, 20), PIL.Image.Resampling.BILINEAR))
    assert np.array_equal(np.concatenate([np.concatenate(row, 1) for row in found[:2]]), canvas)
    assert np.array_equal(found[2][0], np.asarray(noise().resize((8, 8), PIL.Image.Resampling.BICUBIC)))
    small = PIL.Image.fromarray(found[0][0]).resize((10, 6), PIL.Image.Resampling.BILINEAR)
    assert np.array_equal(found[2][1], np.asarray(small))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_upright_as_its_camera_says(orientation: int) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = file_of(noise(), "PNG", exif=exif)
    upright = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    assert np.array_equal(decoded(data), np.asarray(upright))


def test_what_is_transparent_is_white() -> None:
    image = noise("RGBA")
    image.putalpha(PIL.Image.fromarray(np.tile(np.array([0, 255], np.uint8), (30, 25))))
    found = decoded(file_of(image))
    assert (found[:, ::2] == 255).all() and np.array_equal(found[:, 1::2], NOISE[:, 1::2])
    palette = noise("P")
    clear = palette.getpixel((0, 0))
    found = decoded(file_of(palette, transparency=clear))
    assert (found[np.asarray(palette) == clear] == 255).all()


def refusal(data: bytes, shown: Any = as_it_is) -> str:
    with pytest.raises(UsageError) as caught:
        decode(data, "cat.png", shown)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_decoded_is_refused_in_one_line() -> None:
    whole = file_of(noise())
    assert refusal(b"") == refusal(b"GIF89a" + bytes(50)) == "cat.png is neither PNG nor JPEG"
    assert refusal(file_of(noise(), "BMP")) == refusal(file_of(noise(), "WEBP")) == "cat.png is neither PNG nor JPEG"
    assert refusal(whole[: len(whole) // 2]).startswith("cat.png is damaged or cut short")
    jpeg = file_of(noise(), "JPEG")
    assert refusal(jpeg[: len(jpeg) // 2]).startswith("cat.png is damaged or cut short")
    frames = [PIL.Image.fromarray(NOISE[::step]) for step in (1, 1)]
    frames[1].putpixel((0, 0), (1, 2, 3))
    assert "is animated" in refusal(file_of(frames[0], "PNG", save_all=True, append_images=frames[1:]))
    deep = PIL.Image.fromarray(NOISE[:, :, 0].astype(np.uint16) * 256)
    assert "more than 8 bits a channel" in refusal(file_of(deep))


def test_large_pictures_are_refused_before_they_are_decoded() -> None:
    assert refusal(bomb(60000, 60000)) == ("cat.png has 60000 x 60000 pixels, more than 50 million; scale it down")
    assert "has more than 32 MiB" in refusal(bytes((32 << 20) + 1))


def test_a_size_that_is_refused_names_the_picture() -> None:
    def shown(height: int, width: int) -> PictureViews:
        raise UsageError("too narrow")

    assert refusal(file_of(noise()), shown) == "cat.png: too narrow"


def test_a_decoder_that_hangs_or_dies_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BOOTSTRAP", "import os; os.abort()")
    assert "the decoder died" in refusal(file_of(noise()))
    endless = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass"
    monkeypatch.setattr(module, "_BOOTSTRAP", endless)
    assert "the decoder died or took more" in refusal(file_of(noise()))


def test_a_decoder_that_dies_behind_its_first_answer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = "n = int.from_bytes(sys.stdin.buffer.read(8), 'little'); sys.stdin.buffer.read(n); os.close(0); "
    answer = 'print(\'{"height": 2, "width": 2}\', flush=True)'
    monkeypatch.setattr(module, "_BOOTSTRAP", f"import os, sys; {read_all}{answer}")
    assert "the decoder died" in refusal(file_of(noise()))


def test_a_decoder_that_the_machine_does_not_let_work_is_no_fault_of_the_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BOOTSTRAP", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    with pytest.raises(StarvedError, match="was stopped; ask again"):
        module.decode(file_of(noise()), "cat.png", lambda height, width: ())


def test_pillow_is_an_optional_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert refusal(b"") == "pictures need Pillow: pip install 'moeinf[vision]'"
