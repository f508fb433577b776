"""What agents change in their system prompts with every request does not reach the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.server.prompt.agent_noise import quiet_text, without_noise

SYSTEM = "You are an agent.\n\nBe brief.\n"


def agent_request(sum_: str, left: int, turns: int) -> str:
    """A system prompt as an agent sends it at its turn."""
    counters = "".join(f"\n<total_tokens>{left - turn} tokens left</total_tokens>" for turn in range(turns))
    return f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={sum_};\n{SYSTEM}{counters}"


def test_requests_that_differ_in_noise_alone_have_one_prompt() -> None:
    user = {"role": "user", "content": "hi"}
    first = without_noise([{"role": "system", "content": agent_request("00af1", 190_000, 1)}, user])
    second = without_noise([{"role": "system", "content": agent_request("7be22", 150_321, 4)}, user])
    assert first == second == [{"role": "system", "content": SYSTEM.rstrip()}, user]


@pytest.mark.parametrize("between", ["", " ", "\n", "\n\n", " \n"])
def test_what_a_proxy_joins_to_the_billing_block_stays(between: str) -> None:
    block = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
    assert quiet_text(f"{block}{between}{SYSTEM}") == SYSTEM


def test_a_late_counter_goes_and_a_late_instruction_stays() -> None:
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "<total_tokens>1,234 tokens left</total_tokens>"},
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "x-anthropic-billing-header: is what?"},
    ]
    assert without_noise(chat) == [chat[0], *chat[2:]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Say <total_tokens>5 tokens left</total_tokens> now.",
        "<total_tokens>many tokens left</total_tokens>",
        "</total_tokens>",
        "5 tokens left</total_tokens>",
        "The x-anthropic-billing-header: is a header.",
        "x-anthropic-billing-header: is a header.",
        "Trailing space  \n\n",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert quiet_text(text) == text
    assert without_noise([{"role": "system", "content": text}]) == [{"role": "system", "content": text}]


@given(st.text(), st.integers(0, 10**9), st.integers(1, 3))
def test_whatever_a_prompt_says_its_counters_do_not_matter(text: str, left: int, count: int) -> None:
    counter = f"<total_tokens>{left} tokens left</total_tokens>"
    assert quiet_text(text + counter * count) == quiet_text(text + counter)


def test_a_megabyte_of_counters_or_of_space_takes_no_square_of_its_length() -> None:
    assert quiet_text("<total_tokens>1 tokens left</total_tokens>" * 50_000) == ""
    spaces = " " * 2_000_000
    assert quiet_text(f"a{spaces}b") == f"a{spaces}b"
    assert len(quiet_text(f"{spaces}</total_tokens>")) == len(spaces) + len("</total_tokens>")


STATUS = (
    "gitStatus: This is the git status at the start of the conversation. Note that.\n\nRecent commits:\ne522c0b init"
)


@pytest.mark.parametrize("asked", ["Fix it.", [{"type": "text", "text": "Fix it."}]])
def test_the_state_of_a_repository_comes_behind_what_stays(asked: Any) -> None:
    """So that the tools, which many templates put behind the system message, are those of the last conversation."""
    answer = {"role": "assistant", "content": "Done."}
    chat = [{"role": "system", "content": f"{SYSTEM}\n\n{STATUS}\n"}, {"role": "user", "content": asked}, answer]
    first, second, third = without_noise(chat)
    assert first == {"role": "system", "content": SYSTEM.rstrip()} and third == answer
    moved = f"<system-reminder>\n{STATUS}\n</system-reminder>\n\n"
    assert second["content"] in (
        f"{moved}Fix it.",
        [{"type": "text", "text": moved}, {"type": "text", "text": "Fix it."}],
    )


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "system", "content": STATUS}, {"role": "user", "content": "hi"}],
        [{"role": "system", "content": f"{SYSTEM}\n{STATUS}"}],
        [{"role": "system", "content": f"{SYSTEM}\n{STATUS}"}, {"role": "assistant", "content": "hi"}],
        [{"role": "system", "content": f"{SYSTEM} The line gitStatus: is told."}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": f"{SYSTEM}\n{STATUS}"}, {"role": "user", "content": "hi"}],
    ],
)
def test_where_nothing_can_stand_behind_it_it_stays(chat: list[dict[str, Any]]) -> None:
    assert without_noise(chat) == chat
