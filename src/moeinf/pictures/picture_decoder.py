"""The process that decodes one picture, as files of anybody can hang or crash a decoder, or take all memory.

In: the number of bytes (8, little endian) and the file. Out: a line of JSON, its height and width, or what is wrong
with it. In: a line of JSON, the steps to each view of it (PictureStep in types.py). Out: a line of JSON, {} or
what is wrong, and the pixels of the views, RGB. It ends when its input ends, that is, with its parent.
"""

from __future__ import annotations

import io
import json
import resource
import signal
import sys
import warnings
from itertools import takewhile
from typing import TYPE_CHECKING, BinaryIO, Final

from moeinf.text.process_limits import STARVED_S, limit_memory
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS: Final = 50_000_000  # of a file: 150 MB as RGB, twice where it has to be turned
MEMORY_BYTES: Final = 1 << 30
LIMIT_S: Final = 30  # of processor time
_ORIENTATION: Final = 0x0112  # the EXIF tag
_DEEP: Final = ("I", "F")  # modes of more than 8 bits a channel begin so; Pillow cuts them off at 255


class _Unfit(Exception):
    """Says what is wrong with a picture, in a few words."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are for the parent, whose end is this one's
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S + int(STARVED_S) + 5)  # the parent's comes first; this one is for a parent that died meanwhile
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    limit_memory(MEMORY_BYTES, MEMORY_BYTES)
    warnings.simplefilter("ignore")
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    data = given.read(int.from_bytes(given.read(8), "little"))
    try:
        image = _opened(data)
        height, width = _turned_size(image)
        _write(answers, {"height": height, "width": width})
        pixels = _views(_upright(image), json.loads(given.readline()))
    except BaseException as error:  # the top of this process
        _write(answers, {"fault": _fault(error)})
    else:
        _write(answers, {})
        answers.writelines(pixels)
        answers.flush()


def _opened(data: bytes) -> Image:
    """The picture with nothing but its header read."""
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = None  # the bound is below, and no warning
    image: Image = PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _Unfit(f"has {width} x {height} pixels, more than {MOST_PIXELS // 1_000_000} million; scale it down")
    if image.format == "PNG" and getattr(image, "is_animated", False):
        raise _Unfit("is animated; save one of its frames as PNG or JPEG")
    if image.mode.startswith(_DEEP):
        raise _Unfit("has more than 8 bits a channel; save it with 8")
    return image


def _turned_size(image: Image) -> tuple[int, int]:
    """Height and width once it stands upright, as its camera says."""
    width, height = image.size
    return (width, height) if image.getexif().get(_ORIENTATION) in (5, 6, 7, 8) else (height, width)


def _upright(image: Image) -> Image:
    """All of the picture, RGB."""
    import PIL.Image
    import PIL.ImageOps

    image.load()
    PIL.ImageOps.exif_transpose(image, in_place=True)
    if "A" in image.getbands() or "transparency" in image.info:
        whole = image.convert("RGBA")  # what is transparent is white, as in Qwen's own preparation
        image = PIL.Image.new("RGB", whole.size, (255, 255, 255))
        image.paste(whole, mask=whole.getchannel("A"))
    return image.convert("RGB")


def _views(image: Image, views: list[list[JsonObject]]) -> list[bytes]:
    """The pixels of each. What a view has in common with the one before it, its first steps, is done once."""
    found, done, images = [], list[JsonObject](), [image]
    for steps in views:
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(done, steps, strict=False)))
        del images[common + 1 :]
        for step in steps[common:]:
            images.append(_stepped(images[-1], **step))
        done = steps
        found.append(images[-1].tobytes())
    return found


def _stepped(image: Image, kind: str, height: int, width: int, top: int, left: int, grey: int) -> Image:
    import PIL.Image

    if kind == "cut":
        return image.crop((left, top, left + width, top + height))
    if kind == "pad":
        canvas = PIL.Image.new("RGB", (width, height), (grey,) * 3)
        canvas.paste(image, (left, top))
        return canvas
    if image.size == (width, height):
        return image
    return image.resize((width, height), PIL.Image.Resampling[kind.upper()])


def _fault(error: BaseException) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, _Unfit):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "is neither PNG nor JPEG"
    if isinstance(error, MemoryError):
        return "takes too much memory to decode; save it anew, smaller"
    return f"is damaged or cut short ({' '.join(str(error).split())[:200]}); save it anew"


def _write(answers: BinaryIO, value: JsonObject) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
