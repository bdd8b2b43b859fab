"""The pages over a real pipeline with the real model, as a newcomer meets them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import browser, visit
from tests.e2e.lanes import PAINTED, picture, wait_until_painted_otherwise
from tests.e2e.server import Server, serve

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.e2e


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def keep_settings(page: Page, **settings: str) -> None:
    page.evaluate("(kept) => localStorage.setItem('paceline.settings', JSON.stringify(kept))", settings)
    page.reload()


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[Server]:
    with serve(str(smollm2_gguf), "--pipeline-parallel-size", "2", "--num-blocks", "512") as server:
        yield server


def test_a_newcomer_sees_a_real_pipeline_move(browser: Browser, server: Server) -> None:
    with visit(browser, server.url, "/monitor") as page:
        expect(page.locator("#empty")).to_be_visible()  # the first test with this server
        page.locator("#demo").click()
        rows = page.locator("#requests tbody tr")
        expect(rows.first).to_contain_text("RUNNING")
        expect(rows.first).to_contain_text("sample group")
        expect(page.locator("#facts")).to_contain_text("2 stages")
        for _ in range(3):
            wait_until_painted_otherwise(page, picture(page))
        colours = page.evaluate("import('/pages/palette.js').then((all) => all.BATCHES)")
        wanted = {",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)) for colour in colours}
        page.wait_for_function(
            f"(wanted) => ({PAINTED})(2).every((lane) => lane.filter((c) => wanted.includes(c)).length > 1)",
            arg=[*wanted],
        )
        rows.first.locator("button").first.click()
        expect(page.locator(".story")).to_contain_text(re.compile(r"batch \d+"))
        name = rows.first.locator("button").first.get_attribute("title")
        rows.first.get_by_role("button", name="Abort").click()
        expect(page.get_by_title(str(name), exact=True)).to_have_count(0)
        expect(page.locator(".story")).to_contain_text("FINISHED_ABORTED")
        expect(page.locator("#demo")).to_have_text("Stop the samples")  # the others go on
        expect(page.locator("#notice")).to_be_hidden()
        page.locator("#lanes").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        expect(page.locator("#detail-title")).to_have_text(re.compile(r"Batch \d+"))
        expect(page.locator("#detail-body h3").last).to_be_visible()
        page.locator("#demo").click()
        expect(page.locator("#no-requests")).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="Trace").click()
        assert len(json.loads(download.value.path().read_text())["traceEvents"]) > 10


def test_a_conversation(browser: Browser, server: Server) -> None:
    with visit(browser, server.url) as page:
        expect(page.locator("#model-name")).to_have_text(re.compile("^SmolLM2-135M"))
        page.keyboard.press("Alt+s")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Most tokens").fill("20")
        page.get_by_role("button", name="Done").click()
        ask(page, "What is the capital of France?")
        answer = page.locator(".turn.assistant").last
        expect(answer.locator(".content")).to_contain_text("Paris")
        figures = answer.locator(".figures")
        expect(figures).to_have_text(
            re.compile(r"first token [\d.]+ s · [\d.]+ tokens/s · \d+ tokens · \d+ of \d+ prompt tokens cached")
        )
        ask(page, "Are you sure?")
        expect(page.locator(".figures")).to_have_count(2)
        expect(page.locator(".figures").last).to_have_text(re.compile(r"[1-9]\d* of \d+ prompt tokens cached"))
        page.reload()
        expect(page.locator(".turn")).to_have_count(4)  # kept by the browser
        page.get_by_role("button", name="New conversation").click()
        page.reload()
        expect(page.locator(".turn")).to_have_count(0)


def test_stopping_really_aborts(browser: Browser, server: Server) -> None:
    with visit(browser, server.url) as page:
        keep_settings(page, temperature="0")
        ask(page, "Write a Python function that checks whether a number is prime.")  # it never comes to an end
        content = page.locator(".turn.assistant .content")
        expect(content).not_to_have_text("")
        page.keyboard.press("Escape")
        expect(page.locator(".figures")).to_contain_text("stopped by you")
        server.read_until(r"request chatcmpl-\w+ .*aborted: the client disconnected", 20)
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        assert content.inner_text()  # what was there stays


def test_from_an_answer_to_its_way_through_the_pipeline(browser: Browser, server: Server) -> None:
    with visit(browser, server.url) as page:
        keep_settings(page, max_tokens="16")
        ask(page, "What is the capital of France?")
        page.get_by_role("link", name="In the pipeline").click()
        expect(page.locator("#state")).to_have_text("paused")
        expect(page.locator(".story")).to_contain_text(re.compile(r"FINISHED_\w+"))
        spans = page.evaluate(PAINTED, 2)
        assert all(len(lane) > 1 for lane in spans)


def test_the_terminal_shows_the_same(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    command = [sys.executable, "-m", "paceline.cli.main", "top", "--once", "--seconds", "5", "--url", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    letters = [line for line in done.stdout.splitlines() if re.fullmatch(r"[pdmSTPCLBU·? ]+", line) and "d" in line]
    assert len(letters) == 2  # both stages computed decodes
