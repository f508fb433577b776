"""Cuts three texts out of a folder of others: to calibrate by, to measure parts on, and to compare models on.

    python benchmarks/quality/cut_texts.py CORPUS OUT

Each file of CORPUS gives a passage to each of OUT/calibrating.txt, OUT/measuring.txt and OUT/compared.txt, 100,000
characters apart, so that nothing is in two of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

CALIBRATING, MEASURING, COMPARED = "calibrating.txt", "measuring.txt", "compared.txt"
_PASSAGES = {  # where each begins, and characters of it
    CALIBRATING: (100_000, 4_000),
    MEASURING: (200_000, 600),
    COMPARED: (300_000, 1_150),
}


def cut(corpus: Path, out: Path) -> None:
    """Raises ValueError for a folder that has no text, or a text that is too short."""
    files = sorted(corpus.glob("*.txt"))
    if not files:
        raise ValueError(f"{corpus} has no .txt files")
    out.mkdir(parents=True, exist_ok=True)
    for name, (start, length) in _PASSAGES.items():
        passages = [file.read_text(encoding="utf-8")[start : start + length] for file in files]
        if short := [file.name for file, passage in zip(files, passages, strict=True) if len(passage) < length]:
            raise ValueError(f"{', '.join(short)}: shorter than {start + length} characters")
        (out / name).write_text("\n\n".join(passages), encoding="utf-8")


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]))
