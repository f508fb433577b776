from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.errors import StarvedError, TextError
from moeinf.server.http_errors import fault_of
from moeinf.text import process as text_process
from moeinf.text.process import Stopped, waited_s
from moeinf.text.process_limits import limit_memory
from moeinf.text.tokenizer import Tokenizer

MakeFolder = Callable[..., Path]
USER = [{"role": "user", "content": "hi"}]

HOSTILE = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ 9**(9**8) }}",
    "power of a variable": "{% set n = 9**8 %}{{ 9**n }}",
    "text times number": "{{ 'a' * 500000000 }}",
    "number times text": "{{ 500000000 * 'a' }}",
    "list times number": "{{ [0] * 500000000 }}",
    "doubling": "{% set n = namespace(t='aaaaaaaa') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "doubling by plus": "{% set n = namespace(t='aaaaaaaa') %}{% for i in range(40) %}{% set n.t = n.t + n.t %}"
    "{% endfor %}",
    "centre": "{{ 'a' | center(300000000) }}{{ 'a' | center(300000000) }}",
    "percent format": "{{ '%0300000000d' % 1 }}",
    "format filter": "{{ '%0900000000d' | format(1) }}",
    "long output": "{% for a in range(99999) %}{{ 'a' | center(60) }}{% endfor %}",
    "big product": "{% set n = namespace(v=9) %}{% for i in range(60) %}{% set n.v = n.v * n.v %}{% endfor %}{{ n.v }}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "class escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "namespace escape": "{% set n = namespace(__init__=1) %}",
    "changing messages": "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
    "syntax error": "{% for %}",
    "huge range": "{{ range(999999999) | list }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_costs_one_line_and_never_the_caller(
    model_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("moeinf.text.tokenizer._RENDER_LIMIT_S", 1.0)
    with Tokenizer(model_folder(HOSTILE[name])) as tokenizer:
        with pytest.raises(TextError) as caught:
            tokenizer.render(USER)
        assert "\n" not in str(caught.value)
        assert tokenizer.decode(tokenizer.encode("still alive")) == "still alive"


def test_a_request_that_nobody_waits_for_is_given_up(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder(HOSTILE["nested ranges"])) as tokenizer:
        tokenizer.encode("loaded")
        with pytest.raises(Stopped), tokenizer.until(lambda: True):
            tokenizer.render(USER)
        assert tokenizer.decode(tokenizer.encode("still alive")) == "still alive"


