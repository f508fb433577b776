"""`pull --size` and `--quant BITS`: a format for each part, chosen by what it costs, so that the whole has a size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moeinf.bench.divergence.fit_pull import divided
from moeinf.bench.divergence.fitting import chosen, filled, fitted
from moeinf.bench.divergence.sensitivity import Part, ends_of, parts_of
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.pull.events import SilentProgress
from moeinf.pull.importance import DENSE
from moeinf.pull.pull import pull
from moeinf.pull.refit import store_bytes
from moeinf.store.library import Library, StoredModel
from moeinf.store.quantisation import FITTED
from moeinf.store.verify import verify
from moeinf.types import Format
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.cli.commands import Done

Command = Callable[..., Done]

TEXT = "Once upon a time there was a little cat who lived by the sea. " * 20
OPTIONS = CompareOptions(None, 64, 32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return pull("demo", home=tmp_path_factory.mktemp("home"))


def fit(whole: StoredModel, most_bytes: int, name: str, said: list[str] | None = None) -> StoredModel:
    reporting = Reporting((said if said is not None else []).append)
    config = RuntimeConfig.of(device="cpu", threads=1)
    return fitted(whole, most_bytes, name, TEXT, OPTIONS, config, reporting, SilentProgress())


def test_a_model_has_the_size_that_is_asked_for_and_the_same_command_makes_it_again(whole: StoredModel) -> None:
    said: list[str] = []
    made = fit(whole, 4_500_000, "demo:small", said)
    weights = made.dense_bytes + sum(made.shard_sizes)
    assert 4_200_000 < weights <= 4_500_000
    assert verify(made) == []
    assert made.manifest.formats.asked == FITTED
    assert said[-len(made.manifest.formats.fallbacks) :] == list(made.manifest.formats.fallbacks)
    layouts = made.manifest.layers
    assert len({spec.dtype for layout in layouts for spec in layout.tensors}) > 1, "parts differ"
    assert not list(whole.home.glob("partial/*/manifest.json")), "trials are gone"
    again: list[str] = []
    assert fit(whole, 4_500_000, "demo:again", again).id == made.id
    assert not any(line.startswith("measuring") for line in again), "what was measured is kept"


def test_a_size_that_cannot_be_met_is_refused_with_the_least(whole: StoredModel) -> None:
    with pytest.raises(UsageError, match=r"demo:latest cannot be stored in 1.0 MB: its smallest formats take 4\.\d MB"):
        fit(whole, 1_000_000, "demo:tiny")
    small = fit(whole, 4_500_000, "demo:small")
    with pytest.raises(UsageError, match="demo:small is quantised already"):
        fit(small, 4_500_000, "demo:smaller")
    with pytest.raises(UsageError, match="demo:small was made by measuring; pull its checkpoint again with --size"):
        pull("demo:small", home=whole.home)
    assert {model.name for model in Library(whole.home).list()} == {"demo:latest", "demo:small", "demo:again"}


def test_formats_that_others_make_needless_are_not_chosen(tmp_path: Path) -> None:
    """Of rows of whole blocks of 256, whose points of grids are nearer than the lines of as many bytes."""
    config = CONFIG | {"hidden_size": 256, "head_dim": 64, "moe_intermediate_size": 512, "num_experts": 4}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_tensors(config), config)
    whole = pull(str(checkpoint), PullOptions(name="wide"), home=tmp_path / "home")
    parts = parts_of(whole)
    for each in parts:
        sizes, errors = ([given[format] for format in each.formats] for given in (each.num_bytes, each.errors))
        assert sizes == sorted(set(sizes)) and errors == sorted(set(errors), reverse=True)
        assert each.formats[:6] == ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs") and each.tried == "q3_k"
    smallest = {place: each.formats[0] for each in parts for place in each.places}
    made = fit(whole, store_bytes(whole, ends_of(whole) | smallest), "wide:small")
    assert {spec.dtype for spec in made.manifest.layout.tensors} == {"iq2_xxs"} and verify(made) == []
    with Model(made, RuntimeConfig.of(device="cpu", threads=1), Reporting(lambda line: None)) as model:
        assert model.generate("a b a", model.params(num_predict=4, temperature=0)).finish_reason


def part(name: str, errors: dict[Format, float], num_bytes: dict[Format, int]) -> Part:
    return Part(name, (), tuple(sorted(errors, key=errors.__getitem__, reverse=True)), num_bytes, errors)


def test_the_choice_is_the_best_that_there_is_room_for() -> None:
    """Against all choices, of three parts and four formats, where the room ends at a step."""
    formats: list[Format] = ["q3_k", "q4_k", "q5_k", "q8_0"]
    rng = np.random.default_rng(7)
    for _ in range(20):
        losses = rng.uniform(0.1, 3, 3)
        parts = [
            part(f"p{n}", {f: 4.0**-k for k, f in enumerate(formats)}, {f: 30 + 10 * k for k, f in enumerate(formats)})
            for n in range(3)
        ]
        costs = [{f: loss * each.errors[f] for f in formats} for loss, each in zip(losses, parts, strict=True)]
        for room in range(90, 190, 10):
            found = chosen(parts, costs, room)
            spent = sum(each.num_bytes[found[each.name]] for each in parts)
            cost = sum(each[found[p.name]] for p, each in zip(parts, costs, strict=True))
            best = min(
                sum(costs[n][formats[k]] for n, k in enumerate(picked))
                for picked in np.ndindex(4, 4, 4)
                if sum(30 + 10 * k for k in picked) <= room
            )
            assert spent <= room and cost == pytest.approx(best)


def test_room_that_borders_of_blocks_leave_is_used() -> None:
    """Two parts of an expert, which ends at a multiple of 64 bytes: the best of what lies between costs nothing."""
    formats: list[Format] = ["q3_k", "q4_k", "q5_k"]
    sizes: dict[Format, int] = {"q3_k": 20, "q4_k": 25, "q5_k": 31}
    parts = [part(name, {"q3_k": 4, "q4_k": 2, "q5_k": 1}, sizes) for name in ("up", "down")]
    costs: list[dict[Format, float]] = [{"q3_k": 4, "q4_k": 2, "q5_k": 1}, {"q3_k": 40, "q4_k": 20, "q5_k": 10}]

    def size_with(tried: dict[str, Format]) -> int:
        return -(-sum(sizes[each] for each in tried.values()) // 64) * 64

    least = {each.name: formats[0] for each in parts}
    assert filled(parts, costs, least, 63, size_with) == least
    assert filled(parts, costs, least, 64, size_with) == {"up": "q5_k", "down": "q5_k"}
    sizes["q5_k"] = 40
    assert filled(parts, costs, least, 64, size_with) == {"up": "q3_k", "down": "q5_k"}


def test_one_text_is_divided_where_it_is_long_enough() -> None:
    whole = "".join(map(chr, range(33, 93))) * 10
    calibrates, measures, said = divided(whole, 30)
    assert calibrates + measures == whole and len(measures) == 180 and "180 characters" in said
    assert divided(whole, 40)[:2] == (whole, whole)


def test_parts_are_all_experts_and_sizes_are_those_of_the_files(whole: StoredModel) -> None:
    parts = parts_of(whole)
    moe = whole.manifest.moe
    assert {place for each in parts for place in each.places} == {
        (layer, name) for layer in range(moe.num_layers) for name in ("gate", "up", "down")
    }
    assert store_bytes(whole, {}) == whole.dense_bytes + sum(whole.shard_sizes)


def test_an_embedding_that_is_no_head_has_a_format_of_its_own(tmp_path: Path) -> None:
    """It is many bytes where experts are few; the head, and an embedding that is the head, keep 8 bits."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    whole = pull(str(checkpoint), PullOptions(name="own"), home=tmp_path / "home")
    table = parts_of(whole)[-1]
    assert (table.name, table.places) == ("model.embed_tokens.weight", ((DENSE, "model.embed_tokens.weight"),))
    smallest = {place: part.formats[0] for part in parts_of(whole) for place in part.places}
    made = fit(whole, store_bytes(whole, ends_of(whole) | smallest), "own:small")
    blocks = made.manifest.formats.dense
    assert blocks["model.embed_tokens.weight"].format == table.formats[0] != "q8_0"
    assert blocks["lm_head.weight"].format == "q8_0"
    assert f"model.embed_tokens.weight in {table.formats[0]}" in made.manifest.formats.fallbacks
    assert verify(made) == []
    with Model(made, RuntimeConfig.of(device="cpu", threads=1), Reporting(lambda line: None)) as model:
        assert model.generate("a b a", model.params(num_predict=4, temperature=0)).finish_reason


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--size", "1GiB", "--quant", "q4_k"), "only one of --size and --quant at a time"),
        (("--size", "40%"), "--size '40%' is no number of bytes, such as 12GiB"),
        (("--quant", "0.5"), "--quant 0.5 is no number of bits from 1 to 16"),
        (("--text", "x.txt"), "--text is for --size and for --quant with a number of bits"),
        (
            ("--size", "1GiB", "--quant-dense", "q8_0"),
            "--quant-dense does not go with a size, a number of bits or a cal",
        ),
        (("--quant", "4.5", "--dry-run"), "--dry-run does not go with a size, a number of bits"),
    ],
)
def test_wrong_use_is_one_line(
    words: tuple[str, ...], line: str, command: Command, whole: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    done = command("pull", "demo", *words)
    assert done.code == 2 and line in done.err and "Traceback" not in done.err
