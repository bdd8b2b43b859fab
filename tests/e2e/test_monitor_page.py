"""The monitor page in a real browser, over a made-up pipeline that is always the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import browser, fits, least_contrast, visit
from tests.e2e.lanes import PAINTED, picture, wait_until_painted_otherwise
from tests.server.fake_monitor import REQUESTS, FakeMonitor
from tests.server.running import Running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.e2e


@contextmanager
def monitor(
    browser: Browser, fake: FakeMonitor | None = None, **visiting: object
) -> Iterator[tuple[Page, FakeMonitor]]:
    fake = fake or FakeMonitor()
    running = Running(fake)  # type: ignore[arg-type]
    try:
        with visit(browser, running.url, "/monitor", **visiting) as page:  # type: ignore[arg-type]
            yield page, fake
    finally:
        running.stop()


@pytest.mark.parametrize("stages", [2, 4])
def test_the_lanes_of_all_stages_move(browser: Browser, stages: int) -> None:
    with monitor(browser, FakeMonitor(stages)) as (page, _):
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#facts")).to_contain_text(f"Fake-135M · {stages} stages · pacing greedy")
        expect(page.locator("#tiles dd").first).to_have_text(re.compile(r"\d+ %"))
        for _ in range(3):
            wait_until_painted_otherwise(page, picture(page))
        palette = page.evaluate("import('/pages/palette.js').then((all) => all.BATCHES)")
        wanted = {",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)) for colour in palette}
        for lane in page.evaluate(PAINTED, stages):
            assert wanted <= set(lane)  # bars of every colour


def test_pausing_holds_the_picture_and_the_keyboard_reaches_every_batch(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        output = page.locator("#requests tbody tr").first.locator("td").nth(5)
        expect(output).to_have_text(re.compile(r"\d"))
        page.locator("#lanes").focus()
        page.keyboard.press(" ")
        expect(page.locator("#state")).to_have_text("paused")
        still, counted = picture(page), output.inner_text()
        expect(output).not_to_have_text(counted)  # news came
        assert picture(page) == still
        page.keyboard.press("ArrowLeft")
        readout = page.locator("#readout")
        expect(readout).to_have_text(re.compile(r"Batch \d+, (prefill|decode|mixed)\. stage 0, "))
        first = readout.inner_text()
        page.keyboard.press("ArrowLeft")
        expect(readout).not_to_have_text(first)
        page.keyboard.press("ArrowDown")
        expect(readout).to_contain_text("stage 1, ")
        page.keyboard.press("Enter")
        batch = re.match(r"Batch (\d+)", readout.inner_text())
        assert batch is not None
        expect(page.locator("#detail-title")).to_have_text(f"Batch {batch[1]}")
        expect(page.locator("#detail")).to_contain_text(f"RUNNING: in flight in batch {int(batch[1]) - 1}")
        page.locator("#lanes").focus()
        page.keyboard.press("+")
        expect(page.locator("#span")).to_have_text("2.5 s")
        page.keyboard.press("Escape")
        expect(page.locator("#detail-title")).to_have_text("Details")
        page.keyboard.press("End")
        expect(page.locator("#state")).to_have_text("live")


def test_pointing_at_a_bar_tells_what_it_is(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        expect(page.locator("#state")).to_have_text("live")
        page.get_by_role("button", name="Pause").click()
        lanes = page.locator("#lanes")
        box = lanes.bounding_box()
        assert box is not None
        seen = set()
        for x in range(20, 1200, 40):
            page.mouse.move(box["x"] + x, box["y"] + 50)
            seen.add(page.locator("#tooltip p").first.inner_text().partition(" ")[0])
        assert seen == {"Batch", "Stage"}  # bars and idle times
        span = page.locator("#span")
        expect(span).to_have_text("4.0 s")
        page.mouse.wheel(0, -400)
        expect(span).not_to_have_text("4.0 s")
        before = picture(page)
        page.mouse.down()
        page.mouse.move(box["x"] + 600, box["y"] + 50, steps=4)
        page.mouse.up()
        wait_until_painted_otherwise(page, before)


def test_following_a_request(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        page.get_by_role("button", name="Pause").click()
        row = page.locator("#requests tbody tr").first
        row.locator("button").first.click()
        expect(row).to_have_attribute("aria-selected", "true")
        expect(page.locator(".story")).to_have_text(f"{REQUESTS[0]} arrived and waited 2 ms.\nBatch 1 computed it.")
        assert page.url.endswith(f"#request={REQUESTS[0]}")
        page.get_by_role("button", name="Close").click()
        expect(row).to_have_attribute("aria-selected", "false")
        expect(page.locator(".story")).to_have_count(0)


def test_a_link_from_the_chat_leads_to_the_request(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        answer = REQUESTS[1].removesuffix("-0")  # the id that an answer carries
        page.goto(page.url + f"#request={answer}")
        page.reload()
        expect(page.locator(".story")).to_contain_text(f"{answer} arrived")
        expect(page.locator("tr[aria-selected=true] .link")).to_have_attribute("title", f"Follow {REQUESTS[1]}")
        expect(page.locator("#state")).to_have_text("live")


def test_a_link_to_a_request_that_has_ended_shows_its_time(browser: Browser) -> None:
    fake = FakeMonitor()
    fake.aborted.append(REQUESTS[1])
    with monitor(browser, fake) as (page, _):
        page.goto(page.url + f"#request={REQUESTS[1]}")
        page.reload()
        expect(page.locator("#state")).to_have_text("paused")
        expect(page.locator(".story")).to_contain_text(f"{REQUESTS[1]} arrived")
        page.keyboard.press("Escape")
        expect(page.locator("#detail-title")).to_have_text("Details")


def test_aborting_a_request(browser: Browser) -> None:
    with monitor(browser) as (page, fake):
        rows = page.locator("#requests tbody tr")
        expect(rows).to_have_count(len(REQUESTS))
        rows.nth(2).get_by_role("button", name="Abort").click()
        expect(rows).to_have_count(len(REQUESTS) - 1)
        assert fake.aborted == [REQUESTS[2]]


def test_sample_requests(browser: Browser) -> None:
    with monitor(browser, FakeMonitor(empty=True)) as (page, fake):
        expect(page.locator("#empty")).to_be_visible()
        expect(page.locator("#no-requests")).to_be_visible()
        button = page.locator("#demo")
        button.click()
        expect(button).to_have_text("Stop the samples")
        expect(button).to_have_text("Send 20 sample requests")
        assert sum(len(body["prompt"]) for body in fake.sampled) == 20
        assert len({prompt for body in fake.sampled for prompt in body["prompt"]}) == 20


def test_a_trace_is_saved_as_a_file(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        with page.expect_download() as download:
            page.get_by_role("button", name="Trace").click()
        assert json.loads(download.value.path().read_text()) == {"traceEvents": [], "seconds": 60}


def test_the_key_is_asked_for(browser: Browser) -> None:
    with monitor(browser, FakeMonitor(key="chief"), expect="401") as (page, _):
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#notice")).to_contain_text("missing or wrong")
        expect(page.locator("#state")).to_have_text("not connected")
        page.reload()
        expect(page.get_by_role("dialog")).to_contain_text("--admin-api-key")
        page.get_by_label("Key", exact=True).fill("chief")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("live")


def test_the_lanes_in_words(browser: Browser) -> None:
    with monitor(browser) as (page, _):
        expect(page.locator("#state")).to_have_text("live")
        page.locator("#as-text summary").click()
        expect(page.locator("#summary li")).to_have_text([re.compile(rf"Stage {n} was busy \d+ % of") for n in (0, 1)])
        expect(page.locator("#latest tr")).to_have_count(20)
        first = page.locator("#latest td").first
        text = first.inner_text()
        expect(first).not_to_have_text(text)


def test_the_stream_is_read_again_when_it_breaks_and_not_by_a_hidden_page(browser: Browser) -> None:
    with monitor(browser) as (page, fake):
        fake.opened.get(timeout=20)
        fake.break_off = True
        fake.closed.get(timeout=20)
        fake.opened.get(timeout=20)
        expect(page.locator("#state")).to_have_text("live")
        hide = "(is) => { Object.defineProperty(document, 'hidden', { value: is, configurable: true });"
        hide += " document.dispatchEvent(new Event('visibilitychange')); }"
        page.evaluate(hide, True)
        fake.closed.get(timeout=20)
        page.evaluate(hide, False)
        fake.opened.get(timeout=20)
        expect(page.locator("#state")).to_have_text("live")


def test_what_is_kept_is_bounded(browser: Browser) -> None:
    """Ten minutes of frames leave one minute in the page."""
    code = """async () => {
      const { Record } = await import("/pages/record.js");
      const record = new Record();
      record.hello({ stages: 2, now: 0 });
      for (let n = 0; n < 3000; n += 1) {
        const now = n / 5;
        record.frame({
          now, tiles: { bubble: 0 }, batches: [{ batch: n, made: now, slices: [["cmpl-a-0", n, 1, "decode"]] }],
          spans: [[0, n, now, now + 0.05, "decode"], [1, n, now + 0.05, now + 0.1, "decode"]],
          links: [[0, n, now + 0.05, now + 0.05]], idle: [[0, now + 0.05, now + 0.2, "starved"]],
        }, now);
      }
      const { busy, causes } = record.use(0, 590, 595);
      const kept = [record.spans[0].length, record.idle[0].length, record.batches.size];
      const many = Array.from({ length: 30000 }, (_, n) => [`cmpl-${n}`, 0, 1, "decode"]);
      for (let n = 3000; n < 3010; n += 1) record.frame({ now: 600, batches: [{ batch: n, made: 600, slices: many }] }, 600);
      const slices = [...record.batches.values()].reduce((sum, batch) => sum + batch.slices.length, 0);
      if (slices !== 180000 || record.numSlices !== slices || record.batchesOf("cmpl-5").length !== 6) return [slices];
      return [...kept, record.history.length, busy, causes.starved];
    }"""
    with monitor(browser) as (page, _):
        spans, idle, batches, history, busy, starved = page.evaluate(code)
        assert all(300 <= kept <= 310 for kept in (spans, idle, batches))
        assert history == 300
        assert busy == pytest.approx(0.25)
        assert starved == pytest.approx(3.75)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_and_is_readable(browser: Browser, width: int, dark: bool) -> None:
    with monitor(browser, width=width, dark=dark) as (page, _):
        expect(page.locator("#requests tbody tr")).to_have_count(len(REQUESTS))
        page.locator("#requests .link").first.click()
        expect(page.locator(".story")).to_contain_text("arrived")
        assert fits(page)
        assert (
            least_contrast(page, "body, .muted, .tile dt, .value, .badge, .link, .legend li, .primary, th, td") >= 4.5
        )
