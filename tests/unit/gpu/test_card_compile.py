"""The kernels that differ most between cards, compiled for those that people have at home, by `make gpu-compile`;
the other files compile all of them, for sm_80 without it. Needs Triton, but no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeinf.types import Format
from tests.support.compiling import ALL, lines_of
from tests.support.gpu.matrix_launches import facts_of, recorded

CARDS = (86, 89, 120)  # of the 30, 40 and 50 series, with less shared memory than sm_80 and sm_90
FORMATS: tuple[Format, ...] = ("q4_k", "mxfp4")


pytestmark = pytest.mark.skipif(not ALL, reason="make gpu-compile compiles for these")


@pytest.fixture(scope="module")
def compiled(triton_cache: Path) -> list[dict[str, Any]]:
    return lines_of(__file__, 0, triton_cache)


def test_the_kernels_of_a_prompt_fit_the_card_and_share_their_products_out(compiled: list[dict[str, Any]]) -> None:
    assert {(kernel["card"], kernel["formats"][0]) for kernel in compiled} == {
        (card, format) for card in CARDS for format in FORMATS
    }
    for kernel in compiled:
        assert kernel["shared_bytes"] <= 99 << 10 and kernel["spilled_bytes"] <= 32, kernel
        assert kernel["mma_products"] == 32, "half of the warps multiply what the others do"


# in the process without the interpreter


def main() -> None:
    for kernel, arguments, options in recorded(FORMATS):
        if kernel.__name__ == "gate_up_grouped" and arguments["GATED"] and arguments["ACTIVATION"] == "silu":
            for card in CARDS:
                print(json.dumps(facts_of(card, kernel, arguments, options) | {"card": card}))


if __name__ == "__main__":
    main()
