"""Files in the forms of other recorders, as their programs write them, become the traces that they hold."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.errors import UsageError
from moeinf.traces.importing.importer import import_trace
from moeinf.traces.trace import load_trace, passes_of

RNG = np.random.default_rng(3)
BIG_HEAD = """\
# route_trace v1
# model=/data/some/Tiny-Q4_K_M.gguf arch=qwen3moe n_layer=4 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=100 dense_bytes=10
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped
"""


def routing(tokens: int, layers: int, num_experts: int, top_k: int) -> Any:
    return RNG.random((tokens, layers, num_experts)).argsort(axis=2)[:, :, :top_k]


def moe_beyond(path: Path, experts: Any, embedding: bool = False) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        names = ["Layer ID", "Batch Number", "Token", "Activated Expert IDs"]
        out.writerow(names + (["Token Embedding Vector"] if embedding else []))
        for layer in range(experts.shape[1]):
            for token in range(len(experts)):
                row = [layer + 1, 0, 'Ġ"a,\n', experts[token, layer].tolist()]
                out.writerow(row + ([[0.5, -1.0]] if embedding else []))


def fingerprint(path: Path, experts: Any, num_prompt: int, *, whole: bool) -> None:
    """whole: as the recorder writes it; else as it is published, without the prompt."""
    first = 0 if whole else num_prompt
    data: list[Any] = []
    for token in range(first, len(experts)):
        layers = {
            f"layer_{layer}": {"selected_experts": ids.tolist(), "selected_probs": (0.1 * ids).tolist()}
            for layer, ids in enumerate(experts[token])
        }
        data.append({f"token_{token}": layers})
    answer: dict[str, Any] = {"router_data": data}
    if whole:
        answer |= {"input_tokens": num_prompt}
    else:
        answer |= {"full_text": ["a"] * (len(experts) + 1), "generated_only": ["a"] * (len(experts) + 1 - num_prompt)}
    path.write_text(json.dumps(answer))


def big_moe(path: Path, experts: Any, passes: list[tuple[int, int, int]], *, last_row_only: bool, nan: bool) -> None:
    """passes: (turn, phase, tokens), one behind the other."""
    lines, at = [BIG_HEAD], 0
    for turn, phase, tokens in passes:
        for layer in range(experts.shape[1]):
            skipped = tokens - 1 if last_row_only and layer == experts.shape[1] - 1 else 0
            for token in range(at + skipped, at + tokens):
                for slot, expert in enumerate(experts[token, layer]):
                    weight = "nan" if nan else f"{0.5 / (1 + slot):.6g}"
                    lines.append(f"{turn},{phase},{token},{layer},{slot},{expert},{weight},0,100,0\n")
        at += tokens
    path.write_text("".join(lines))


@pytest.mark.parametrize("embedding", [False, True])
def test_prompts_of_moe_beyond(tmp_path: Path, embedding: bool) -> None:
    prompts = [routing(tokens, 26, 64, 6) for tokens in (3, 5)]
    source = tmp_path / "csv"
    source.mkdir()
    for number, experts in zip((9, 10), prompts, strict=True):
        moe_beyond(source / f"prompt_{number}_data.csv", experts, embedding)
    import_trace(source, tmp_path / "t")
    trace = load_trace(tmp_path / "t")
    assert (trace.experts == np.concatenate(prompts)).all() and trace.model == "DeepSeek-V2-Lite-Chat"
    assert trace.offsets.tolist() == [0, 3, 8] and trace.shape.num_experts == 64 and trace.weights is None
    assert list(passes_of(trace)) == [("prefill", 0, 3), ("prefill", 3, 8)]


@pytest.mark.parametrize("whole", [False, True])
def test_answers_of_the_fingerprints(tmp_path: Path, whole: bool) -> None:
    answers = [routing(tokens, 24, 32, 4) for tokens in (5, 6)]
    source = tmp_path / "json"
    (source / "of a kind").mkdir(parents=True)
    for number, experts in enumerate(answers):
        fingerprint(source / "of a kind" / f"True_{number}_examples.json", experts, 2, whole=whole)
    (source / "of a kind" / "True_0.json").write_text('{"sample_count": 2}')
    import_trace(source, tmp_path / "t", model="mine")
    trace = load_trace(tmp_path / "t")
    cut = 0 if whole else 2
    assert (trace.experts == np.concatenate([experts[cut:] for experts in answers])).all()
    assert trace.model == "mine" and trace.passes is not None and trace.prompt_tokens is not None
    assert trace.prompt_tokens.tolist() == ([2, 2] if whole else [0, 0])
    assert np.diff(trace.passes).tolist() == ([2, 1, 1, 1, 2, 1, 1, 1, 1] if whole else [1] * 7)
    assert trace.weights is not None and trace.weights == pytest.approx(0.1 * trace.experts)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("last_row_only", [False, True])
def test_a_session_of_big_moe(tmp_path: Path, last_row_only: bool, nan: bool) -> None:
    experts = routing(9, 4, 8, 2)
    passes = [(0, 0, 3), (0, 1, 1), (0, 1, 1), (1, 0, 2), (1, 0, 1), (1, 1, 1)]
    big_moe(tmp_path / "x.csv", experts, passes, last_row_only=last_row_only, nan=nan)
    import_trace(tmp_path / "x.csv", tmp_path / "t")
    trace = load_trace(tmp_path / "t")
    assert trace.model == "Tiny-Q4_K_M" and trace.shape.num_experts == 8
    assert trace.offsets.tolist() == [0, 5, 9] and trace.passes is not None and trace.prompt_tokens is not None
    assert trace.prompt_tokens.tolist() == [3, 3] and (trace.weights is None) == nan
    if last_row_only:
        experts[[0, 1, 5], 3] = -1
        assert np.diff(trace.passes).tolist() == [2, 1, 1, 1, 1, 1, 1, 1]
    else:
        assert np.diff(trace.passes).tolist() == [3, 1, 1, 2, 1, 1]
    assert (trace.experts == experts).all()
    assert [phase for phase, _, _ in passes_of(trace) if phase] == ["prefill", "decode"] * 2


@pytest.mark.parametrize("line", [{"model": "m", "text": "router_data"}, {"layer": 0, "token": 1}, ["topk_ids"]])
@pytest.mark.parametrize("name", ["route.jsonl", "trace.json"])
def test_json_of_another_recorder_is_of_no_known_form(line: object, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(2 * (json.dumps(line) + "\n"))
    with pytest.raises(UsageError, match=r"is a trace of no known form; those are npz, .* has layer and topk_ids"):
        import_trace(tmp_path / name, tmp_path / "t")


def token_records(requests: list[Any], *, named: bool, by_layer: bool = False) -> list[dict[str, Any]]:
    """A record a token and layer, with weights and guesses; by_layer: one a layer, with all tokens."""
    found: list[dict[str, Any]] = [{"type": "meta", "model_id": "org/Some-MoE", "num_experts": 8, "top_k": 2}]
    for number, experts in enumerate(requests):
        name = {"request_id": f"r{number}"} if named else {}
        for layer in range(experts.shape[1]):
            ids = experts[:, layer]
            parts = {"topk_ids": ids, "topk_weights": 0.1 * ids, "guesses": 7 - ids, "guess_weights": 0.2 * ids}
            lists = {name: part.tolist() for name, part in parts.items()}
            if by_layer:
                found.append({"layer": layer + 3, **name, **lists})
            else:
                found += [
                    {"layer": layer + 3, "token_idx": token, "phase": "prefill" if token < 2 else "decode", **name}
                    | {each: part[token] for each, part in lists.items()}
                    for token in range(len(experts))
                ]
    return found


@pytest.mark.parametrize("form", ["named", "unnamed", "by layer", "parquet"])
def test_tokens_in_layers_by_name_are_kept_whole(form: str, tmp_path: Path) -> None:
    requests = [routing(tokens, 3, 8, 2) for tokens in (5, 4)]
    records = token_records(requests, named=form != "unnamed", by_layer=form == "by layer")
    path = tmp_path / f"route.{'parquet' if form == 'parquet' else 'jsonl'}"
    if form == "parquet":
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(records[1:])
        parquet.write_table(table.replace_schema_metadata({"model_id": "org/Some-MoE", "num_experts": "8"}), path)
    else:
        path.write_text("\n".join(map(json.dumps, records)))
    import_trace(path, tmp_path / "t")
    trace = load_trace(tmp_path / "t")
    experts = np.concatenate(requests)
    assert (trace.experts == experts).all() and trace.offsets.tolist() == [0, 5, 9]
    assert trace.model == "org/Some-MoE" and trace.shape.num_experts == 8 and trace.passes is None
    assert trace.weights is not None and trace.guesses is not None and trace.guess_weights is not None
    assert trace.weights == pytest.approx(0.1 * experts) and trace.guess_weights == pytest.approx(0.2 * experts)
    assert (trace.guesses == 7 - experts).all()
    assert (None if trace.prompt_tokens is None else trace.prompt_tokens.tolist()) == (
        None if form == "by layer" else [2, 2]
    )


def test_tokens_that_are_numbered_in_each_pass_tell_the_passes(tmp_path: Path) -> None:
    """As loggers do that know no more of a request than the batch."""
    experts = routing(6, 2, 8, 2)
    records = [
        {"req_id": "r1", "token_idx": token - first, "layer": layer, "topk_ids": experts[token, layer].tolist()}
        for first, last in ((0, 3), (3, 5), (5, 6))
        for layer in range(2)
        for token in range(first, last)
    ]
    (tmp_path / "route.jsonl").write_text("\n".join(map(json.dumps, records)))
    import_trace(tmp_path / "route.jsonl", tmp_path / "t", num_experts=8)
    trace = load_trace(tmp_path / "t")
    assert (trace.experts == experts).all() and trace.offsets.tolist() == [0, 6] and trace.passes is not None
    assert trace.passes.tolist() == [0, 3, 5, 6] and trace.prompt_tokens is None


def test_answers_of_servers_that_return_routed_experts(tmp_path: Path) -> None:
    requests = [routing(tokens, 3, 8, 2) for tokens in (5, 4, 6, 3)]
    npy = io.BytesIO()
    np.save(npy, requests[1].astype(np.uint8))
    data = base64.b64encode(requests[2].astype(np.int32).tobytes()).decode()
    lines: list[dict[str, Any]] = [
        {"prompt_token_ids": [1, 2], "routed_experts": requests[0].tolist()},
        {"usage": {"prompt_tokens": 9}, "choices": [{"routed_experts": base64.b64encode(npy.getvalue()).decode()}]},
        {"outputs": [{"routed_experts": {"data": data, "shape": [6, 3, 2], "dtype": "int32"}}]},
        {"meta_info": {"prompt_tokens": 0, "routed_experts": requests[3].tolist()}},
    ]
    lines[2]["prompt_tokens"] = 1
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "a.json").write_text(json.dumps(lines, indent=1))
    for name in ("a.jsonl", "a.json"):
        with pytest.raises(UsageError, match="does not say how many experts a layer has: give --num-experts"):
            import_trace(tmp_path / name, tmp_path / "t")
        import_trace(tmp_path / name, tmp_path / name[2:], num_experts=8)
        trace = load_trace(tmp_path / name[2:])
        assert (trace.experts == np.concatenate(requests)).all() and trace.prompt_tokens is not None
        assert trace.prompt_tokens.tolist() == [2, 4, 1, 0] and trace.passes is not None
        assert np.diff(trace.passes).tolist() == [2, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    (tmp_path / "raw.jsonl").write_text(json.dumps({"meta_info": {"routed_experts": data}}))
    with pytest.raises(UsageError, match=r"the shape \[144\] in place of \[tokens, layers, top_k\]; store it with its"):
        import_trace(tmp_path / "raw.jsonl", tmp_path / "t", num_experts=8)


def test_npz_files_of_a_request_each(tmp_path: Path) -> None:
    (tmp_path / "npz").mkdir()
    requests = [routing(tokens, 3, 8, 2) for tokens in (5, 4)]
    for number, experts in enumerate(requests):
        weights = (0.1 * experts).astype(np.float32)
        np.savez(tmp_path / "npz" / f"{number}.npz", topk_ids=experts, topk_weights=weights, num_experts=8, model="m")
    import_trace(tmp_path / "npz", tmp_path / "t")
    trace = load_trace(tmp_path / "t")
    assert (trace.experts == np.concatenate(requests)).all() and trace.model == "m"
    assert trace.weights == pytest.approx(0.1 * trace.experts) and trace.offsets.tolist() == [0, 5, 9]
    with pytest.raises(UsageError, match=r"--num-experts 9: .* says 8; leave it out"):
        import_trace(tmp_path / "npz", tmp_path / "other", num_experts=9)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"layer": at, "topk_ids": [1, 2]} for at in (0, 1, 0)], "tokens lack layers that others have"),
        ([{"layer": 0, "topk_ids": [1, 2]}, {"layer": 0, "topk_ids": [1]}], "tokens or layers are missing"),
        ([{"layer": 0, "topk_ids": [1, 2], "model": each} for each in "ab"], r"of several models \(a, b\)"),
        ([{"layer": 0, "topk_ids": [1, 2]}, 3], "line 2 holds no object"),
        ([{"layer": "low", "topk_ids": [1, 2]}], "has a record that is no routing"),
        ([{"layer": 0, "topk_ids": [1, 9]}], "experts do not fit n_experts and top_k"),
    ],
)
def test_records_that_are_no_trace_are_refused(lines: list[object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "route.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=said) as refused:
        import_trace(path, tmp_path / "t", num_experts=8)
    assert "\n" not in str(refused.value) and not (tmp_path / "t").exists()
    path.write_text(json.dumps({"layer": 0, "topk_ids": [1, 2]}) + '\n{"layer": 0, "topk')
    with pytest.raises(UsageError, match="line 2 is cut off, or no JSON"):
        import_trace(path, tmp_path / "t", num_experts=8)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_files_of_any_editor_and_system_are_read(encoding: str, tmp_path: Path) -> None:
    moe_beyond(tmp_path / "a.csv", routing(2, 26, 64, 6))
    fingerprint(tmp_path / "b.json", routing(3, 24, 32, 4), 1, whole=True)
    big_moe(tmp_path / "c.csv", routing(2, 4, 8, 2), [(0, 0, 2)], last_row_only=False, nan=False)
    for name in ("a.csv", "b.json", "c.csv"):
        wanted = import_trace(tmp_path / name, tmp_path / f"{name}-before")
        text = (tmp_path / name).read_bytes().decode()
        (tmp_path / name).write_bytes(text.replace("\r\n", "\n").replace("\n", "\r\n").encode(encoding))
        assert (import_trace(tmp_path / name, tmp_path / f"{name}-behind").experts == wanted.experts).all()


def test_the_layout_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "Some-Model").mkdir()
    experts = routing(4, 3, 5, 2).astype(np.uint8)
    path = tmp_path / "Some-Model" / "routing.npz"
    np.savez(path, experts=experts, offsets=np.array([0, 1, 4]), n_experts=5, top_k=2)
    for number, source in enumerate((path, path.parent)):
        import_trace(source, tmp_path / str(number))
        trace = load_trace(tmp_path / str(number))
        assert (trace.experts == experts).all() and trace.model == "Some-Model" and trace.passes is None


def wrong(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Sources that are cut off, ragged or out of range, with what is said of them."""
    paths = {name: tmp_path / name for name in ("cut.csv", "ragged.csv", "range.csv", "cut.json", "layers.json")}
    paths |= {
        name: tmp_path / name for name in ("cut_big.csv", "head_big.csv", "range_big.csv", "short_big.csv", "x.md")
    }
    for name in ("cut.csv", "ragged.csv"):
        moe_beyond(paths[name], routing(2, 26, 64, 6))
    paths["cut.csv"].write_text(paths["cut.csv"].read_text()[:-9])
    paths["ragged.csv"].write_text(paths["ragged.csv"].read_text().rsplit("\n26,", 1)[0] + "\n")
    moe_beyond(paths["range.csv"], routing(2, 26, 64, 6) + 8)
    fingerprint(paths["cut.json"], routing(2, 24, 32, 4), 1, whole=True)
    paths["cut.json"].write_text(paths["cut.json"].read_text()[:-30])
    fingerprint(paths["layers.json"], routing(2, 24, 32, 4), 1, whole=True)
    answer = json.loads(paths["layers.json"].read_text())
    del answer["router_data"][1]["token_1"]["layer_23"]
    paths["layers.json"].write_text(json.dumps(answer))
    for name in ("cut_big.csv", "head_big.csv", "short_big.csv"):
        big_moe(paths[name], routing(2, 4, 8, 2), [(0, 0, 2)], last_row_only=False, nan=False)
    big_moe(paths["range_big.csv"], routing(2, 4, 8, 2) + 1, [(0, 0, 2)], last_row_only=False, nan=False)
    paths["cut_big.csv"].write_text(paths["cut_big.csv"].read_text()[:-20])
    paths["head_big.csv"].write_text("# route_trace v1\n")
    paths["short_big.csv"].write_text(paths["short_big.csv"].read_text().rsplit("\n", 2)[0] + "\n")
    paths["x.md"].write_text("# no trace")
    said = {
        "cut.csv": "it is cut off, or no row of routing",
        "ragged.csv": "its layers have different numbers of tokens",
        "range.csv": "request 1 does not fit (experts do not fit n_experts and top_k)",
        "cut.json": "is cut off, or has no router_data",
        "layers.json": "request 1 does not fit (tokens or layers are missing)",
        "cut_big.csv": "it is cut off, or no row of routing",
        "head_big.csv": "has no head of a route trace",
        "range_big.csv": "experts do not fit n_experts and top_k",
        "short_big.csv": "has not 2 experts",
        "x.md": "is a trace of no known form; those are npz, moe-beyond, fingerprinting, big-moe",
    }
    return {name: (path, said[name]) for name, path in paths.items()}


