"""A headless Chromium for tests of the pages, and what must be true of every visit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

# No word to anybody but the server under test.
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ),
]

WAIT_MS = 20_000  # a busy machine is no finding
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Where there is none the test is skipped, but fails where CI promised one."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        assert not os.environ.get("PACELINE_TEST_NEEDS_BROWSER"), "no Chromium is installed: make browser"
        pytest.skip("no Chromium is installed: make browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def visit(
    browser: Browser,
    url: str,
    path: str = "/",
    *,
    width: int = 1280,
    height: int = 800,
    dark: bool = False,
    expect: str = "",
) -> Iterator[Page]:
    """A page in a fresh profile. Afterwards: every request went to `url`, and nothing was complained about.

    Args:
        expect: complaints that contain this text are part of the test.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    try:
        page.goto(url + path)
        yield page
        elsewhere = [address for address in asked if not address.startswith((url + "/", f"blob:{url}/"))]
        assert not elsewhere, elsewhere
        unexpected = [text for text in complaints if not expect or expect not in text]
        assert not unexpected, unexpected
    finally:
        context.close()


def fits(page: Page) -> bool:
    """Whether nothing sticks out at the right: the page scrolls up and down only."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def least_contrast(page: Page, selector: str) -> float:
    """The lowest contrast of a text to what is behind it, by WCAG's formula; 4.5 is its bound for small texts."""
    return float(page.evaluate(_CONTRAST, selector))


_CONTRAST = """(selector) => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratios = [...document.querySelectorAll(selector)].map((node) => {
    const [low, high] = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
  return Math.min(...ratios);
}"""
