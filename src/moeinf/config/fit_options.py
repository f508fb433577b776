"""What a pull may be told that fits a model to a size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeinf.config.option import option
from moeinf.config.size import Bytes, parse_size
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The size that a model is to have, beside `--quant BITS`, and the text on which is measured what that costs."""

    size: str | None = option(
        None, "Choose the format of each part so that the model has at most this size: 12GiB.", metavar="SIZE"
    )
    text: str | None = option(
        None,
        "Text on which --size and --quant BITS measure what each part may lose. [default: built in, short]",
        metavar="FILE",
    )
    tokens: int = option(1024, "Most tokens of it that are read. [default: {default}]", metavar="N")


def wanted_bytes(quant: str | None, options: FitOptions, num_params: int) -> int:
    """The bytes that a model of so many weights may have. Raises UsageError."""
    if options.size is not None:
        size = parse_size("--size", options.size)
        if not isinstance(size, Bytes):
            raise UsageError(f"--size {options.size[:100]!r} is no number of bytes, such as 12GiB")
        return size.num_bytes
    assert quant is not None
    return int(float(quant) * num_params / 8)


def fits(quant: str | None, options: FitOptions) -> bool:
    """Whether a size is asked for, and no format. Raises UsageError for both, and for a text without a size."""
    bits = _bits(quant)
    if options.size is not None and quant is not None:
        raise UsageError("only one of --size and --quant at a time")
    if options.size is None and bits is None:
        if options.text is not None:
            raise UsageError("--text is for --size and for --quant with a number of bits, such as --quant 4.5")
        return False
    if bits is not None and not 1 <= bits <= 16:
        raise UsageError(f"--quant {quant} is no number of bits from 1 to 16")
    return True


def fit_tag(quant: str | None, options: FitOptions) -> str:
    """The tag of the model that is made."""
    return (quant or options.size or "").lower().replace("%", "")


def _bits(quant: str | None) -> float | None:
    try:
        bits = float(quant or "")
    except ValueError:
        return None
    return bits if math.isfinite(bits) else None
