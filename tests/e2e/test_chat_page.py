"""The chat page in a real browser, over a fake engine: the answers are known."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from paceline.config import ServerConfig
from paceline.server.state import Phase
from tests.e2e.browser import browser, fits, least_contrast, visit
from tests.server.fakes import EOS, FakeEngine, Site
from tests.server.running import Running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.e2e

MARKDOWN = """Some **bold** and `code`.

| stage | layers |
|---|---:|
| 0 | 18 |

```python
print("<b>")
```

<img src="https://elsewhere.example/x.png" onerror="alert(1)"> ![picture](https://elsewhere.example/y.png)
[script](javascript:alert(1)) [link](https://elsewhere.example/)
"""


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def long_answers(page: Page) -> None:
    """Beyond what the fake engine says unless asked for more."""
    page.evaluate("localStorage.setItem('paceline.settings', JSON.stringify({max_tokens: '2000'}))")
    page.reload()


@contextmanager
def fake(answer: str = "Fine.", **config: object) -> Iterator[Running]:
    """A server whose model always says `answer`."""
    engine = FakeEngine(lambda prompt: [*answer.encode(), EOS])
    running = Running(Site(engine, ServerConfig(**config), max_model_len=4000))  # type: ignore[arg-type]
    try:
        yield running
    finally:
        running.stop()


def test_an_answer_can_bring_nothing_but_text_onto_the_page(browser: Browser) -> None:
    with fake(MARKDOWN) as running, visit(browser, running.url) as page:
        long_answers(page)
        ask(page, "Show me everything.")
        content = page.locator(".turn.assistant .content")
        expect(page.locator(".figures")).to_be_visible()
        assert content.locator("strong").inner_text() == "bold"
        assert content.locator("td").all_inner_texts() == ["0", "18"]
        assert content.locator("pre code").inner_text() == 'print("<b>")'
        assert content.locator("img, script").count() == 0
        assert [link.get_attribute("href") for link in content.locator("a").all()] == ["https://elsewhere.example/"]
        assert "onerror" in content.inner_text()
        content.get_by_role("button", name="Copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>")'


def test_an_answer_can_be_repeated_with_curl(browser: Browser) -> None:
    with fake() as running, visit(browser, running.url) as page:
        ask(page, "It's 'quoted' & $HOME")
        page.get_by_role("button", name="Copy as curl").click()
        words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        assert words[:2] == ["curl", f"{running.url}/v1/chat/completions"]
        body = json.loads(words[words.index("-d") + 1])
        assert body["messages"] == [{"role": "user", "content": "It's 'quoted' & $HOME"}]
        ask(page, "And again?")
        expect(page.locator(".figures")).to_have_count(2)
        page.reload()
        page.get_by_role("button", name="Copy as curl").last.click()
        words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        said = [message["content"] for message in json.loads(words[words.index("-d") + 1])["messages"]]
        assert said == ["It's 'quoted' & $HOME", "Fine.", "And again?"]


def test_the_key_is_asked_for_and_stays_in_the_browser(browser: Browser) -> None:
    with fake(api_key=("secret",)) as running, visit(browser, running.url, expect="401") as page:
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("missing or wrong")
        dialog.get_by_label("Key", exact=True).fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#model-name")).to_have_text("m")
        ask(page, "Hello")
        expect(page.locator(".turn.assistant .content")).to_have_text("Fine.")
        page.get_by_role("button", name="Copy as curl").click()
        assert "secret" not in page.evaluate("navigator.clipboard.readText()")
        assert page.evaluate("[document.cookie, location.href, Object.keys(localStorage).join()]") == [
            "",
            f"{running.url}/",
            "paceline.conversation",
        ]
        page.reload()  # this tab still knows it
        expect(page.locator("#model-name")).to_have_text("m")


def test_a_server_that_is_loading_says_so_until_it_is_ready(browser: Browser) -> None:
    with fake() as running:
        running.site.state.phase = Phase.LOADING
        with visit(browser, running.url, expect="503") as page:
            expect(page.get_by_role("status")).to_contain_text("still loading")
            running.site.state.phase = Phase.READY
            expect(page.locator("#model-name")).to_have_text("m")
            expect(page.locator("#notice")).to_be_hidden()


def test_an_error_is_shown_and_the_answer_can_be_had_again(browser: Browser) -> None:
    with fake() as running, visit(browser, running.url, expect="400") as page:
        ask(page, "bad template")
        expect(page.get_by_role("alert")).to_contain_text("cannot make a prompt of this")
        page.get_by_role("button", name="Again").click()
        expect(page.get_by_role("alert")).to_have_count(1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_and_is_readable(browser: Browser, width: int, dark: bool) -> None:
    with fake(MARKDOWN) as running, visit(browser, running.url, width=width, dark=dark) as page:
        long_answers(page)
        ask(page, "long-word-" * 40)
        expect(page.locator(".figures")).to_be_visible()
        assert fits(page)
        page.get_by_role("button", name="Model and sampling").click()
        expect(page.get_by_label("Temperature")).to_be_in_viewport()
        assert fits(page)
        page.keyboard.press("Escape")
        assert least_contrast(page, "body, .content, .content *, .muted, .error, .primary, #conversation button") >= 4.5
