"""What a checkpoint says beside its weights: its configuration, tokenizer and chat template."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Final

from tokenizers import Tokenizer

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.models.registry import MODULES
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.tiktoken_file import TIKTOKEN_FILE, made_tokenizer
from moeinf.sampling.generation_config import not_done
from moeinf.sampling.params import resolve_params
from moeinf.store.files import parse_json_object
from moeinf.text.process_limits import MemoryLimit
from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.templates.file import find_template
from moeinf.text.templates.rendering import split_marked
from moeinf.text.text_worker import read_json
from moeinf.text.vocabulary import add_listed, control_tokens, end_ids, special_tokens, token_kinds
from moeinf.types import Json, JsonObject
from tests.support.campaign.targets.target import Target, as_json, file_of, folder, refusing
from tests.support.text_models import byte_level_tokenizer
from tests.support.tiny_models import all_configs
from tests.support.tool_families import CHAT, TEMPLATES, TOOLS

_MEMORY_BYTES: Final = 512 << 20  # that a template may take
_TEMPLATE_S: Final = 2.0  # of processor time
_MOST_LAYERS: Final = 16  # of configurations whose tensors are listed
_FOREIGN: Final = "<|foreign|>"  # a control token that no template writes


def _config(data: bytes) -> None:
    """config.json: a family with its tensors and sizes, and how the weights are coded."""

    def read() -> None:
        config = parse_json_object(data, "config.json", CheckpointError)
        refusing(lambda: declared_by(config))
        family = family_of(config)
        if not _is_large(config):
            plan = family.tensors
            assert plan.dense
            family.workspace  # noqa: B018
            assert family.info("bf16").num_params > 0
            family.seen_by  # noqa: B018

    refusing(read)


def _is_large(value: Json) -> bool:
    """Whether a configuration, at any depth, counts more layers than there is time for."""
    if isinstance(value, list):
        return any(map(_is_large, value))
    if not isinstance(value, dict):
        return False
    return any(
        _is_large(each) or (type(each) is int and each > _MOST_LAYERS and "layer" in name)
        for name, each in value.items()
    )


def _generation_config(data: bytes) -> None:
    """generation_config.json: the options of an answer, and a line for each thing that is not done."""

    def read() -> None:
        config = parse_json_object(data, "generation_config.json", CheckpointError)
        resolve_params({}, config)
        for encoder in (False, True):
            assert not any("\n" in line for line in not_done(config, encoder=encoder, num_beams=1 + encoder))

    refusing(read)


_FILES: Final = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json")


def _tokenizer(data: bytes) -> None:
    """A file beside tokenizer.json: the first byte says which."""
    if not data:
        return
    for name in _FILES:
        (folder() / name).unlink(missing_ok=True)
    file_of(data[1:], _FILES[data[0] % len(_FILES)])

    def read() -> None:
        config, token_map, older = (read_json(folder() / name) for name in _FILES[:3])
        tokenizer = Tokenizer.from_str(_tokenizer_text())
        add_listed(tokenizer, config, token_map, older)
        specials = special_tokens(config, token_map)
        ends = end_ids(tokenizer, specials, config, token_map)
        assert ends == sorted(set(ends))
        assert len(token_kinds(tokenizer)) == tokenizer.get_vocab_size()
        control_tokens(tokenizer)
        for tools in (False, True):
            find_template(folder(), config, with_tools=tools)

    refusing(read)


@cache
def _tokenizer_text() -> str:
    return str(byte_level_tokenizer().to_str())


def _tiktoken(data: bytes) -> None:
    """Kimi's tokenizer behind the piece of each byte; what is read is sound JSON."""
    config = b'{"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}}'
    files = {"tokenizer_config.json": config, TIKTOKEN_FILE: _letters() + data}
    refusing(lambda: json.loads(made_tokenizer(files)["tokenizer.json"]))


@cache
def _letters() -> bytes:
    return b"".join(base64.b64encode(bytes([value])) + f" {value}\n".encode() for value in range(256))


def _template(data: bytes) -> None:
    """A chat template: no control token that came with a message passes for one of the template."""
    source, foreign = data.decode(errors="replace"), f"{_FOREIGN} and \ufdd0 more <|im_start|>"
    messages: list[JsonObject] = [*CHAT, {"role": "user", "content": foreign}]

    def read() -> None:
        templates = ChatTemplates(source, source, {"bos_token": "<s>"}, ["<s>", "<|im_start|>", _FOREIGN])
        templates.facts()
        for variables in ({}, {"tools": TOOLS, "enable_thinking": False}):
            text, _ = templates.render(messages, variables)
            own = [piece for piece, given in split_marked(text, [_FOREIGN]) if not given]
            assert _FOREIGN not in own or "foreign" in source

    with _bounded():
        refusing(read)


class _Late(BaseException):
    """A template has taken the time that its process would have."""


@contextmanager
def _bounded() -> Iterator[None]:
    """With the memory and time of the process in which templates are rendered, whose end the program tells of."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, _TEMPLATE_S)
    try:
        with MemoryLimit(_MEMORY_BYTES):
            yield
    except (MemoryError, _Late):
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _config_seeds() -> list[bytes]:
    """The smallest of each model_type."""
    smallest = dict[str, bytes]()
    for config in [*all_configs().values(), *all_configs("SEQ2SEQ_CONFIGS").values()]:
        (text,), kind = as_json(config), config["model_type"]
        if kind not in smallest or len(text) < len(smallest[kind]):
            smallest[kind] = text
    return list(smallest.values())


_GENERATION: Final[dict[str, Any]] = {
    "eos_token_id": [1, 2],
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "min_new_tokens": 1,
    "suppress_tokens": [1],
    "bad_words_ids": [[1, 2]],
    "sequence_bias": [[[1, 2], -1.5]],
    "no_repeat_ngram_size": 3,
    "stop_strings": ["x"],
}
_OF_TOKENIZER: Final[dict[str, Any]] = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "add_bos_token": True,
    "additional_special_tokens": ["<x>"],
    "extra_special_tokens": {"image_token": "<i>"},
    "added_tokens_decoder": {"7": {"content": "<y>", "special": True, "normalized": False}},
    "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}],
}


def _tokenizer_seeds() -> list[bytes]:
    config, map_of, older, template = as_json(_OF_TOKENIZER, {"pad_token": "!"}, {"<z>": 9}, {"chat_template": "x"})
    return [bytes([at]) + each for at, each in enumerate((config, map_of, older, template))]


def _template_seeds() -> list[bytes]:
    plain = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim }}{% endfor %}"
    return [plain.encode(), *(path.read_bytes() for path in sorted(TEMPLATES.glob("*.jinja")))]


TARGETS: Final = {
    "config": Target(_config, _config_seeds, lambda: MODULES),
    "generation_config": Target(_generation_config, lambda: as_json(_GENERATION)),
    "tokenizer": Target(_tokenizer, _tokenizer_seeds),
    "tiktoken": Target(_tiktoken, lambda: [b"YWI= 256\nYWJj 257\n"]),
    "template": Target(_template, _template_seeds),
}
