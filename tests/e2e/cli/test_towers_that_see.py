"""Each kind of tower from a folder to answers: pulled and asked on the command line, and by a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.store.library import Library
from tests.support.cli.commands import Done
from tests.support.live_server import live_server
from tests.support.seeing_models import png, write_seeing

OPTIONS = ("-n", "6", "--temperature", "0", "--device", "cpu", "--num-ctx", "400", "--json", "-q")
FAMILIES = (
    "cohere2_vision",
    "deepseek_v41",
    "glm5_next",
    "glm5v",
    "hy_v4_vl",
    "inkling_mm_model",
    "kimi_k3",
    "mimo_v2",
    "muse_spark",
    "nemotron_h_omni",
)


def told(done: Done) -> tuple[str, int]:
    """The answer, and the tokens of the prompt."""
    assert done.code == 0, done.err
    found = json.loads(done.out)
    return found["response"], found["stats"]["prompt_tokens"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_that_sees_is_pulled_asked_and_served(
    family: str, tmp_path: Path, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_seeing(tmp_path / "source", family)
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name, data in (("1.png", png(1)), ("2.png", png(2, 120, 40)), ("bad.png", png(1)[:99])):
        (tmp_path / name).write_bytes(data)
    assert command("pull", str(source)).code == 0
    alone, one, both = (
        told(command("run", "source", *pictures, "What is this?", *OPTIONS))
        for pictures in ((), ("1.png",), ("1.png", "2.png"))
    )
    assert both[1] > one[1] > alone[1] + 4
    few = told(command("run", "source", "2.png", "What is this?", *OPTIONS, "--picture-tokens", "6"))
    assert few[1] < both[1] - one[1] + alone[1]
    bad = command("run", "source", "bad.png", "What is this?", *OPTIONS)
    assert bad.code == 2 and bad.err.startswith("Error: bad.png is damaged or cut short") and bad.err.count("\n") == 1
    with live_server(Library(tmp_path / "home"), config=RuntimeConfig.of(device="cpu", context=400)) as server:
        urls = [
            f"data:image/png;base64,{base64.b64encode((tmp_path / name).read_bytes()).decode()}"
            for name in ("1.png", "2.png")
        ]
        content: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        asked = {"role": "user", "content": [*content, {"type": "text", "text": "What is this?"}]}
        given = {"model": "source", "messages": [asked], "max_tokens": 6, "temperature": 0}
        made = httpx.post(f"{server.url}/v1/chat/completions", json=given, timeout=120).json()
    assert (made["choices"][0]["message"]["content"], made["usage"]["prompt_tokens"]) == both
