"""The machine beside the chat, and the page as such: sizes, colours, keyboard, policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from moeinf.server.turns.overview import Seen
from tests.support.chromium import Browser
from tests.support.page_chat import ask, ended
from tests.support.page_server import DONE, EXPERTS, LAYERS, PageServer, called, said

PIXEL = """
    const [heat, layer, expert] = [document.getElementById("heat"), ...arguments];
    const canvas = Object.assign(document.createElement("canvas"), { width: heat.width, height: heat.height });
    canvas.getContext("2d", { willReadFrequently: true }).drawImage(heat, 0, 0);
    const [x, y] = [(expert + 0.4) * canvas.width / 8, (layer + 0.4) * canvas.height / 3];
    const [red, green, blue] = canvas.getContext("2d").getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    return `rgb(${red}, ${green}, ${blue})`;"""
CODE = 'def f():  # why\n    return f(1, "text")'


def label(browser: Browser, selector: str) -> str:
    return str(browser.find(selector).get_attribute("aria-label"))


def focused(browser: Browser) -> str:
    return str(browser.run("return document.activeElement.id"))


def widest(browser: Browser, *selectors: str) -> int:
    """Pixels that the widest of these elements needs."""
    script = "return Math.max(...arguments[0].map((each) => document.querySelector(each).scrollWidth))"
    return int(browser.run(script, selectors))


def fits_the_window(browser: Browser) -> bool:
    """The page itself never scrolls: its parts do."""
    return bool(browser.run("return document.documentElement.scrollHeight <= innerHeight"))


def background(browser: Browser) -> str:
    return str(browser.run("return getComputedStyle(document.body).backgroundColor"))


def test_the_heat_map_says_what_it_shows(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    words = "Heat map of 3 layers with 8 experts each: 8 of 24 in memory (33 %), 3 just used, 1 being read"
    assert label(browser, "#heat") == words
    browser.find("#layers summary").click()
    browser.wait(lambda: len(browser.all("#layer-rows tr")) == LAYERS)
    rows = [row.text for row in browser.all("#layer-rows tr")]
    assert rows == ["0 8 3 0", "1 0 0 1", "2 0 0 0"]


def test_the_cells_have_the_colours_of_the_legend(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    cells = {"resident": (0, EXPERTS - 1), "used": (0, 0), "reading": (1, 1), "absent": (2, 0)}
    colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    wanted = {name: browser.run(colour, f"#legend .{name}") for name in cells}
    assert len(set(wanted.values())) == 4
    browser.wait(lambda: {name: browser.run(PIXEL, *at) for name, at in cells.items()} == wanted)


def test_nothing_fades_where_motion_is_not_wanted(browser: Browser, server: PageServer) -> None:
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    browser.open(server.url)
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    browser.wait(lambda: browser.run(PIXEL, 0, 0) != browser.run(PIXEL, 0, EXPERTS - 1))
    seen = """
        const heat = document.getElementById("heat");
        return new Promise((seen) => new MutationObserver(() => {
          if (heat.ariaLabel.includes("0 just used")) seen((function () { PIXEL }).call(null, 0, 0));
        }).observe(heat, { attributes: true, attributeFilter: ["aria-label"] }));"""
    browser.run("window.seen = (function () { " + seen.replace("PIXEL", PIXEL) + " })()")
    server.live = replace(server.live, used=bytes(LAYERS * EXPERTS // 8))
    assert browser.run("return window.seen") == browser.run(PIXEL, 0, EXPERTS - 1)


def test_a_cell_tells_what_it_is(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    heat = browser.find("#heat")
    at = [int(heat.size["width"] / 8 * 1.5 - heat.size["width"] / 2), 0]  # the second expert of the middle layer
    ActionChains(browser.driver).move_to_element_with_offset(heat, *at).perform()
    browser.wait(lambda: browser.text("#heat-spot") == "layer 1, expert 1: being read")


def test_charts_and_memory_say_their_numbers(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: len(browser.all(".chart")) == 4)
    browser.wait(lambda: label(browser, ".chart:nth-of-type(2) svg") == "Hit rate: last 75 %, between 75 % and 75 %")
    values = [chart.find_element(By.CSS_SELECTOR, ".value").text for chart in browser.all(".chart")]
    assert values == ["21.4", "75 %", "1.5 GB/s", "25 %"]
    assert browser.text("#memory-figure") == "4.0 GB set aside for this model"
    parts = [part.text.split("\n") for part in browser.all("#memory-parts li")]
    assert parts == [["expert cache", "3.0 GB"], ["dense weights", "1.0 GB"]]
    widths = [float(str(bar.get_attribute("width"))) for bar in browser.all("#memory-bar rect")]
    assert widths == [75, 25]
    assert browser.text("#state-text") == "Answering, 12 tokens"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen("plain:latest", "loading", progress=(30, 120)), "Loading plain:latest, 25 %"),
        (
            Seen("plain:latest", "prefill", eta_s=4.2, progress=(512, 2048)),
            "Reading the prompt, 512 of 2,048 tokens · about 4.2 s",
        ),
    ],
)
def test_every_request_is_told(browser: Browser, server: PageServer, seen: Seen, words: str) -> None:
    waiting = Seen("other:latest", "queued", position=1, eta_s=75.0, background=True)
    server.live = replace(server.live, requests=(seen, waiting))
    browser.open(server.url)
    browser.wait(lambda: browser.text("#state-text") == f"{words} · 1 waiting")
    assert browser.find("#progress").is_displayed()
    told = [item.text for item in browser.all("#requests li")]
    assert told == [words, "Waiting, place 1 · about 1 min 15 s · other:latest · background"]


def test_a_message_that_waits_tells_of_itself_and_not_of_others(browser: Browser, server: PageServer) -> None:
    server.answers = [[{"message": {"content": ""}, "moeinf": {"phase": "queued", "position": 2, "eta_s": 7.5}}]]
    browser.open(server.url)
    browser.find("#prompt").send_keys("Hello", Keys.ENTER)
    browser.wait(lambda: browser.text(".answer .status") == "Waiting, place 2 · about 7.5 s")
    assert browser.text("#state-text") == "Answering, 12 tokens"
    others = [Seen("plain:latest", "decode", tokens=12), Seen("plain:latest", "queued", position=1, name="another")]
    mine = Seen("plain:latest", "queued", position=2, name=server.names[0])
    server.live = replace(server.live, requests=(*others, mine))
    browser.wait(lambda: browser.text("#state-text") == "Answering, 12 tokens · 2 waiting · yours at place 2")
    told = [item.text for item in browser.all("#requests li")]
    assert told == ["Answering, 12 tokens", "Waiting, place 1", "Yours: Waiting, place 2"]
    server.live = replace(server.live, requests=(*others, replace(mine, position=7)))
    browser.wait(lambda: browser.text(".answer .status") == "Waiting, place 7")
    server.live = replace(server.live, requests=(*others, mine))
    browser.find("#stop").click()
    browser.wait(lambda: browser.all(".foot"))
    browser.wait(lambda: server.left == 1 and browser.all("#requests li")[-1].text == "Waiting, place 2")
    assert browser.text(".answer .status") == "Stopped"


def test_the_keyboard_reaches_everything_in_order(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said("```sh\nls\n```"), DONE]]
    browser.open(server.url)
    browser.wait(lambda: browser.find("#think").is_displayed())
    assert focused(browser) == "prompt", "one can begin to write at once"
    browser.find("#prompt").send_keys("a", Keys.SHIFT + Keys.ENTER, Keys.NULL, "b", Keys.ENTER)
    browser.wait(lambda: browser.all(".foot"))
    assert server.asked[0]["messages"][0]["content"] == "a\nb"
    assert focused(browser) == "prompt"
    browser.find("h1").click()  # from there the next key goes on
    passed = []
    for _ in range(40):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        if browser.run("return document.activeElement === document.body"):
            break  # the end of the page
        passed.append(str(browser.run("return document.activeElement.id || document.activeElement.className")))
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        boxed = browser.run("return getComputedStyle(document.getElementById('composer')).boxShadow")
        assert outline != "none" or (passed[-1] == "prompt" and boxed != "none"), f"focus on {passed[-1]} is not seen"
    for name in ("model", "think", "new-chat", "theme", "search", "import", "conversation", "attach", "prompt"):
        assert name in passed, f"{name} is not reached: {passed}"
    assert passed.index("model") < passed.index("conversation") < passed.index("prompt")


def test_the_skip_link_leads_to_the_message_box(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.run("document.activeElement.blur()")
    skip = browser.find(".skip")
    browser.run("arguments[0].focus()", skip)
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: focused(browser) == "prompt")


def test_every_control_has_a_name(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    ask(browser, "Hello")
    ended(browser)
    browser.find(".again").click()
    browser.wait(lambda: browser.all(".versions"))
    browser.wait(lambda: browser.all(".chat-actions"))
    controls = {"button", "combobox", "textbox", "searchbox", "spinbutton", "checkbox", "link", "image"}
    controls |= {"region", "navigation", "complementary", "dialog", "alertdialog"}
    for name, least in (("", 20), ("settings", 12), ("delete-dialog", 3)):
        if name:
            browser.run("document.getElementById(arguments[0]).showModal()", name)
        nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
        named = [node for node in nodes if node.get("role", {}).get("value") in controls and not node["ignored"]]
        assert len(named) >= least
        for node in named:
            assert node.get("name", {}).get("value"), f"a {node['role']['value']} without a name: {node}"
        if name:
            browser.run("document.getElementById(arguments[0]).close()", name)


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, server: PageServer, width: int) -> None:
    wide = "\n\n".join(
        ("x" * 300, "`" + "y" * 300 + "`", "```\n" + "z" * 300 + "\n```", "|a|\n|-|\n|" + "b " * 200 + "|")
    )
    server.answers = [[*said(wide, 100), DONE]]
    browser.resize(width, 740)
    browser.open(server.url)
    browser.find("#prompt").send_keys("w" * 200, Keys.ENTER)
    browser.wait(lambda: browser.all(".foot"))
    assert widest(browser, "html", "#conversation") <= width and fits_the_window(browser)
    for name in ("settings", "delete-dialog", "key-dialog"):
        browser.run("document.getElementById(arguments[0]).showModal()", name)
        assert widest(browser, f"#{name}") <= width - 16 and widest(browser, "html") <= width
        browser.run("document.getElementById(arguments[0]).close()", name)
    if width < 1200:
        assert not browser.find("#chats").is_displayed()
        browser.find("#chats-toggle").click()
        browser.wait(lambda: focused(browser) == "search")
        assert not browser.find("#composer").is_displayed() and fits_the_window(browser)
        assert widest(browser, "html", "#chats") <= width
        browser.find(".chat-name").click()
        browser.wait(lambda: browser.find("#composer").is_displayed() and focused(browser) == "prompt")
    if width < 960:
        assert not browser.find("#machine").is_displayed()
        browser.find("#machine-toggle").click()
        assert browser.find("#machine").is_displayed() and not browser.find("#composer").is_displayed()
        assert browser.find("#machine-toggle").get_attribute("aria-expanded") == "true"
    browser.wait(lambda: "8 of 24" in label(browser, "#heat"))
    assert browser.find("header").size["width"] == width
    assert widest(browser, "html", "#machine") <= width and fits_the_window(browser)


def test_colours_follow_the_system_until_somebody_chooses(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    light = background(browser)
    browser.prefer("dark")
    dark = background(browser)
    assert light == "rgb(255, 255, 255)" and dark != light
    theme = browser.find("#theme")
    assert theme.text == "Colours: auto"
    theme.click()
    assert theme.text == "Colours: light" and background(browser) == light
    browser.driver.refresh()
    browser.wait(lambda: browser.text("#theme") == "Colours: light")
    assert background(browser) == light
    browser.prefer("light")
    browser.find("#theme").click()
    assert background(browser) == dark
    browser.find("#theme").click()
    assert background(browser) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(browser: Browser, server: PageServer, scheme: str) -> None:
    """A contrast of at least 4.5, as WCAG 2.2 AA asks (1.4.3)."""
    text = f"Words `code`\n\n> quote\n\n```python\n{CODE}\n```"
    server.answers = [[*called("add"), DONE], [*said(text), DONE]]
    browser.prefer(scheme)
    browser.open(server.url)
    ask(browser, "Hello")
    ended(browser, 2)
    browser.find(".call summary").click()
    browser.run("document.getElementById('notice').hidden = false")
    browser.run("document.getElementById('notice-text').textContent = 'What went wrong'")
    worst = browser.run(
        """
        const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const luminance = (colour) => channels(colour).slice(0, 3)
          .map((value) => value / 255)
          .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
          .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
        const ground = (element) => {
          for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if ((channels(colour)[3] ?? 1) > 0) return colour;
          }
        };
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        const found = [];
        for (let node; (node = texts.nextNode()); ) {
          const element = node.parentElement;
          if (!node.data.trim() || !element.checkVisibility() || element.matches(":disabled, option, script")) continue;
          const pair = [luminance(getComputedStyle(element).color), luminance(ground(element))].sort((a, b) => a - b);
          found.push([(pair[1] + 0.05) / (pair[0] + 0.05), node.data.trim()]);
        }
        return found.sort((a, b) => a[0] - b[0])[0];
        """
    )
    assert worst[0] >= 4.5, worst


def test_a_script_that_gets_in_does_not_run(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    assert browser.complaints() == []
    browser.run(
        "const made = document.createElement('script'); made.text = 'window.hit = 1'; document.body.append(made)"
    )
    assert browser.run("return window.hit") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())


def test_a_hidden_page_asks_for_nothing(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: server.watching == 1)
    hide = "Object.defineProperty(document, 'hidden', { configurable: true, value: arguments[0] });"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    browser.run(hide, True)
    browser.wait(lambda: server.watching == 0)
    browser.run(hide, False)
    browser.wait(lambda: server.watching == 1)
