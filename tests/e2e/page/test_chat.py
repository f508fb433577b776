"""A conversation on the page, in a browser."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.support.chromium import Browser
from tests.support.page_chat import announced, ask, ended
from tests.support.page_server import DONE, PageServer, said, thought

MARKDOWN = """# Title

A *soft* and a **strong** word, `code` and [a link](https://example.org/a_(b)).
Second line.

- one
- two
  1. inner
  2. more

> quoted

| name | size |
|:-----|-----:|
| a    | 1    |

```python
print("<b>hello</b>")
```

Last."""

HOSTILE = """<script>window.hit = 1</script> <img src=x onerror="window.hit = 2">

[click](javascript:window.hit=3) [data](data:text/html,<script>window.hit=4</script>) ![image](x" onerror="window.hit=5)

```html
<img src=x onerror="window.hit = 6">
```

| <script>window.hit = 7</script> | b |
|---|---|
| <svg onload="window.hit = 8"> | `<i>` |

$\\text{<img src=x onerror="window.hit = 9">} a$ and $\\href{javascript:window.hit=10}{a}$ and \\(<b>x</b>\\)

$$\\text{<script>window.hit = 11</script>}$$
"""


def test_a_round_of_chat(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said(MARKDOWN), DONE]]
    browser.open(server.url)
    Select(browser.find("#model")).select_by_value("plain:latest")
    ask(browser, "Show me\x20everything")
    ended(browser)
    assert browser.text(".said") == "Show me everything"
    answer = browser.find(".answer .markdown")
    shown = browser.run(
        "return [...arguments[0].children].map((child) => child.tagName + ' ' + child.textContent.trim())", answer
    )
    assert shown[0] == "H4 Title"
    assert shown[1] == "P A soft and a strong word, code and a link.\nSecond line."
    assert browser.text(".markdown em") == "soft" and browser.text(".markdown strong") == "strong"
    assert browser.text(".markdown p code") == "code"
    assert browser.find(".markdown a").get_attribute("href") == "https://example.org/a_(b)"
    assert "noopener" in str(browser.find(".markdown a").get_attribute("rel"))
    assert [item.text for item in browser.all(".markdown ul > li > ol > li")] == ["inner", "more"]
    assert browser.text(".markdown blockquote") == "quoted"
    assert [cell.text for cell in browser.all(".markdown :is(th, td)")] == ["name", "size", "a", "1"]
    assert browser.text(".markdown pre code") == 'print("<b>hello</b>")'
    assert browser.text(".code-bar span") == "python"
    assert shown[-1] == "P Last."
    assert (
        browser.text(".facts")
        == "1,234 tokens · 20.6 tokens/s · 80 % hits · 2.5 GB read · stalled 1.3 s · context 1,243"
    )
    assert server.asked == [
        {"model": "plain:latest", "messages": [{"role": "user", "content": "Show me everything"}], "stream": True}
    ]
    announced(browser, "Answer complete")


def test_an_answer_appears_while_it_comes(browser: Browser, server: PageServer) -> None:
    server.answers = [said("The first words")]  # and then nothing more, for ever
    browser.open(server.url)
    ask(browser, "Go on")
    browser.wait(lambda: browser.text(".answer .markdown") == "The first words")
    assert browser.find(".answer").get_attribute("aria-busy") == "true" and not browser.all(".foot")
    browser.find("#stop").click()
    ended(browser)


def test_growing_markdown_ends_as_if_it_had_come_at_once(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said(MARKDOWN, 1), DONE], [*said(MARKDOWN, len(MARKDOWN)), DONE]]
    browser.open(server.url)
    ask(browser, "bit by bit")
    ended(browser, 1)
    ask(browser, "at once")
    ended(browser, 2)
    slow, fast = browser.run("return [...document.querySelectorAll('.markdown')].map((each) => each.innerHTML)")
    assert slow == fast


def test_thoughts_are_folded_and_can_be_opened(browser: Browser, server: PageServer) -> None:
    server.answers = [[*thought("Let me "), *thought("see."), *said("Hello there."), DONE]]
    browser.open(server.url)
    ask(browser, "Think")
    ended(browser)
    assert browser.text(".answer .markdown") == "Hello there."
    assert not browser.find(".thought-text").is_displayed()
    assert browser.text(".thoughts summary").startswith("Thought for ")
    browser.find(".thoughts summary").click()
    assert browser.text(".thought-text") == "Let me see."
    assert server.asked[0]["think"] is True
    ask(browser, "Again")
    ended(browser, 2)
    assert server.asked[1]["messages"][1] == {"role": "assistant", "content": "Hello there."}, (
        "thoughts are not history"
    )


def test_a_model_that_always_thinks_is_shown_so(browser: Browser, server: PageServer) -> None:
    server.models = ("always-thinker:latest", "thinker:latest")
    browser.open(server.url)
    browser.wait(lambda: browser.find("#think").is_displayed())
    assert not browser.find("#think").is_enabled() and browser.find("#think").is_selected()
    assert "always thinks" in (browser.find("#think-field").get_attribute("title") or "")
    ask(browser, "Quick")
    ended(browser)
    assert "think" not in server.asked[0]
    Select(browser.find("#model")).select_by_value("thinker:latest")
    browser.wait(lambda: browser.find("#think").is_enabled())


def test_thinking_can_be_switched_off_where_a_model_has_the_switch(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    browser.wait(lambda: browser.find("#think").is_displayed())
    browser.find("#think").click()
    ask(browser, "Quick")
    ended(browser)
    assert server.asked[0]["think"] is False
    Select(browser.find("#model")).select_by_value("plain:latest")
    browser.wait(lambda: not browser.find("#think").is_displayed())
    ask(browser, "Now you")
    ended(browser, 2)
    assert server.asked[1]["model"] == "plain:latest" and "think" not in server.asked[1]
    browser.driver.refresh()
    browser.wait(lambda: browser.find("#model").get_attribute("value") == "plain:latest")


def test_escape_stops_and_the_server_hears_of_it(browser: Browser, server: PageServer) -> None:
    server.answers = [said("Half of it"), [*said("Whole."), DONE]]
    browser.open(server.url)
    ask(browser, "Tell me")
    browser.wait(lambda: browser.text(".answer .markdown") == "Half of it")
    browser.find("#prompt").send_keys(Keys.ESCAPE)
    ended(browser)
    announced(browser, "Stopped")
    browser.wait(lambda: server.left == 1)
    assert browser.text(".answer .status") == "Stopped"
    ask(browser, "And now?")
    ended(browser, 2)
    roles = [(turn["role"], turn["content"]) for turn in server.asked[1]["messages"]]
    assert roles == [("user", "Tell me"), ("assistant", "Half of it"), ("user", "And now?")]


def test_regenerate_asks_the_same_again(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said("First."), DONE], [*said("Second."), DONE], [*said("Third."), DONE]]
    browser.open(server.url)
    ask(browser, "One")
    ended(browser)
    ask(browser, "Two")
    ended(browser, 2)
    assert len(browser.all(".again")) == 1, "only the last answer can be made anew"
    browser.find(".again").click()
    browser.wait(lambda: [each.text for each in browser.all(".answer .markdown")] == ["First.", "Third."])
    ended(browser, 2)
    assert server.asked[2] == server.asked[1]


def test_an_error_in_the_middle_is_shown_and_keeps_what_came(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said("So far"), {"error": "the disk <b>failed</b>"}], [*said("Better."), DONE]]
    browser.open(server.url)
    ask(browser, "Read")
    ended(browser)
    assert browser.text(".answer .markdown") == "So far"
    assert browser.text(".status[data-error]") == "the disk <b>failed</b>"
    announced(browser, "Error: the disk")
    browser.find(".again").click()
    browser.wait(lambda: browser.text(".answer .markdown") == "Better.")


def test_what_a_model_writes_stays_text(browser: Browser, server: PageServer) -> None:
    server.answers = [[*thought("<script>window.hit = 0</script>"), *said(HOSTILE), DONE]]
    browser.open(server.url)
    ask(browser, "<img src=x onerror='window.hit = 9'>")
    ended(browser)
    assert browser.run("return window.hit") is None
    assert not browser.all("#messages :is(script, img, svg, iframe, [onerror], [onload])")
    assert not browser.all("#messages a"), "neither javascript: nor data: is a link"
    assert "<script>window.hit = 1</script>" in browser.text(".markdown")
    assert browser.text(".said") == "<img src=x onerror='window.hit = 9'>"


def test_deep_and_unclosed_marks_do_no_harm(browser: Browser, server: PageServer) -> None:
    marks = (">" * 3000, "[" * 3000, "**a " * 3000, "a" + "`" * 2999, "- " * 3000, "|" * 3000 + "\n|-|")
    deep = ("\\frac{" * 500, "x^" * 2000, "\\left(" * 500)
    formulas = ("$" * 3000, "$a" * 1500, "\\(" * 1500, "$$\n" * 500, *(f"$$\n{each}\n$$" for each in deep))
    code = {"python": '"' * 3001 + "\n" + "'''" * 1000, "css": "a:" * 3000, "html": "<a" * 3000 + "=" * 3000}
    fenced = (f"```{language}\n{text}\n```" for language, text in code.items())
    hostile = "\n\n".join((*marks, *formulas, *fenced))
    server.answers = [[*said(hostile, len(hostile)), *said("\n\nEnd."), DONE]]
    browser.open(server.url)
    ask(browser, "Break")
    ended(browser)
    assert browser.run("return document.querySelector('.markdown').lastElementChild.textContent") == "End."


def test_copy_takes_the_code_alone(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said("```sh\nls -l\n```\n\nDone."), DONE]]
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.command("Browser.grantPermissions", permissions=permissions, origin=server.url)
    browser.open(server.url)
    ask(browser, "Copy")
    ended(browser)
    browser.find(".code button").click()
    browser.wait(lambda: browser.text(".code button") == "Copied")
    assert browser.run("return navigator.clipboard.readText()") == "ls -l"
    browser.find(".foot button").click()
    browser.wait(lambda: browser.text(".foot button") == "Copied")
    assert browser.run("return navigator.clipboard.readText()") == "```sh\nls -l\n```\n\nDone."


def test_a_new_chat_forgets(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    assert browser.find("#welcome").is_displayed()
    ask(browser, "One")
    ended(browser)
    assert not browser.find("#welcome").is_displayed()
    browser.find("#new-chat").click()
    assert not browser.all("#messages li") and browser.find("#welcome").is_displayed()
    ask(browser, "Two")
    ended(browser)
    assert [turn["content"] for turn in server.asked[1]["messages"]] == ["Two"]


def test_no_model_says_what_to_do(browser: Browser, server: PageServer) -> None:
    server.models = ()
    browser.load(server.url)
    browser.wait(lambda: "Get a model" in browser.text("#welcome-text"))
    browser.find("#prompt").send_keys("Anybody?")
    assert not browser.find("#send").is_enabled()


def test_a_model_without_a_template_is_said_to_have_none(browser: Browser, server: PageServer) -> None:
    server.models = ("base:latest", "plain:latest")
    browser.open(server.url)
    assert browser.find("#base-model").is_displayed()
    Select(browser.find("#model")).select_by_value("plain:latest")
    browser.wait(lambda: not browser.find("#base-model").is_displayed())


def test_a_key_is_asked_for_and_kept_for_the_tab(browser: Browser, server: PageServer) -> None:
    server.key = "secret"
    browser.driver.get(server.url)
    browser.run("localStorage.clear(); sessionStorage.clear()")
    browser.driver.refresh()
    browser.wait(lambda: browser.find("#key").is_displayed())
    browser.find("#key").send_keys("secret", Keys.ENTER)
    browser.wait(lambda: browser.find("#model").is_enabled())
    assert not browser.find("#key-dialog").is_displayed()
    browser.driver.refresh()
    browser.wait(lambda: browser.find("#model").is_enabled())
    assert browser.run("return localStorage.length") == 0
    assert all("401" in complaint for complaint in browser.complaints())
