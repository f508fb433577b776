"""The file of answers: nothing in it is lost, torn, doubled, or of another batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeinf.batch.answers_file import answers_file
from moeinf.errors import UsageError

IDS = [f"batch_req_{name}" for name in "abc"]


def line(number: int) -> bytes:
    return json.dumps({"id": IDS[number], "custom_id": "x"}, separators=(",", ":")).encode() + b"\n"


def test_the_file_comes_to_its_place_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with answers_file(out, IDS) as file:
        file.add(line(0))
        assert not out.exists() and file.part.read_bytes() == line(0)
    with answers_file(out, IDS) as file:
        assert file.finished == {IDS[0]}
        file.add(line(1))
        file.complete()
    assert out.read_bytes() == line(0) + line(1) and sorted(tmp_path.iterdir()) == [out]


def test_faults_of_an_earlier_run_are_counted(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    found: list[dict[str, Any]] = [
        {"response": {"status_code": 200, "body": {}}, "error": None},
        {"response": {"status_code": 400}},
    ]
    found.append({"response": None, "error": {"code": "x"}})
    text = [json.dumps({"id": each, "custom_id": "x"} | more) for each, more in zip(IDS, found, strict=True)]
    out.write_text("\n".join(text) + "\n")
    with answers_file(out, IDS) as file:
        assert file.finished == set(IDS) and file.faults == 2


@pytest.mark.parametrize("cut", range(1, len(line(1))))
def test_a_line_that_was_torn_is_cut_off_wherever_it_was(tmp_path: Path, cut: int) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / "out.jsonl.part").write_bytes(line(0) + line(1)[:cut])
    with answers_file(out, IDS) as file:
        assert file.finished == {IDS[0]}
        file.add(line(1))
        file.complete()
    assert out.read_bytes() == line(0) + line(1)


def test_a_whole_file_goes_on_where_its_batch_has_grown(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(line(0))
    with answers_file(out, IDS) as file:
        assert file.finished == {IDS[0]} and not out.exists()
        file.add(line(2))
        file.complete()
    assert out.read_bytes() == line(0) + line(2)


@pytest.mark.parametrize(
    "content, words",
    [
        (b'{"id":"batch_req_of_others"}\n', "other requests"),
        (line(0) + line(0), "answered before"),
        (b"notes of mine\n", "no answer of a batch"),
        (b"notes of mine", "no answer of a batch"),
    ],
)
def test_other_files_are_refused_and_left_as_they_are(tmp_path: Path, content: bytes, words: str) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(UsageError, match=words), answers_file(out, IDS):
        pass
    assert out.read_bytes() == content and sorted(tmp_path.iterdir()) == [out]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with answers_file(out, IDS), pytest.raises(UsageError, match="another run"), answers_file(out, IDS):
        pass
    part = tmp_path / "out.jsonl.part"
    out.write_bytes(b"")
    with pytest.raises(UsageError, match="move one of them away"), answers_file(out, IDS):
        pass
    assert part.exists()


def test_places_that_hold_no_file_are_named(tmp_path: Path) -> None:
    for out, words in ((tmp_path / "no" / "out", "no folder"), (tmp_path, "no file")):
        with pytest.raises(UsageError, match=words), answers_file(out, IDS):
            pass
