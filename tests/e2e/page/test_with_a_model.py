"""The page before the server itself, which runs the embedded model with a third of its experts in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from moeinf.config import RuntimeConfig
from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.chromium import Browser
from tests.support.live_server import live_server
from tests.support.thinker import write_thinker

KEY = "a key of this test"


@pytest.fixture(scope="module")
def own_server(demo: StoredModel) -> Iterator[HttpServer]:
    config = RuntimeConfig.of(device="cpu", expert_cache="33%", context=512)
    with live_server(demo, config=config, keys=(KEY,)) as running:
        yield running


def test_a_chat_with_a_model(own_server: HttpServer, browser: Browser) -> None:
    browser.driver.get(own_server.url)
    browser.run("localStorage.clear(); sessionStorage.clear()")
    browser.driver.refresh()
    browser.wait(lambda: browser.find("#key").is_displayed())
    browser.find("#key").send_keys(KEY, Keys.ENTER)
    browser.wait(lambda: browser.find("#model").get_attribute("value") == "demo:latest")
    browser.find("#prompt").send_keys("Once upon a time", Keys.ENTER)
    browser.wait(lambda: len(browser.text(".answer .markdown")) > 40)
    with httpx.stream("GET", f"{own_server.url}/api/live", headers={"Authorization": f"Bearer {KEY}"}) as answer:
        event = json.loads(next(answer.iter_lines()).removeprefix("data: "))
    assert [len(each["name"]) for each in event["requests"]] == [32], "the page knows its request by this name"
    heat = browser.find("#heat")
    resident = "Heat map of 6 layers with 32 experts each: 63 of 192 in memory (33 %)"
    browser.wait(lambda: str(heat.get_attribute("aria-label")).startswith(resident))
    browser.find("#prompt").send_keys(Keys.ESCAPE)
    browser.wait(lambda: browser.all(".foot"))
    browser.wait(lambda: browser.text("#state-text") == "Idle")
    assert [part.text.split("\n")[0] for part in browser.all("#memory-parts li")][:2] == [
        "expert cache",
        "dense weights",
    ]
    assert all("401" in complaint for complaint in browser.complaints()), "nothing but the want of a key"


def test_the_thoughts_of_a_model_are_folded(browser: Browser, tmp_path: Path) -> None:
    thinker = pull(str(write_thinker(tmp_path / "thinker")), home=tmp_path / "home")
    with live_server(thinker) as running:
        browser.open(running.url)
        browser.wait(lambda: browser.find("#think").is_displayed())
        for think, thoughts in ((True, "Let me see"), (False, "")):
            browser.find("#prompt").send_keys("hi", Keys.ENTER)
            browser.wait(lambda: browser.all(".answer .foot") and browser.find("#stop").get_attribute("hidden"))
            last = "return document.querySelector('.answer:last-child ' + arguments[0]).textContent"
            assert browser.run(last, ".markdown") == "Hello there"
            assert browser.run(last, ".thought-text") == thoughts, think
            browser.find("#new-chat").click()
            browser.find("#think").click()
        browser.driver.get("about:blank")  # before its server ends


def test_the_machine_is_shown_to_nobody_without_the_key(own_server: HttpServer) -> None:
    assert httpx.get(f"{own_server.url}/api/live").status_code == 401
    assert httpx.get(f"{own_server.url}/page/main.js").status_code == 200


def test_a_page_that_looks_on_does_not_hold_up_the_end(demo: StoredModel) -> None:
    with live_server(demo) as server, httpx.stream("GET", f"{server.url}/api/live") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        server.stop()
        assert all(line == "" or line.startswith("data: ") for line in lines), "the stream comes to its end"