def test_what_is_damaged_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    for name, (path, said) in wrong(tmp_path).items():
        with pytest.raises(UsageError) as refused:
            import_trace(path, tmp_path / "t")
        assert said in str(refused.value) and str(path) in str(refused.value), name
        assert "\n" not in str(refused.value) and not (tmp_path / "t").exists()


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path) -> None:
    moe_beyond(tmp_path / "x.csv", routing(2, 26, 64, 6))
    import_trace(tmp_path / "x.csv", tmp_path / "t")
    before = {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()}
    for form in ("auto", "moe-beyond"):
        with pytest.raises(UsageError, match="holds a trace"):
            import_trace(tmp_path / "x.csv", tmp_path / "t", form)
    assert {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()} == before
    with pytest.raises(UsageError, match="holds other files"):
        import_trace(tmp_path / "x.csv", tmp_path)
    with pytest.raises(UsageError, match="unknown --format 'llama'; known: auto, npz, moe-beyond"):
        import_trace(tmp_path / "x.csv", tmp_path / "new", "llama")
    with pytest.raises(UsageError, match="No such file"):
        import_trace(tmp_path / "nowhere", tmp_path / "new")


@pytest.mark.parametrize("head", ["Layer ID,Batch Number,Token,Activated Expert IDs\n", BIG_HEAD])
def test_a_row_that_is_no_csv_is_told_with_its_file(tmp_path: Path, head: str) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"{head}0,0,0,{'1' * 200_000}\n")  # a field may have 131,072 letters
    with pytest.raises(UsageError, match=r"long\.csv"):
        import_trace(path, tmp_path / "made")
