"""The process that decodes one picture, as files of anybody can hang or crash a decoder, or take all memory.

In: the number of bytes (8, little endian) and the file. Out: a line of JSON, its height and width, or what is wrong
with it. In: a line of JSON, the height and width to which it is resized. Out: a line of JSON, {} or what is wrong, and
the pixels, RGB. It ends when its input ends, that is, with its parent.
"""

from __future__ import annotations

import io
import json
import signal
import sys
import warnings
from typing import TYPE_CHECKING, BinaryIO, Final

from moeinf.text.memory_limit import limit_memory
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS: Final = 50_000_000  # of a file: 150 MB as RGB, twice where it has to be turned
MEMORY_BYTES: Final = 1 << 30
LIMIT_S: Final = 30
_ORIENTATION: Final = 0x0112  # the EXIF tag
_DEEP: Final = ("I", "F")  # modes of more than 8 bits a channel begin so; Pillow cuts them off at 255


class _Unfit(Exception):
    """Says what is wrong with a picture, in a few words."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are for the parent, whose end is this one's
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S + 5)  # the parent's deadline comes first; this one is for a parent that died meanwhile
    limit_memory(MEMORY_BYTES, MEMORY_BYTES)
    warnings.simplefilter("ignore")
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    data = given.read(int.from_bytes(given.read(8), "little"))
    try:
        image = _opened(data)
        height, width = _turned_size(image)
        _write(answers, {"height": height, "width": width})
        size = json.loads(given.readline())
        pixels = _pixels(image, size["height"], size["width"])
    except BaseException as error:  # the top of this process
        _write(answers, {"fault": _fault(error)})
    else:
        _write(answers, {})
        answers.write(pixels)
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


def _pixels(image: Image, height: int, width: int) -> bytes:
    import PIL.Image
    import PIL.ImageOps

    image.load()
    PIL.ImageOps.exif_transpose(image, in_place=True)
    if "A" in image.getbands() or "transparency" in image.info:
        whole = image.convert("RGBA")  # what is transparent is white, as in Qwen's own preparation
        image = PIL.Image.new("RGB", whole.size, (255, 255, 255))
        image.paste(whole, mask=whole.getchannel("A"))
    image = image.convert("RGB")
    if image.size != (width, height):
        image = image.resize((width, height), PIL.Image.Resampling.BICUBIC)
    return image.tobytes()


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
