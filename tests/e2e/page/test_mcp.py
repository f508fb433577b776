"""Tools of MCP servers: named by the user, called once the user agrees, with results for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.chromium import Browser
from tests.support.mcp_server import ADD, PINGED, McpServer, mcp_server
from tests.support.page_chat import PIXEL, announced, ask, downloaded, ended, press, titles
from tests.support.page_server import DONE, PageServer, called, said, thought


@pytest.fixture(scope="module")
def one_mcp() -> Iterator[McpServer]:
    with mcp_server() as server:
        yield server


@pytest.fixture
def mcp(one_mcp: McpServer) -> McpServer:
    one_mcp.asked.clear()
    return one_mcp


def switch_on(browser: Browser, *addresses: str) -> None:
    browser.find("#settings-open").click()
    browser.find("#servers").clear()
    browser.find("#servers").send_keys("\n".join(addresses))
    if not browser.find("#tools-on").is_selected():
        browser.find("#tools-on").click()
    browser.find("#settings button[type=submit]").click()
    assert not browser.find("#settings").is_displayed()


def say(browser: Browser, words: str) -> None:
    press(browser, words, ".call-ask")


def calls(browser: Browser) -> list[str]:
    return [each.text for each in browser.all(".call summary")]


def test_a_call_is_made_once_the_user_agrees(browser: Browser, server: PageServer, mcp: McpServer) -> None:
    server.answers = [[*thought("Sum."), *called("add", a=2, b=3), DONE], [*said("It is 5."), DONE]]
    browser.open(server.url)
    ask(browser, "Without tools")
    ended(browser, 2)
    assert "tools" not in server.asked[0] and mcp.asked == [], "nothing is asked before tools are switched on"
    assert calls(browser) == ["add failed"] and "There is no tool add" in str(
        browser.find(".call").get_attribute("textContent")
    )

    server.answers = [[*thought("Sum."), *called("add", a=2, b=3), DONE], [*said("It is 5."), DONE]]
    server.asked.clear()
    browser.find("#new-chat").click()
    switch_on(browser, mcp.url)
    ask(browser, "What is 2 + 3?")
    browser.wait(lambda: browser.find(".call-ask").is_displayed())
    announced(browser, "The model asks to call add")
    assert "tools/call" not in mcp.methods
    assert browser.text(".call-ask p") == f"May add of {mcp.url} be called with these arguments?"
    assert browser.text(".call [aria-label=Arguments]") == '{\n  "a": 2,\n  "b": 3\n}'
    say(browser, "Call it")
    ended(browser, 2)
    assert calls(browser) == ["add was called"]
    assert [each.text for each in browser.all(".answer .markdown")] == ["", "It is 5."]
    browser.find(".call summary").click()
    assert browser.text(".call [aria-label=Result]") == "5"
    assert server.asked[0]["tools"][0]["function"]["parameters"] == ADD["inputSchema"]
    assert [each["function"]["name"] for each in server.asked[0]["tools"]] == ["add", "fail"]
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    assert server.asked[1]["messages"][1:] == [
        {"role": "assistant", "content": "", "thinking": "Sum.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "5"},
    ]
    assert mcp.methods == ["initialize", "notifications/initialized", "tools/list", "tools/list", "tools/call"]
    assert {"jsonrpc": "2.0", "id": PINGED, "result": {}} in mcp.asked

    browser.driver.refresh()
    browser.wait(lambda: calls(browser) == ["add was called"])


def test_always_holds_for_a_tool_in_a_conversation(browser: Browser, server: PageServer, mcp: McpServer) -> None:
    add, fail = [*called("add", a=1, b=1), DONE], [*called("fail"), DONE]
    server.answers = [add, add, fail, [*said("Well."), DONE], add]
    browser.open(server.url)
    switch_on(browser, mcp.url)
    ask(browser, "Go")
    say(browser, "Always in this conversation")
    browser.wait(lambda: calls(browser) == ["add was called", "add was called", "fail asks for your word"])
    say(browser, "Call it")
    ended(browser, 4)
    assert calls(browser)[-1] == "fail failed" and browser.run("return window.hit") is None
    assert server.asked[3]["messages"][-1]["content"] == "<img src=x onerror='window.hit = 1'>"
    browser.find("#new-chat").click()
    switch_on(browser, mcp.url)
    ask(browser, "Once more")
    browser.wait(lambda: calls(browser) == ["add asks for your word"])
    browser.find("#prompt").send_keys(Keys.ESCAPE)
    ended(browser)
    assert browser.text(".answer .status") == "Stopped" and calls(browser) == ["add was not called"]
    assert mcp.methods.count("tools/call") == 3


def test_a_model_that_never_ends_its_calls_is_stopped(browser: Browser, server: PageServer) -> None:
    server.answers = [[*called("unknown"), DONE]]  # again and again
    browser.open(server.url)
    ask(browser, "Go")
    browser.wait(lambda: browser.all(".status[data-error]"))
    assert browser.text(".status[data-error]") == "The model has called tools 25 times. Shall it go on?"
    assert len(server.asked) == 25 and browser.find("#stop").get_attribute("hidden")


def test_what_is_refused_is_not_called(browser: Browser, server: PageServer, mcp: McpServer) -> None:
    server.answers = [[*called("add", a=1, b=1), DONE], [*said("Then not."), DONE]]
    browser.open(server.url)
    switch_on(browser, mcp.url, mcp.url)  # named twice: asked once
    ask(browser, "Go")
    browser.wait(lambda: browser.find(".call-ask").is_displayed())
    mcp.session = "session-2"  # the server has begun anew
    browser.find(".call-ask button:last-child").send_keys(Keys.ENTER)
    ended(browser, 2)
    assert calls(browser) == ["add was not allowed"] and "tools/call" not in mcp.methods
    assert server.asked[1]["messages"][-1]["content"] == "The user did not allow this call."
    server.answers = [[*called("add", a=1, b=1), DONE], [*said("Two."), DONE]]
    ask(browser, "Now do")
    say(browser, "Call it")
    ended(browser, 4)
    assert server.asked[-1]["messages"][-1]["content"] == "2", "the session is begun anew"
    browser.wait(lambda: titles(browser) == ["Go"])


def test_tools_are_listed_in_the_settings(browser: Browser, server: PageServer, mcp: McpServer) -> None:
    browser.open(server.url)
    browser.find("#settings-open").click()
    assert not browser.find("#tools-on").is_selected() and browser.find("#servers").get_attribute("value") == ""
    browser.find("#tools-on").click()
    browser.find("#settings button[type=submit]").click()
    assert browser.text("#tools-state") == "The address of a server is missing."
    browser.find("#servers").send_keys("file:///etc/passwd")
    browser.find("#settings button[type=submit]").click()
    assert browser.text("#tools-state").startswith("“file:///etc/passwd” is no address")
    browser.find("#servers").clear()
    browser.find("#servers").send_keys(mcp.url)
    browser.find("#list-tools").click()
    browser.wait(lambda: browser.text("#tools-state") == "2 tools")
    assert [each.text for each in browser.all("#tool-list li")] == ["add Adds two numbers", "fail Fails <b>always</b>"]
    browser.find("#settings-cancel").click()


KEYS = [  # what a server wants, and what is written into the field of its key
    (("Authorization", "Bearer s3cret"), "s3cret"),
    (("X-Api-Key", "s3cret"), "X-Api-Key: s3cret"),
]


@pytest.mark.parametrize(("wanted", "written"), KEYS)
def test_a_key_goes_to_its_server_alone_and_into_no_export(
    browser: Browser, server: PageServer, mcp: McpServer, tmp_path: Path, wanted: tuple[str, str], written: str
) -> None:
    server.answers = [[*called("add", a=2, b=3), DONE], [*said("It is 5."), DONE]]
    browser.open(server.url)
    with mcp_server(key=wanted) as keyed:
        switch_on(browser, mcp.url, keyed.url)
        ask(browser, "Without its key")
        ended(browser)
        assert "it wants a key; Settings has a field for it" in browser.text(".status[data-error]")
        for typed, told in (
            (written.replace("s3cret", "wrong"), "it refuses this key"),
            (written, "4 tools"),
            ("clé", "letters that no header"),
        ):
            browser.find("#settings-open").click()
            assert [each.get_attribute("type") for each in browser.all("#server-keys input")] == ["password"] * 2
            field = browser.all("#server-keys input")[1]
            field.clear()
            field.send_keys(typed)
            browser.find("#list-tools").click()
            browser.wait(lambda told=told: told in browser.text("#tools-state"))  # type: ignore[misc]
            if typed == written:
                browser.find("#settings button[type=submit]").click()
            else:
                browser.find("#settings-cancel").click()
        ask(browser, "What is 2 + 3?")
        say(browser, "Call it")
        ended(browser, 3)
    assert calls(browser) == ["add was called"] and not any(wanted[0].lower() in each for each in mcp.headers)
    assert any(each.get(wanted[0].lower()) == wanted[1] for each in keyed.headers)
    browser.driver.refresh()
    browser.wait(lambda: calls(browser) == ["add was called"])
    everything = downloaded(browser, tmp_path, "Export all", ".chats-foot").read_text(encoding="utf-8")
    assert "It is 5." in everything and "s3cret" not in everything
    switch_on(browser, mcp.url)
    assert "s3cret" not in str(browser.run("return JSON.stringify(localStorage)")), "it leaves with its address"


WRONG: dict[str, dict[str, object]] = {
    "answers, but does not let a browser's page use it: by CORS it has to allow the origin {page}": {"origins": ()},
    "its CORS has to expose the header Mcp-Session-Id": {"exposed": ()},
    "answers with status 403: it may have to be told to allow the origin {page}": {"status": 403},
    "answers with status 500. Is that the address of an MCP server, with its path?": {"status": 500},
}


def test_what_is_wrong_is_told(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    with ExitStack() as stack:
        wrong = {words: stack.enter_context(mcp_server(**more)).url for words, more in WRONG.items()}
        for words, url in {**wrong, "Nothing answers at": "http://127.0.0.1:9/mcp"}.items():
            if browser.find("#new-chat").is_enabled():
                browser.find("#new-chat").click()
            switch_on(browser, url)
            ask(browser, "Go")
            ended(browser)
            assert words.format(page=server.url) in browser.text(".status[data-error]")
    assert server.asked == []
    assert all("/mcp" in complaint for complaint in browser.complaints()), "the browser's own words for it"


@pytest.mark.parametrize("model", ["seer:latest", "plain:latest"])
def test_a_picture_of_a_result_is_shown_and_goes_to_models_that_see(
    browser: Browser, server: PageServer, model: str
) -> None:
    server.models = [model]
    server.answers = [[*called("draw"), DONE], [*said("A dot."), DONE]]
    with mcp_server(drawn=PIXEL) as drawing:
        browser.open(server.url)
        switch_on(browser, drawing.url)
        ask(browser, "Draw a dot")
        say(browser, "Call it")
        ended(browser, 2)
    browser.find(".call summary").click()
    source = browser.find(".call-pictures img").get_attribute("src")
    assert source == f"data:image/png;base64,{PIXEL}"
    left_out = "[audio/wav, which is left out]\n[image/png, which is left out]"  # of the latter there are no bytes
    assert browser.text(".call [aria-label=Result]") == f"Drawn.\n{left_out}"
    result = server.asked[-1]["messages"][-1]
    if model == "seer:latest":
        assert result["images"] == [PIXEL] and "picture" not in result["content"]
    else:
        assert "images" not in result and result["content"].endswith("[A picture, which you cannot see]")
    browser.driver.refresh()
    browser.wait(lambda: calls(browser) == ["draw was called"])
    assert browser.all(".call-pictures img")
