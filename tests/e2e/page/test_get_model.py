"""A model is fetched from the page: its forms are looked up on a Hub of this machine, and one of them is taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from moeinf.server.serve import HttpServer
from tests.support.chromium import Browser
from tests.support.hub_server import Hub
from tests.support.known_models import empty_store


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, HttpServer]]:
    with empty_store(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def hub(both: tuple[Hub, HttpServer]) -> Hub:
    return both[0]


@pytest.fixture
def empty(both: tuple[Hub, HttpServer]) -> HttpServer:
    return both[1]


def test_a_first_model_is_found_chosen_fetched_and_answers(browser: Browser, empty: HttpServer) -> None:
    browser.load(empty.url)
    browser.wait(lambda: "Get a model" in browser.text("#welcome-text"))
    browser.find("#get-open").click()
    browser.wait(lambda: "story:5m" in browser.run("return [...document.all['get-names'].options].map((o) => o.value)"))
    assert not browser.find("#get-fetch").is_enabled() and not browser.find("#get-look").is_enabled()
    browser.find("#get-name").send_keys("story", Keys.ENTER)
    browser.wait(lambda: browser.find("#get-forms").is_displayed())
    rows = [row.text.split() for row in browser.all("#get-forms tbody tr")]
    assert [row[0] for row in rows] == ["q8_0", "bf16", "q4_k_m"] and "100" in rows[0]
    assert rows[2][3:5] == rows[2][1:3], "a GGUF file is kept as it is fetched"
    assert rows[2][5].startswith("~0.0") and "KL is about how far" in browser.text("#get-state")
    assert browser.find("#get-forms input:checked").get_attribute("value") == "story:q8_0"
    assert browser.text("#get-state").startswith("q8_0 suits this machine best")
    browser.all("#get-forms label")[2].click()
    browser.find("#get-fetch").click()
    browser.wait(lambda: browser.text("#get-state") == "story:q4_k_m is here.")
    browser.wait(lambda: browser.find("#get-close").is_enabled())
    browser.find("#get-close").click()
    browser.wait(lambda: browser.find("#model").get_attribute("value") == "story:5m-q4_k_m")
    browser.find("#prompt").send_keys("Once upon a time", Keys.ENTER)
    browser.wait(lambda: len(browser.text(".answer .markdown")) > 10)
    browser.find("#prompt").send_keys(Keys.ESCAPE)
    browser.wait(lambda: browser.all(".foot"))
    browser.driver.get("about:blank")  # before the server ends


def test_what_goes_wrong_is_told_and_a_fetch_can_be_stopped(browser: Browser, empty: HttpServer, hub: Hub) -> None:
    browser.load(empty.url)
    browser.find("#get-open").click()
    name, state = browser.find("#get-name"), "#get-state"
    name.send_keys("no such thing", Keys.ENTER)
    browser.wait(lambda: browser.text(state).startswith("no such thing is fetched as it is"))
    browser.find("#get-fetch").click()
    browser.wait(lambda: "no such thing" in browser.text(state) and "not" in browser.text(state))
    name.send_keys(Keys.CONTROL + "a", Keys.NULL, "story", Keys.ENTER)
    browser.wait(lambda: browser.find("#get-forms").is_displayed())
    hub.faults["hang"] = 1
    browser.find("#get-fetch").click()
    browser.wait(lambda: browser.find("#get-stop").is_displayed() and not hub.faults["hang"])
    assert not browser.find("#get-close").is_enabled() and not name.is_enabled()
    browser.find("#get-stop").click()
    browser.wait(lambda: browser.text(state).startswith("Stopped. What was fetched is kept"))
    browser.find("#get-fetch").click()
    browser.wait(lambda: browser.text(state) == "story:q8_0 is here.")
    browser.wait(lambda: browser.find("#model").is_enabled())
    browser.driver.get("about:blank")
    assert all("400" in complaint or "404" in complaint for complaint in browser.complaints())