def test_a_worker_that_the_machine_does_not_let_work_is_waited_for(
    model_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit is processor time: a template is no slower for a worker that stood still."""
    monkeypatch.setattr("moeinf.text.tokenizer._RENDER_LIMIT_S", 0.2)
    with Tokenizer(model_folder("{{ messages[0].content }}")) as tokenizer:
        tokenizer.encode("loaded")
        process = tokenizer._process._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        before = waited_s(threading.get_native_id())
        goes_on = threading.Timer(1.0, process.send_signal, [signal.SIGCONT])
        goes_on.start()
        assert tokenizer.render(USER)[0] == "hi"
        goes_on.join()
        assert waited_s(threading.get_native_id()) > before, "the server knows that it waits"
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr("moeinf.text.process_limits.STARVED_S", 0.1)
        with pytest.raises(StarvedError, match="was stopped; ask again") as caught:
            tokenizer.render(USER)
        assert fault_of(caught.value).status == 503
        assert tokenizer.render(USER)[0] == "hi"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ '' | attr('__class__') }}",
        "{{ dict.__class__ }}",
        "{{ namespace().__init__ }}",
    ],
)
def test_a_template_sees_nothing_of_the_interpreter(model_folder: MakeFolder, template: str) -> None:
    with Tokenizer(model_folder(template)) as tokenizer:
        assert tokenizer.render(USER)[0] == ""


def test_small_arithmetic_is_allowed(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder("{{ 7 % 3 }} {{ 2 * 3.5 }} {{ 2 ** 10 }}")) as tokenizer:
        assert tokenizer.render(USER)[0] == "1 7.0 1024"


def test_variables_cannot_replace_the_messages_or_what_a_template_calls(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder("{{ messages[0].content }}{{ tojson is defined }}")) as tokenizer:
        assert tokenizer.render(USER, {"messages": [], "extra": 1})[0] == "hiFalse"


BROKEN_TOKENIZERS = {
    "empty": "",
    "not JSON": "{",
    "an array": "[]",
    "an unknown model": '{"version": "1.0", "model": {"type": "Nonsense"}}',
    "a regular expression that cannot be": (
        '{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,'
        '"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated","invert":false},'
        '"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'
    ),
}


@pytest.mark.parametrize("name", BROKEN_TOKENIZERS)
def test_a_broken_tokenizer_json_is_one_line_with_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(BROKEN_TOKENIZERS[name])
    with Tokenizer(tmp_path) as tokenizer, pytest.raises(TextError, match=r"cannot be loaded .*pull the model again"):
        tokenizer.encode("a")


def test_a_panic_of_the_tokenizer_costs_only_the_worker(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        '{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,'
        '"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false},'
        '"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'
    )
    with Tokenizer(tmp_path) as tokenizer:
        with pytest.raises(TextError, match="tokenizer"):
            tokenizer.encode("a" * 60 + "b")
        assert tokenizer.encode("a") == [0]


def test_configs_that_are_not_objects_are_refused(model_folder: MakeFolder) -> None:
    folder = model_folder()
    (folder / "generation_config.json").write_text("[1]")
    with Tokenizer(folder) as tokenizer, pytest.raises(TextError, match="not a JSON object"):
        _ = tokenizer.eos_ids


def test_a_worker_serves_a_process_that_has_a_thousand_files_open(model_folder: MakeFolder) -> None:
    """As a server of thousands of connections has: select() takes no descriptor beyond 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Tokenizer(model_folder()) as tokenizer:
            assert tokenizer.encode("hello")
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_that_is_killed_at_its_work_is_no_fault_of_the_request(model_folder: MakeFolder) -> None:
    """As by the system, where memory is short: the same may be asked again."""
    with Tokenizer(model_folder(HOSTILE["nested ranges"])) as tokenizer:
        tokenizer.encode("loaded")
        process = tokenizer._process._process
        assert process is not None
        kill = threading.Timer(0.2, process.kill)
        kill.start()
        with pytest.raises(StarvedError, match=r"was killed, .*; ask again") as caught:
            tokenizer.render(USER)
        kill.join()
        assert fault_of(caught.value).status == 503
        assert tokenizer.decode(tokenizer.encode("still alive")) == "still alive"


def test_a_worker_that_was_killed_is_replaced(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        ids = tokenizer.encode("hello")
        process = tokenizer._process._process
        assert process is not None
        process.kill()
        process.wait()
        assert tokenizer.encode("hello") == ids


@pytest.mark.parametrize("end", ["killed", "a request that hangs", "a client that has gone"])
def test_answers_go_on_where_their_worker_ends(
    model_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("moeinf.text.tokenizer._RENDER_LIMIT_S", 1.0)
    with Tokenizer(model_folder(HOSTILE["nested ranges"])) as tokenizer:
        words = [tokenizer.encode(text, bos=False) for text in ("héllo wörld", '{"a": 1}')]
        plain, form = tokenizer.stream(), tokenizer.stream()
        form.constrain([{"prefix": "", "schema": '{"type": "object"}', "suffix": ""}])
        said, masks = "", list[bytes]()
        for number, ids in enumerate(zip(*words, strict=False)):
            if number == 2:
                process = tokenizer._process._process
                assert process is not None
                if end == "killed":
                    process.kill()
                elif end == "a request that hangs":
                    with pytest.raises(TextError):
                        tokenizer.render(USER)
                else:
                    with pytest.raises(Stopped), tokenizer.until(lambda: True):
                        tokenizer.render(USER)
                process.wait()
            said += "".join(piece.text for piece in plain.step(ids[0]))
            masks.append(form.accept(ids[1])[0])
            form.step(ids[1])
        said += "".join(piece.text for piece in plain.flush())
        assert said == tokenizer.decode(words[0][: len(masks)])
        alone = tokenizer.stream()
        alone.constrain([{"prefix": "", "schema": '{"type": "object"}', "suffix": ""}])
        assert masks == [alone.accept(token)[0] for token in words[1][: len(masks)]]


def test_the_answer_to_an_interrupted_request_is_not_taken_for_the_next_one(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        process = tokenizer._process
        process.info()
        process._send("encode", 10.0, {"text": "abandoned by Ctrl-C", "kind": "plain"})
        assert tokenizer.decode(tokenizer.encode("mine")) == "mine"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for a process that is no child")
def test_the_worker_ends_with_its_parent(model_folder: MakeFolder) -> None:
    script = (
        "import os, sys; from pathlib import Path; from moeinf.text.tokenizer import Tokenizer\n"
        "t = Tokenizer(Path(sys.argv[1])); t.encode('a'); print(t._process._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script, str(model_folder())], capture_output=True, text=True, timeout=60, check=False
    )
    assert parent.returncode == -signal.SIGKILL
    try:
        worker = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return  # it has ended already
    with open(worker, closefd=True):
        ended, _, _ = select.select([worker], [], [], 30)
    assert ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_command_do_not_reach_the_worker(number: signal.Signals, model_folder: MakeFolder) -> None:
    """An init system sends them to all processes of a service; what is being answered needs this one to the end."""
    with Tokenizer(model_folder()) as tokenizer:
        ids = tokenizer.encode("hello")
        process = tokenizer._process._process
        assert process is not None
        os.kill(process.pid, number)
        assert os.getpgid(process.pid) != os.getpgid(0)
        assert tokenizer.encode("hello") == ids


def test_the_worker_imports_neither_torch_nor_numpy() -> None:
    script = "import sys, moeinf.text.text_worker; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_current_folder_is_not_on_the_workers_import_path(
    model_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a stranger was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    with Tokenizer(model_folder()) as tokenizer:
        assert tokenizer.encode("hello")
    assert text_process._LOAD_LIMIT_S == 60.0


def test_a_system_that_limits_no_address_space_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    limit_memory(1 << 30, 1 << 30)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ValueError, match="maximum"):
        limit_memory(1 << 30, 1 << 30)
