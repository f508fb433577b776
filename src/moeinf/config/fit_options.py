"""What a pull may be told that chooses formats, or rounds weights, by what is measured on a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.config.option import option
from moeinf.config.size import Bytes, parse_size
from moeinf.errors import UsageError

BUILT_IN: Final = "built-in"  # the text that comes along
_UNSEARCHED: Final = ("keep", "q8_0", "mxfp4")  # in which a weight has but one nearest number


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The size that a model is to have, beside `--quant BITS`, and the texts on which is measured what that costs."""

    size: str | None = option(
        None, "Choose the format of each part so that the model has at most this size: 12GiB.", metavar="SIZE"
    )
    text: str | None = option(
        None,
        "Text on which --size and --quant BITS measure what each part may lose. [default: built in, short]",
        metavar="FILE",
    )
    tokens: int = option(1024, "Most tokens of it that are read. [default: {default}]", metavar="N")
    calibrate: str | None = option(
        None,
        "Round weights by how much each column matters on a text like those that the model is for, and experts so "
        "that columns make up for each other's loss: its file, or built-in for a short one that comes along.",
        metavar="TEXT",
    )
    calibrate_tokens: int = option(16_384, "Most tokens of it that are read. [default: {default}]", metavar="N")
    imatrix: str | None = option(
        None,
        "Round weights by an importance matrix of llama.cpp; with --calibrate, write what was gathered as one, and "
        "without --quant or --size nothing else.",
        metavar="FILE",
    )

    @property
    def weighs(self) -> bool:
        """Whether columns are weighed."""
        return self.calibrate is not None or self.imatrix is not None


def sized(quant: str | None, options: FitOptions) -> bool:
    """Whether a size is asked for, or a number of bits, and no format."""
    return options.size is not None or _bits(quant) is not None


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
    """Whether anything is measured, or weighed. Raises UsageError for what does not go together."""
    bits = _bits(quant)
    if options.size is not None and quant is not None:
        raise UsageError("only one of --size and --quant at a time")
    if not sized(quant, options) and options.text is not None:
        raise UsageError("--text is for --size and for --quant with a number of bits, such as --quant 4.5")
    if bits is not None and not 1 <= bits <= 16:
        raise UsageError(f"--quant {quant} is no number of bits from 1 to 16")
    if options.weighs:
        _check_weighing(quant, options)
    return sized(quant, options) or options.weighs


def gathers(quant: str | None, options: FitOptions) -> bool:
    """Whether an importance matrix is written, and no weight is rounded."""
    return quant is None and options.size is None and None not in (options.calibrate, options.imatrix)


def _check_weighing(quant: str | None, options: FitOptions) -> None:
    flag = "--imatrix" if options.calibrate is None else "--calibrate"
    unchanged = options.size is None and (quant is None or quant in _UNSEARCHED)
    if unchanged and not gathers(quant, options):
        alone = f"leave --quant out to write {options.imatrix} alone, or " if gathers(None, options) else ""
        raise UsageError(
            f"{flag} changes nothing of {quant or 'keep'}; {alone}add --quant with a smaller format, or --size"
        )
    if options.calibrate is None or options.imatrix is None:
        return
    if Path(options.imatrix).exists():
        raise UsageError(
            f"--imatrix {options.imatrix} is there already; leave out --calibrate to use it, or name a new file"
        )
    if not Path(options.imatrix).parent.is_dir():  # minutes before it would be written
        raise UsageError(f"--imatrix {options.imatrix}: there is no such folder; make it, or name another file")


def fit_tag(quant: str | None, options: FitOptions) -> str:
    """The tag of the model that is made."""
    tag = (quant or options.size or "").lower().replace("%", "")
    return f"{tag}-calibrated" if options.weighs else tag


def _bits(quant: str | None) -> float | None:
    try:
        bits = float(quant or "")
    except ValueError:
        return None
    return bits if math.isfinite(bits) else None
