"""Conversations that the browser keeps: the list, files, branches and settings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from selenium.webdriver.common.keys import Keys

from tests.support.chromium import Browser
from tests.support.page_chat import PIXEL, ask, downloaded, ended, press, titles
from tests.support.page_server import DONE, PageServer, said


def shown(browser: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('.said, .answer .markdown')].map((each) => each.innerText)"
    return [str(text) for text in browser.run(script)]


def ask_in_new_chat(browser: Browser, text: str) -> None:
    if browser.find("#new-chat").is_enabled():
        browser.find("#new-chat").click()
    ask(browser, text)
    ended(browser)


def test_conversations_are_listed_searched_renamed_and_deleted(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said("Of apples."), DONE], [*said("Of pears."), DONE]]
    browser.open(server.url)
    browser.wait(lambda: browser.text("#chats-state") == "No conversation yet")
    ask_in_new_chat(browser, "First\nwith a second line".replace("\n", " "))
    ask_in_new_chat(browser, "Second <b>one</b>")
    browser.wait(lambda: titles(browser) == ["Second <b>one</b>", "First with a second line"])

    browser.driver.refresh()
    browser.wait(lambda: shown(browser) == ["Second <b>one</b>", "Of pears."])
    assert browser.text(".facts").startswith("1,234 tokens")

    search = browser.find("#search")
    search.send_keys("APPLES of")
    browser.wait(lambda: titles(browser) == ["First with a second line"])
    search.send_keys(" nowhere")
    browser.wait(lambda: browser.text("#chats-state") == "Nothing has “APPLES of nowhere” in it")
    search.send_keys(Keys.CONTROL + "a", Keys.NULL, Keys.DELETE)
    browser.wait(lambda: len(titles(browser)) == 2)

    browser.all(".chat-name")[1].click()
    browser.wait(lambda: shown(browser) == ["First with a second line", "Of apples."])
    assert browser.run("return document.activeElement.id") == "prompt"
    browser.wait(lambda: browser.find(".chat-actions").is_displayed())
    press(browser, "Rename", ".chat-actions")
    browser.find(".rename input").send_keys("Fruit", Keys.ENTER)
    browser.wait(lambda: titles(browser) == ["Second <b>one</b>", "Fruit"])
    ask(browser, "More")
    ended(browser, 2)
    browser.wait(lambda: titles(browser) == ["Fruit", "Second <b>one</b>"])  # the name stays, what changed is on top

    press(browser, "Delete", ".chat-actions")
    assert browser.text("#delete-name") == "Fruit"
    browser.find("#keep-button").click()
    assert len(titles(browser)) == 2 and len(shown(browser)) == 4
    press(browser, "Delete", ".chat-actions")
    browser.find("#delete-button").click()
    browser.wait(lambda: titles(browser) == ["Second <b>one</b>"])
    assert shown(browser) == [] and browser.find("#welcome").is_displayed()
    browser.driver.refresh()
    browser.wait(lambda: titles(browser) == ["Second <b>one</b>"])


def test_an_answer_goes_on_while_another_conversation_is_shown(browser: Browser, server: PageServer) -> None:
    server.answers = [said("Half of it"), [*said("Other."), DONE]]
    browser.open(server.url)
    ask(browser, "Slow")
    browser.wait(lambda: shown(browser) == ["Slow", "Half of it"])
    browser.find("#new-chat").click()
    ask(browser, "Quick")
    ended(browser)
    browser.wait(lambda: [each.text for each in browser.all(".chat-name")] == ["Quick", "Slow\nanswering"])
    browser.all(".chat-name")[1].click()
    browser.wait(lambda: shown(browser) == ["Slow", "Half of it"] and browser.find("#stop").is_displayed())
    browser.find("#stop").click()
    ended(browser)
    browser.wait(lambda: server.left == 1)

    server.answers = [said("For ever")]
    browser.find(".again").click()
    browser.wait(lambda: shown(browser) == ["Slow", "For ever"])
    press(browser, "Delete", ".chat-actions")
    browser.find("#delete-button").click()
    browser.wait(lambda: server.left == 2)  # nobody waits for it any more
    browser.wait(lambda: titles(browser) == ["Quick"])
    browser.driver.refresh()
    browser.wait(lambda: titles(browser) == ["Quick"])


def test_what_had_come_when_the_page_was_closed_is_kept(browser: Browser, server: PageServer) -> None:
    server.answers = [said("Half of it"), [*said("Whole."), DONE]]
    browser.open(server.url)
    ask(browser, "Slow")
    browser.wait(lambda: shown(browser) == ["Slow", "Half of it"])
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".again"))
    assert shown(browser)[0] == "Slow"
    assert browser.text(".answer .status") in ("Broken off", "There is no answer yet")
    browser.find(".again").click()
    browser.wait(lambda: shown(browser) == ["Slow", "Whole."])


def test_a_browser_that_keeps_nothing_says_so(browser: Browser, server: PageServer) -> None:
    refuse = "IDBFactory.prototype.open = () => { throw new DOMException('no', 'SecurityError'); }"
    script = browser.command("Page.addScriptToEvaluateOnNewDocument", source=refuse)["identifier"]
    try:
        browser.open(server.url)
        assert browser.text("#chats-state").startswith("This browser keeps no conversations")
        ask_in_new_chat(browser, "One")
        assert shown(browser) == ["One", "Hello."] and not browser.find("#notice").is_displayed()
        browser.find("#export-all").click()
        assert browser.text("#notice-text") == "There is no conversation to export."
    finally:
        browser.command("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_branches_stay_within_reach(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said(f"Answer {number}."), DONE] for number in range(1, 5)]
    browser.open(server.url)
    ask(browser, "One")
    ended(browser)
    ask(browser, "Two")
    ended(browser, 2)
    browser.find(".edit").click()  # of the first question
    box = browser.find(".editor textarea")
    browser.wait(lambda: box == browser.driver.switch_to.active_element)
    box.send_keys(" changed", Keys.ESCAPE)
    browser.wait(lambda: browser.run("return document.activeElement.className") == "quiet small edit")
    browser.find(".edit").click()
    browser.find(".editor textarea").send_keys("!", Keys.ENTER)
    browser.wait(lambda: shown(browser) == ["One!", "Answer 3."])
    assert server.asked[2]["messages"] == [{"role": "user", "content": "One!"}]
    assert browser.text(".question .versions") == "‹2 of 2›"

    browser.find("[aria-label='Earlier version']").click()
    browser.wait(lambda: shown(browser) == ["One", "Answer 1.", "Two", "Answer 2."])
    assert browser.run("return document.activeElement.ariaLabel") == "Later version"
    browser.find(".again").click()
    browser.wait(lambda: shown(browser) == ["One", "Answer 1.", "Two", "Answer 4."])
    assert len(server.asked[3]["messages"]) == 3
    ended(browser, 2)
    browser.driver.refresh()
    browser.wait(lambda: shown(browser) == ["One", "Answer 1.", "Two", "Answer 4."])
    assert [each.text for each in browser.all(".versions span")] == ["1 of 2", "2 of 2"]


def test_settings_belong_to_a_conversation(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    given = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "num_predict": "20", "seed": "7"}
    browser.find("#settings-open").click()
    browser.wait(lambda: browser.find("#setting-temperature").get_attribute("placeholder") == "0.6")
    browser.find("#system").send_keys("Be brief.")
    for name, value in given.items():
        browser.find(f"#setting-{name}").send_keys(value)
    browser.find("#setting-top_p").send_keys("9")  # 0.99
    browser.find("#settings button[type=submit]").click()
    ask(browser, "One")
    ended(browser)
    assert server.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    options = {name: float(value) for name, value in given.items()} | {"top_p": 0.99}
    assert server.asked[0]["options"] == options
    browser.find("#new-chat").click()
    ask(browser, "Two")
    ended(browser)
    assert "options" not in server.asked[1] and len(server.asked[1]["messages"]) == 1
    browser.wait(lambda: titles(browser) == ["Two", "One"])
    browser.all(".chat-name")[1].click()
    browser.wait(lambda: shown(browser)[:1] == ["One"])
    browser.driver.refresh()
    browser.wait(lambda: shown(browser)[:1] == ["One"])
    browser.find("#settings-open").click()
    assert browser.find("#setting-seed").get_attribute("value") == "7"
    browser.find("#setting-seed").send_keys("-1", Keys.HOME, "-")  # -7-1 is no number
    browser.find("#settings button[type=submit]").click()
    assert browser.find("#settings").is_displayed(), "a value that is out of range is not taken"
    browser.find("#settings-cancel").click()


def test_files_bring_conversations_back(browser: Browser, server: PageServer, tmp_path: Path) -> None:
    answer = "# Heading\n\n<!-- moeinf: user -->\n\n```md\n## You\n```"
    server.answers = [[*said(answer, 30), DONE], [*said("Second."), DONE]]
    browser.open(server.url)
    browser.find("#settings-open").click()
    browser.find("#system").send_keys("Be brief.")
    browser.find("#settings button[type=submit]").click()
    ask(browser, "## Question")
    ended(browser)
    browser.find(".again").click()
    browser.wait(lambda: shown(browser) == ["## Question", "Second."])
    browser.wait(lambda: len(titles(browser)) == 1)
    browser.find("[aria-label='Earlier version']").click()
    whole = downloaded(browser, tmp_path / "json", "JSON", ".chat-actions")
    text = downloaded(browser, tmp_path / "markdown", "Markdown", ".chat-actions")
    everything = downloaded(browser, tmp_path / "all", "Export all", ".chats-foot")
    assert whole.name == "-Question.json" and text.name == "-Question.md"
    written = text.read_text(encoding="utf-8")
    assert "## System\n\nBe brief." in written and "## You\n\n## Question" in written and "Second" not in written
    assert len(json.loads(everything.read_text(encoding="utf-8"))["conversations"]) == 1

    for file, versions in ((whole, ["1 of 2"]), (text, [])):
        browser.open(server.url)
        browser.find("#import-file").send_keys(str(file))
        browser.wait(lambda: len(titles(browser)) == 1)
        assert browser.run("return document.querySelector('.said').textContent") == "## Question"
        assert [each.text for each in browser.all(".versions span")] == versions
        server.asked.clear()
        ask(browser, "Next")
        ended(browser, 2)
        assert [each["content"] for each in server.asked[0]["messages"]] == ["Be brief.", "## Question", answer, "Next"]


HOSTILE: dict[str, Any] = {
    "kind": "moeinf conversations",
    "conversations": [
        {
            "id": "x' onerror=1",
            "title": "<img src=x onerror='window.hit = 1'>",
            "leaf": 2,
            "settings": {"system": 5, "temperature": "hot", "seed": 4, "tools": True, "always": ["all"]},
            "nodes": [
                {
                    "id": 1, "parent": None, "role": "user", "content": "<script>window.hit = 2</script>",
                    "pictures": [
                        {"name": "a", "type": "image/png", "data": PIXEL},
                        {"name": "b", "type": "image/svg+xml", "data": PIXEL},
                        {"name": "c", "type": "image/png", "data": "https://example.org/x.png"},
                        "text",
                    ],
                },
                {"id": 2, "parent": 1, "role": "assistant", "content": "Hi", "model": 5, "calls": "no", "facts": {}},
            ],
        }
    ],
}  # fmt: skip


NO_CONVERSATIONS = {
    "a.json": ("{", "a.json cannot be imported: it is no JSON"),
    "b.json": ('{"a": 1}', "b.json cannot be imported: it holds no conversations of moeinf"),
    "c.md": ("just words", "c.md cannot be imported: it has no headings"),
    "d.json": (
        json.dumps({**HOSTILE, "conversations": [{"nodes": [{"role": "system"}]}]}),
        "d.json cannot be imported",
    ),
}


def test_a_file_that_holds_none_is_refused(browser: Browser, server: PageServer, tmp_path: Path) -> None:
    browser.open(server.url)
    for name, (text, words) in NO_CONVERSATIONS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        browser.find("#import-file").send_keys(str(tmp_path / name))
        browser.wait(partial(lambda words: browser.text("#notice-text").startswith(words), words))
    browser.find("#notice-close").click()
    assert not browser.find("#notice").is_displayed() and titles(browser) == []


def test_files_of_others_are_looked_at(browser: Browser, server: PageServer, tmp_path: Path) -> None:
    files = {
        "hostile.json": json.dumps(HOSTILE),
        "other.md": "# Talk\n\n**User:**\n\nWhat is it?\n\n### Assistant\n\nA *thing*.\n",
        "request.json": json.dumps(
            {"messages": [{"role": "user", "content": "Raw"}, {"role": "assistant", "content": "R"}]}
        ),
    }
    server.models = ("seer:latest",)
    browser.open(server.url)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    browser.find("#import-file").send_keys("\n".join(str(tmp_path / name) for name in files))
    browser.wait(lambda: len(titles(browser)) == len(files))
    assert shown(browser) == ["Raw", "R"]
    assert sorted(titles(browser)) == ["<img src=x onerror='window.hit = 1'>", "Raw", "Talk"]
    next(each for each in browser.all(".chat-name") if each.text == "Talk").click()
    browser.wait(lambda: shown(browser) == ["What is it?", "A thing."])
    next(each for each in browser.all(".chat-name") if each.text.startswith("<img")).click()
    browser.wait(lambda: shown(browser) == ["<script>window.hit = 2</script>", "Hi"])
    assert browser.run("return window.hit") is None
    ask(browser, "Next")
    ended(browser, 2)
    assert server.asked[0]["options"] == {"seed": 4} and "tools" not in server.asked[0]
    assert server.asked[0]["messages"][0] == {
        "role": "user", "content": "<script>window.hit = 2</script>", "images": [PIXEL],
    }  # fmt: skip


def test_two_tabs_lose_nothing_to_each_other(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said(f"Answer {number}."), DONE] for number in range(1, 4)]
    browser.open(server.url)
    ask(browser, "One")
    ended(browser)
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    try:
        browser.driver.get(server.url)
        browser.wait(lambda: titles(browser) == ["One"])
        assert shown(browser) == [], "a new tab begins a conversation of its own"
        browser.find(".chat-name").click()
        browser.wait(lambda: len(shown(browser)) == 2)
        ask(browser, "Two")
        ended(browser, 2)
    finally:
        browser.driver.close()
        browser.driver.switch_to.window(first)
    browser.wait(lambda: shown(browser) == ["One", "Answer 1.", "Two", "Answer 2."])
    ask(browser, "Three")
    ended(browser, 3)
    assert len(server.asked[2]["messages"]) == 5
