"""The parameters that go with a model, one line each, as `show` and /api/show tell of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.engine.stored.preset import Preset
from moeinf.sampling.params import SamplingParams


def parameter_rows(recommended: Mapping[str, object], preset: Preset) -> list[tuple[str, str]]:
    """Names and values: those that the checkpoint recommends, and those of the model's name, which go before.

    A name that is given several values, as `stop` may be, has a row for each. Texts stand in quotes, numbers do not.
    """
    own = {name for name, _ in preset.options}
    rows = [(name, json.dumps(value)) for name, value in recommended.items() if name not in own]
    return [*rows, *((name, _shown(name, text)) for name, text in preset.options)]


def _shown(name: str, text: str) -> str:
    option = http_options("ollama", SamplingParams, RuntimeConfig).get(name)
    is_text = option is None or option.kind in ("str", "tuple[str, ...]")
    return json.dumps(text, ensure_ascii=False) if is_text else text
